"""The network of pfl-research's CNN benchmark, so that speeds can be compared on the same work."""

from torch import nn

from fedsim.errors import ConfigError


def pfl_cnn(num_labels: int) -> nn.Sequential:
    """Return two unpadded 3x3 convolutions (32 and 64 channels), a max-pool and a dense 128.

    The input has shape (n, 3, 32, 32) and the output (n, labels). Weights are Glorot uniform, as
    in the original (Granqvist et al. 2024, arXiv 2404.06430). Its two dropout layers are left out,
    since dropout draws from torch's global generator; take them out of both sides of a comparison.

    Args:
        num_labels: Number of outputs, at least 1.

    Raises:
        ConfigError: ``num_labels`` is below 1.

    Examples:
        >>> sum(p.numel() for p in pfl_cnn(10).parameters())
        1626442
    """
    if num_labels < 1:
        raise ConfigError(
            f"pfl_cnn: expected num_labels of at least 1, found {num_labels}; set it to the number "
            "of labels of the data"
        )
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, num_labels),
    )
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return model

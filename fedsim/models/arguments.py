"""Arguments that several models take, checked and applied alike."""

from torch import nn

from fedsim.errors import ConfigError


def check_num_labels(model: str, num_labels: int) -> None:
    """Raise ConfigError for a model without an output."""
    if num_labels < 1:
        raise ConfigError(
            f"{model}: expected num_labels of at least 1, found {num_labels}; set it to the "
            "number of labels of the data"
        )


def check_trainable(model: str, trainable: str) -> None:
    """Raise ConfigError for anything but ``all`` and ``head``."""
    if trainable not in ("all", "head"):
        raise ConfigError(
            f"{model}: expected trainable to be all or head, found {trainable!r}; use one of them"
        )


def train_only(model: nn.Module, head: nn.Module) -> None:
    """Let nothing of a model train but its head."""
    model.requires_grad_(False)
    head.requires_grad_(True)

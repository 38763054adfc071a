"""The network, the loss and the conversion of a user's images: one definition for all peers.

The architecture is that of the CIFAR-10 benchmark in the pfl-research repository: two 3x3
convolutions without padding (32 and 64 channels), a 2x2 max-pool, dropout 0.25, a dense layer of
128, dropout 0.5, and a layer with one logit a class; weights Glorot-uniform. One thing differs:
that benchmark minimizes softmax cross-entropy, all peers here the mean binary cross-entropy of
the logits against a one-hot row, which is what a multi-label simulator computes.
"""

import torch
from data import Bytes
from torch import nn
from workload import IMAGE_SHAPE, NUM_CLASSES, SEED

loss_function = nn.BCEWithLogitsLoss()


def make_model() -> nn.Sequential:
    """Return the network with the same initial weights in every peer (seeds torch's generator)."""
    torch.manual_seed(SEED)
    height, width, channels = IMAGE_SHAPE
    pooled_pixels = (height - 4) // 2 * ((width - 4) // 2)
    model = nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(pooled_pixels * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, NUM_CLASSES),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return model


def to_tensors(images: Bytes, labels: Bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert one user's arrays to float32.

    Returns:
        Images in [0, 1] of shape (n, 3, 32, 32), channels-last in memory, and labels (n, 10).
    """
    pixels = torch.tensor(images).permute(0, 3, 1, 2)
    return pixels.float().div_(255), torch.tensor(labels).float()


def flat_copy(model: nn.Module) -> torch.Tensor:
    """Copy the parameters into one vector, to measure how far a round moved them."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

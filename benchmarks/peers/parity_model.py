"""What all peers of ``parity.py`` share: the network, how data are read, what a run is told."""

import argparse
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn

LABELS = 17
SIDE = 32


def make_model(num_labels: int, weights: str) -> nn.Sequential:
    """Return a small network with group norm, and the initial weights of a file."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.MaxPool2d(2),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, num_labels),
    )
    if weights:
        model.load_state_dict(torch.load(weights, weights_only=True))
    return model


def read_users(path: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Read the train users: images (n, 3, 32, 32) in [-1, 1], labels (n, 17), both float32."""
    users = []
    with h5py.File(path) as file:
        for group in file["train"].values():
            images = torch.from_numpy(group["images"][...]).permute(0, 3, 1, 2).float()
            labels = np.zeros((len(images), LABELS), dtype=np.float32)
            labels[group["labels_row"][...], group["labels_col"][...]] = 1
            x = images.div_(255).sub_(0.5).div_(0.5)
            users.append((x.contiguous(memory_format=torch.channels_last), torch.tensor(labels)))
    return users


def flat(model: nn.Module) -> np.ndarray:
    """Return the parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def run_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options that every framework's run has."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    for name in ("seed", "rounds", "cohort-size", "batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    return parser

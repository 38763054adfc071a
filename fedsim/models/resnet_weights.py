"""Pretrained weights of a ResNet-18, from torchvision or a file."""

from pathlib import Path

import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.models.state_file import load_but_for_head, read_state


def load_weights(model: nn.Module, weights: str | Path, norm: str) -> None:
    """Load a state dict in place, all of it but a last layer of another size.

    Args:
        model: A ResNet-18.
        weights: ``imagenet``, or a file of a state dict.
        norm: The model's.

    Raises:
        ConfigError: The weights can't be read, or are of another model or norm.
    """
    if weights == "imagenet" and norm != "frozen_batch":
        raise ConfigError(
            "resnet18: expected norm: frozen_batch with weights: imagenet, which were trained with "
            f"batch normalization, found norm: {norm}; change one of them"
        )
    if weights == "imagenet":
        state = _imagenet_state()
    else:
        state = read_state(Path(weights), "resnet18", "imagenet")
    misfit = f"resnet18: expected {weights} to hold a ResNet-18 with norm: {norm}"
    load_but_for_head(model, state, "fc", misfit)


def _imagenet_state() -> dict[str, torch.Tensor]:
    from torchvision.models import ResNet18_Weights

    try:
        return dict(ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:  # RuntimeError: the hash is wrong
        raise ConfigError(
            f"resnet18: expected to download {ResNet18_Weights.IMAGENET1K_V1.url}, found {error}; "
            "fetch that file by other means and set weights to its path"
        ) from error

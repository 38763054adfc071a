"""Pretrained weights of a ResNet-18, from torchvision or a file."""

from pathlib import Path

import torch
from torch import nn

from fedsim.errors import ConfigError


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
    state = _imagenet_state() if weights == "imagenet" else _file_state(Path(weights))
    own = model.state_dict()
    if "fc.weight" not in state or state["fc.weight"].shape != own["fc.weight"].shape:
        state |= {"fc.weight": own["fc.weight"], "fc.bias": own["fc.bias"]}
    # Counts of batches are unused, and files of old releases of torch lack them.
    counts = {name: own[name] for name in own if name.endswith("num_batches_tracked")}
    state = counts | state
    misfits = sorted(
        name
        for name in own.keys() | state.keys()
        if name not in own or name not in state or own[name].shape != state[name].shape
    )
    if misfits:
        raise ConfigError(
            f"resnet18: expected {weights} to hold a ResNet-18 with norm: {norm}, found "
            f"{len(misfits)} tensors that are missing, unknown or of another shape, such as "
            f"{misfits[0]}; use another file, or the norm that this one was trained with"
        )
    model.load_state_dict(state)


def _imagenet_state() -> dict[str, torch.Tensor]:
    from torchvision.models import ResNet18_Weights

    try:
        return dict(ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:  # RuntimeError: the hash is wrong
        raise ConfigError(
            f"resnet18: expected to download {ResNet18_Weights.IMAGENET1K_V1.url}, found {error}; "
            "fetch that file by other means and set weights to its path"
        ) from error


def _file_state(path: Path) -> dict[str, torch.Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    # A file that is no state dict fails in as many ways as there are files.
    except Exception as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else type(error).__name__
        raise ConfigError(
            f"resnet18: expected weights to be imagenet or a state dict saved with torch.save, "
            f"found {path} ({reason}); check the path"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise ConfigError(
            f"resnet18: expected {path} to hold a dict of names to tensors, found "
            f"{type(state).__name__}; save model.state_dict() alone"
        )
    return dict(state)

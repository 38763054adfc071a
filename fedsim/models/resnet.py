"""ResNet-18 as FLAIR's reference implementations train it."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet, ResNet18_Weights

from fedsim.errors import ConfigError
from fedsim.models.frozen_batch_norm import FrozenBatchNorm2d

_MAX_GROUPS = 32


def resnet18(
    num_labels: int,
    *,
    norm: Literal["group", "frozen_batch"] = "group",
    weights: str | Path | None = None,
    trainable: Literal["all", "head"] = "all",
) -> ResNet:
    """Return torchvision's ResNet-18 (He et al. 2016) with a norm that suits private learning.

    Nothing in it works in place, so that Opacus's hooks can be attached. The names in the state
    dict are torchvision's. With k labels, 11,176,512 + 513 k parameters.

    FLAIR's two reference implementations train either from scratch with group normalization, or
    from ImageNet weights with frozen batch normalization; neither mixes the two, since weights
    that were trained with one norm are off scale under the other. That combination is refused.

    Args:
        num_labels: Number of outputs.
        norm: ``group``: GroupNorm with min(32, channels) groups and eps 1e-5. ``frozen_batch``:
            batch norm with the statistics that ``weights`` hold, never updated; without weights
            they are 0 and 1.
        weights: None for random weights, ``imagenet`` for torchvision's ``IMAGENET1K_V1`` (from
            torch's cache, downloaded when it is not there), or a local file with a state dict of
            the same norm. When the file's last layer is for another number of labels, or is
            missing, the model's own stays as it was initialized.
        trainable: ``all`` parameters, or the ``head``: the last layer alone.

    Raises:
        ConfigError: An argument is none of those named, or the weights can't be read or are of
            another model or norm.

    Examples:
        >>> model = resnet18(17, norm="frozen_batch")
        >>> sum(p.numel() for p in model.parameters())
        11185233
    """
    if num_labels < 1:
        raise ConfigError(
            f"resnet18: expected num_labels of at least 1, found {num_labels}; set it to the "
            "number of labels of the data"
        )
    if trainable not in ("all", "head"):
        raise ConfigError(
            f"resnet18: expected trainable to be all or head, found {trainable!r}; use one of them"
        )
    model = ResNet(
        _OutOfPlaceBlock, [2, 2, 2, 2], num_classes=num_labels, norm_layer=_norm_layer(norm)
    )
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    if weights is not None:
        _load_weights(model, weights, norm)
    if trainable == "head":
        model.requires_grad_(False)
        model.fc.requires_grad_(True)
    return model


class _OutOfPlaceBlock(BasicBlock):  # type: ignore[misc]  # torchvision is untyped
    """The basic block, adding the shortcut out of place: Opacus's backward hooks need that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        activations: torch.Tensor = self.relu(y + shortcut)
        return activations


def _norm_layer(norm: str) -> Callable[[int], nn.Module]:
    if norm == "group":
        return lambda channels: nn.GroupNorm(min(_MAX_GROUPS, channels), channels)
    if norm == "frozen_batch":
        return FrozenBatchNorm2d
    raise ConfigError(
        f"resnet18: expected norm to be group or frozen_batch, found {norm!r}; use one of them"
    )


def _load_weights(model: ResNet, weights: str | Path, norm: str) -> None:
    """Load a state dict in place, all of it but a last layer of another size."""
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

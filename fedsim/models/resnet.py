"""ResNet-18 as FLAIR's reference implementations train it."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.models.arguments import check_num_labels, check_trainable, train_only
from fedsim.models.frozen_batch_norm import FrozenBatchNorm2d
from fedsim.models.resnet_weights import load_weights

_MAX_GROUPS = 32


def resnet18(
    num_labels: int,
    *,
    norm: Literal["group", "frozen_batch"] = "group",
    weights: str | Path | None = None,
    trainable: Literal["all", "head"] = "all",
) -> "ResNet18":
    """Return ResNet-18 (He et al. 2016) with a norm that suits private learning.

    Names in the state dict, initial weights and outputs are those of torchvision's. Its own class
    is not used, since it adds the shortcut in place, which Opacus's hooks don't allow, and since
    importing it takes longer than importing torch. With k labels, 11,176,512 + 513 k parameters.

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
    check_num_labels("resnet18", num_labels)
    check_trainable("resnet18", trainable)
    model = ResNet18(num_labels, _norm_layer(norm))
    if weights is not None:
        load_weights(model, weights, norm)
    if trainable == "head":
        train_only(model, model.fc)
    return model


class ResNet18(nn.Module):
    """A stem, four stages of two blocks each, the mean over what is left of the image, a head.

    Args:
        num_labels: Number of outputs.
        norm: Builds a norm for so many channels.
    """

    def __init__(self, num_labels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(_Block(64, 64, 1, norm), _Block(64, 64, 1, norm))
        self.layer2 = nn.Sequential(_Block(64, 128, 2, norm), _Block(128, 128, 1, norm))
        self.layer3 = nn.Sequential(_Block(128, 256, 2, norm), _Block(256, 256, 1, norm))
        self.layer4 = nn.Sequential(_Block(256, 512, 2, norm), _Block(512, 512, 1, norm))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_labels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (n, num_labels) of images (n, 3, height, width)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


class _Block(nn.Module):
    """Two 3x3 convolutions, and the shortcut added out of place."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample = None
        if inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
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

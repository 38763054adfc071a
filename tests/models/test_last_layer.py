"""Which models train nothing but their last layer."""

import pytest
import torch
from fakes import FrozenModel
from torch import nn

from fedsim.models.last_layer import backbone_sha256, features, frozen_head
from fedsim.models.resnet import resnet18


def images(n: int = 2) -> torch.Tensor:
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_resnets_head() -> None:
    model = resnet18(3, norm="frozen_batch", trainable="head")
    head = frozen_head(model, images())
    assert head is not None
    assert [name for name, _ in head.named_parameters()] == ["fc.weight", "fc.bias"]
    assert head.linear is model.fc
    model.eval()
    assert torch.equal(head(features(model, images())), model(images()))


class Between(nn.Module):
    """A frozen body, something, a head that trains, something."""

    def __init__(self, before: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(3600, 5))
        self.body.requires_grad_(False)
        self.before, self.head, self.after = before, nn.Linear(5, 2), after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.after(self.head(self.before(self.body(x))))
        return y


def test_what_lies_around_a_head() -> None:
    assert frozen_head(Between(nn.ReLU(), nn.Identity()), images()) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (nn.Dropout(0.5), nn.Identity()),
        (nn.BatchNorm1d(5, affine=False), nn.Identity()),
        (nn.BatchNorm1d(5, affine=False, track_running_stats=False), nn.Identity()),
        (nn.PReLU(), nn.Identity()),
        (nn.Identity(), nn.Tanh()),
        (nn.Identity(), nn.Linear(2, 2).requires_grad_(False)),
    ],
    ids=["dropout", "statistics", "batch", "trains", "after", "not last"],
)
def test_features_that_are_no_substitute(before: nn.Module, after: nn.Module) -> None:
    model = Between(before, after)
    assert frozen_head(model, images(4)) is None
    assert model.training


def test_models_that_train_more_or_have_nothing_frozen() -> None:
    assert frozen_head(resnet18(3, norm="frozen_batch"), images()) is None
    assert frozen_head(nn.Sequential(nn.Flatten(), nn.Linear(3072, 2)), images()) is None


def test_the_hash_is_the_backbones() -> None:
    def hash_of(model: nn.Module) -> str:
        head = frozen_head(model, images())
        assert head is not None
        return backbone_sha256(model, head, (2, 3, 32, 32))

    model = FrozenModel(2)
    before = hash_of(model)
    with torch.no_grad():
        model.head.weight.add_(1)
    assert hash_of(model) == before
    with torch.no_grad():
        model.body[0].weight[3].mul_(1.0001)
    assert hash_of(model) != before
    other_code = FrozenModel(2)
    other_code.load_state_dict(model.state_dict())
    other_code.body[1] = nn.ReLU6()
    assert hash_of(other_code) == hash_of(model)  # where it makes no difference to what comes out
    other_code.body[1] = nn.ELU()
    assert hash_of(other_code) != hash_of(model)

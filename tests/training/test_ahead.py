"""What is made ahead is what would be made in turn."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from torch import nn

from fedsim.arrays import one_thread
from fedsim.data.dataset import Examples
from fedsim.data.transforms import Augmentation, Transform
from fedsim.loss import label_mean_loss
from fedsim.streams import torch_stream
from fedsim.training.ahead import ahead
from fedsim.training.local import LocalSettings, train_locally
from fedsim.training.step import mean_gradient

SIDE = 8


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("fedsim-ahead")]


def test_each_is_made_while_the_one_before_is_used() -> None:
    began = [threading.Event() for _ in range(4)]
    makers = set()

    def items() -> Iterator[int]:
        for number, event in enumerate(began):
            makers.add(threading.current_thread().name)
            event.set()
            yield number

    for number in ahead(items()):
        if number + 1 < len(began):
            assert began[number + 1].wait(10)
        assert not any(event.is_set() for event in began[number + 2 :])  # one ahead, no more
    assert len(makers) == 1
    assert threading.current_thread().name not in makers
    assert not threads()


def test_an_error_is_raised_in_its_turn_and_an_early_end_leaves_nothing() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("the second is broken")

    items = ahead(broken())
    assert next(items) == 1
    with pytest.raises(ValueError, match="the second is broken"):
        next(items)
    assert not threads()
    with closing(ahead(iter(range(100)))) as items:
        assert next(items) == 0
        assert threads()
    assert not threads()


def test_it_computes_with_one_torch_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(ahead(torch.get_num_threads() for _ in range(2))) == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@one_thread()
@pytest.mark.parametrize("poisson", [False, True])
@pytest.mark.parametrize("augmentation", ["flip", "random_crop", "random_resized_crop"])
def test_training_has_the_bits_of_a_plain_loop(augmentation: Augmentation, poisson: bool) -> None:
    stream = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (11, 3, 12, 12), dtype=torch.uint8, generator=stream)
    labels = torch.randint(0, 2, (11, 4), dtype=torch.uint8, generator=stream)
    transform = Transform(augmentation, SIDE, (0.5,) * 3, (0.25,) * 3)

    def model() -> nn.Module:
        linear = nn.Linear(3 * SIDE * SIDE, 4)
        nn.init.constant_(linear.weight, 0.01)
        nn.init.zeros_(linear.bias)
        return nn.Sequential(nn.Flatten(), linear)

    ours, theirs = model(), model()
    train_locally(
        list(ours.parameters()),
        mean_gradient(ours),
        Examples(images, labels),
        transform,
        LocalSettings(2, 4, 0.1, poisson=poisson),
        torch_stream(0, "batches"),
    )
    draws = torch_stream(0, "batches")
    for _ in range(2):
        order = torch.randperm(11, generator=draws) if not poisson else None
        for start in range(0, 12 if poisson else 11, 4):
            batch = (
                torch.nonzero(torch.rand(11, generator=draws) < 4 / 11).flatten()
                if order is None
                else order[start : start + 4]
            )
            inputs = transform.train_batch(images[batch], draws)
            theirs.zero_grad()
            if len(batch):
                label_mean_loss(theirs(inputs), labels[batch]).mean().backward()
                with torch.no_grad():
                    for parameter in theirs.parameters():
                        parameter -= 0.1 * parameter.grad
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("augmentation", ["none", "flip"])
def test_a_gradient_that_fails_leaves_no_thread(augmentation: Augmentation) -> None:
    examples = Examples(
        torch.zeros(8, 3, SIDE, SIDE, dtype=torch.uint8), torch.zeros(8, 2, dtype=torch.uint8)
    )

    def failing(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, list]:
        raise RuntimeError("no gradient")

    with pytest.raises(RuntimeError, match="no gradient"):
        train_locally(
            [],
            failing,
            examples,
            Transform(augmentation, SIDE, (0.5,) * 3, (0.5,) * 3),
            LocalSettings(1, 2, 0.1),
            torch_stream(0, "batches"),
        )
    assert not threads()

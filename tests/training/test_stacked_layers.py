"""A stack of layers: bits that are each user's own, losses and norms of extreme numbers."""

import dataclasses

import numpy as np
import pytest
import torch

from fedsim.arrays import one_thread
from fedsim.data.dataset import Examples
from fedsim.training.local import LocalSettings
from fedsim.training.stacked_layers import StackedForm, norms_of, train_stack
from fedsim.training.user_groups import grouped

SIZES = np.array([1, 2, 3, 4, 5, 7, 16, 17, 30, 33, 64, 90, 1, 2, 9, 12, 48, 3, 1, 1, 16, 31, 6])
PLAIN = LocalSettings(epochs=2, batch_size=16, learning_rate=0.1, channels_last=False)
FULL = dataclasses.replace(PLAIN, momentum=0.9, weight_decay=0.05, max_grad_norm=0.2)


def trained(start: StackedForm, examples: Examples, settings: LocalSettings, at_once: int):
    """Return each user's update, loss and norm, from groups of a size."""
    firsts = np.cumsum(SIZES) - SIZES
    results = {}
    for group in grouped(SIZES, settings, at_once):
        numbers = [np.arange(firsts[i], firsts[i] + SIZES[i]) for i in group.places]
        rows = torch.from_numpy(np.concatenate(numbers))
        own = Examples(examples.images[rows], examples.labels[rows])
        batches = group.batches(settings, lambda place: torch.Generator().manual_seed(place))
        updates, losses = train_stack(start, own, batches, group.num_steps, settings)
        norms = norms_of(updates)
        for i, place in enumerate(group.places.tolist()):
            results[place] = updates[i].clone(), losses[i], norms[i]
    return results


@pytest.mark.parametrize("settings", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize(
    ("features", "labels"), [(512, 17), (1280, 17), (520, 81), (100, 1), (2048, 3)]
)
@one_thread()
def test_bits_are_each_users_own(features: int, labels: int, settings: LocalSettings) -> None:
    """Products of other sizes are computed otherwise; so layers as wide as real ones, too."""
    generator = torch.Generator().manual_seed(0)
    total = int(SIZES.sum())
    images = torch.randn(total, features, generator=generator)
    wanted = (torch.rand(total, labels, generator=generator) < 0.2).to(torch.uint8)
    layer = {"w": torch.randn(labels, features, generator=generator) * 0.1, "b": torch.ones(labels)}
    start, examples = StackedForm.of(layer), Examples(images, wanted)
    alone = trained(start, examples, settings, 1)
    for at_once in (2, 5, 100):
        together = trained(start, examples, settings, at_once)
        assert together.keys() == alone.keys() == set(range(len(SIZES)))
        for place, (update, loss, norm) in together.items():
            assert torch.equal(update, alone[place][0])
            assert (loss, norm) == alone[place][1:]


@one_thread()
def test_losses_of_large_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(5, 40, generator=generator) * 100
    wanted = (torch.rand(5, 6, generator=generator) < 0.5).to(torch.uint8)
    layer = {"w": torch.randn(6, 40, generator=generator), "b": torch.randn(6, generator=generator)}
    settings = LocalSettings(epochs=1, batch_size=8, learning_rate=0.1)
    (group,) = grouped(np.array([5]), settings, 1)
    batches = group.batches(settings, lambda place: torch.Generator())
    losses = train_stack(
        StackedForm.of(layer), Examples(images, wanted), batches, group.num_steps, settings
    )[1]
    logits = images.double().numpy() @ layer["w"].double().numpy().T + layer["b"].numpy()
    assert np.abs(logits).max() > 1000
    expected = (np.logaddexp(0, logits) - wanted.numpy() * logits).sum()
    assert losses == pytest.approx([expected], rel=1e-5)


def test_norms_are_accurate_for_large_and_equal_elements() -> None:
    stack = torch.stack([torch.full((81, 1312), 0.1), torch.full((81, 1312), 1e25)])
    expected = stack.double().flatten(1).norm(dim=1)
    np.testing.assert_allclose(norms_of(stack), expected, rtol=3e-7)


def test_the_form_and_back() -> None:
    layer = {"weight": torch.randn(3, 50), "bias": torch.randn(3)}
    form = StackedForm.of(layer)
    assert form.matrix.shape == (3, 64)
    assert form.num_columns == 51
    assert float(form.matrix[:, 51:].abs().max()) == 0
    back = {name: torch.zeros_like(array) for name, array in layer.items()}
    form.copy_to(back)
    assert all(torch.equal(back[name], layer[name]) for name in layer)

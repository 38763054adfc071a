"""Fitted models against torch's own SGD, on users who each have a taste of their own."""

import functools

import numpy as np
import pytest
import torch
from fakes import NUM_LABELS, TinyDataset, tiny_app, tiny_arrays, tiny_model, tiny_transform

from fedsim.data.dataset import Examples
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import EngineError
from fedsim.evaluation.personalize import Fit, Personalized, personalize, write_personalized
from fedsim.flower_seam import to_record
from fedsim.metrics import average_precision
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer

FIT = Fit(share=0.5, epochs=1, batch_size=100, learning_rate=0.1, seed=0)


class Tastes(TinyDataset):
    """Every image of a user has the same one label, whatever it shows."""

    def __init__(self) -> None:
        super().__init__()
        taste = np.arange(len(self.table)) % NUM_LABELS
        owner = np.repeat(np.arange(len(self.table)), self.table.num_images)
        self._labels = taste[owner][:, None] == np.arange(NUM_LABELS)


def app(dataset: TinyDataset, **settings: object):
    local = LocalSettings(**{"epochs": 7, "batch_size": 3, "learning_rate": 9.0, **settings})
    return client_app(Trainer(tiny_model(), dataset, tiny_transform(), local, seed=0))


def fitted(
    fit: Fit = FIT, dataset: TinyDataset | None = None, workers: int = 1, **settings: object
) -> Personalized:
    dataset = dataset or Tastes()
    make = functools.partial(app, dataset, **settings)
    with InProcessGrid(make, tiny_arrays(), num_users=24, num_workers=workers) as grid:
        found = personalize(grid, dataset, to_record(tiny_arrays()), fit)
    assert found is not None
    return found


def images_of(dataset: TinyDataset, user: str, fit: Fit = FIT) -> tuple[Examples, Examples]:
    """A user's images that are trained on, and the others."""
    position = dataset.table.ids.index(user)
    size, start = int(dataset.table.num_images[position]), int(
        dataset.table.num_images[:position].sum()
    )  # fmt: skip
    order, cut = fit.order(user, size), fit.num_trained_on(size)
    assert sorted(order) == list(range(size))
    return dataset.load("test", start + order[:cut]), dataset.load("test", start + order[cut:])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_two_whole_batches_are_two_steps_of_torchs_sgd(momentum: float) -> None:
    """One batch holds all images that are trained on, so their order is not seen."""
    fit = Fit(share=0.5, epochs=2, batch_size=100, learning_rate=0.1, seed=0)
    found = fitted(fit, momentum=momentum)
    dataset, transform = Tastes(), tiny_transform()
    row = 0
    for user, num_scored in zip(
        found.results.users.ids, found.results.users.num_images, strict=True
    ):
        trained_on, rest = images_of(dataset, user, fit)
        assert len(rest) == num_scored
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        for _ in range(2):
            optimizer.zero_grad()
            outputs = model(transform.eval_batch(trained_on.images))
            torch.nn.functional.binary_cross_entropy_with_logits(
                outputs, trained_on.labels.float()
            ).backward()
            optimizer.step()
        with torch.no_grad():
            expected = model(transform.eval_batch(rest.images)).numpy()
            untouched = tiny_model()(transform.eval_batch(rest.images)).numpy()
        rows = slice(row, row + len(rest))
        np.testing.assert_allclose(found.fitted[rows], expected, atol=1e-5)
        np.testing.assert_allclose(found.plain[rows], untouched, atol=1e-5)
        np.testing.assert_array_equal(found.targets[rows], rest.labels.numpy())
        row += len(rest)
    assert row == len(found.plain)


def test_no_epoch_is_the_global_model_bit_for_bit() -> None:
    found = fitted(Fit(share=0.5, epochs=0, batch_size=4, learning_rate=0.1, seed=0))
    np.testing.assert_array_equal(found.fitted, found.plain)
    summary = found.summary()
    assert summary["global"] == summary["personalized"]
    assert summary["per_user"]["gain"]["mean"] == 0
    assert summary["per_user"]["share_better"] == 0


def test_users_with_a_taste_of_their_own_gain() -> None:
    found = fitted(Fit(share=0.5, epochs=5, batch_size=2, learning_rate=0.1, seed=0))
    summary = found.summary()
    both = [summary[model]["micro_ap"] for model in ("global", "personalized")]
    assert both == [
        average_precision(found.targets, logits, average="micro")
        for logits in (found.plain, found.fitted)
    ]
    assert both[0] < 0.6
    assert both[1] > 0.9
    assert summary["per_user"]["gain"]["mean"] > 0.3
    assert summary["per_user"]["gain"]["q10"] >= 0


def test_users_of_one_image_are_left_out() -> None:
    sizes = TinyDataset().table.num_images
    found = fitted()
    assert found.num_left_out == (sizes == 1).sum() > 0
    assert len(found.results.users) == (sizes > 1).sum()
    together = found.num_trained_on + found.results.users.num_images
    np.testing.assert_array_equal(together, sizes[sizes > 1])


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_both_parts_hold_an_image(share: float) -> None:
    fit = Fit(share=share, epochs=1, batch_size=8, learning_rate=0.1, seed=0)
    for size in range(2, 300):
        cut = fit.num_trained_on(size)
        assert 1 <= cut < size
        assert cut == int(share * size) or cut in (1, size - 1)


def test_the_split_is_a_function_of_seed_and_user() -> None:
    def order(seed: int, user: str) -> list[int]:
        return Fit(0.5, 1, 8, 0.1, seed).order(user, 40).tolist()

    assert order(0, "a") == order(0, "a")
    assert order(0, "a") != order(1, "a")
    assert order(0, "a") != order(0, "b")
    # Which half an image falls into is drawn: over users each is trained on half the time.
    halves = np.zeros(40)
    for number in range(400):
        halves[order(0, f"user{number}")[:20]] += 1
    assert abs(halves - 200).max() < 6 * np.sqrt(400 / 4)


@pytest.mark.parametrize("settings", [{}, {"poisson": True}])
def test_the_same_bits_for_any_number_of_workers(settings: dict) -> None:
    """And for a run whose users draw their batches by Poisson sampling: this one is not private."""
    fit = Fit(share=0.5, epochs=2, batch_size=2, learning_rate=0.1, seed=0)
    one, two = fitted(fit), fitted(fit, workers=2, **settings)
    np.testing.assert_array_equal(one.fitted, two.fitted)
    np.testing.assert_array_equal(one.plain, two.plain)


def test_many_images_are_scored_in_parts(monkeypatch) -> None:
    whole = fitted()
    monkeypatch.setattr("fedsim.training.trainer._SCORED_AT_ONCE", 2)
    np.testing.assert_allclose(fitted().fitted, whole.fitted, atol=1e-6)


def test_a_rate_that_diverges_is_named() -> None:
    with pytest.raises(EngineError, match=r"personalization, user 'user0.*: expected finite"):
        fitted(Fit(share=0.5, epochs=20, batch_size=1, learning_rate=1e30, seed=0))


def test_nobody_with_two_images_is_none() -> None:
    dataset = TinyDataset()
    dataset.table.num_images[:] = 1
    with InProcessGrid(tiny_app, tiny_arrays(), num_users=24) as grid:
        assert personalize(grid, dataset, to_record(tiny_arrays()), FIT) is None


def test_the_table_has_a_row_per_user(tmp_path) -> None:
    found = fitted()
    write_personalized(tmp_path, found)
    header, first, *_ = (tmp_path / "personalized_users.csv").read_text().splitlines()
    assert header.split(",") == [
        "user", "num_trained_on", "num_scored", "micro_ap", "loss", "global_micro_ap", "global_loss"
    ]  # fmt: skip
    assert first.split(",")[0] == found.results.users.ids[0]
    assert float(first.split(",")[4]) == pytest.approx(found.results.loss[0], rel=1e-8)

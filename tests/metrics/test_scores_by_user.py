"""Scores of single users against scikit-learn and torch, one user at a time."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from fedsim.errors import DataError
from fedsim.metrics import average_precision, per_user
from fedsim.metrics.per_user import average_precision_by_user, loss_by_user

RNG = np.random.default_rng(0)
SIZES = np.array([1, 4, 1, 7, 2, 30])
TARGETS = RNG.random((45, 5)) < 0.3
TARGETS[:, 0] = ~TARGETS[:, 1]  # every image has a label and lacks one
SCORES = np.round(RNG.normal(size=(45, 5)), 1).astype(np.float32)  # with ties
SLICES = [slice(end - size, end) for size, end in zip(SIZES, np.cumsum(SIZES), strict=True)]


@pytest.mark.parametrize("cells", [1, 20, 2**20])  # a user at a time, a few, all
def test_micro_ap_is_scikit_learns_of_each_user(monkeypatch, cells: int) -> None:
    monkeypatch.setattr(per_user, "_CELLS", cells)
    found = average_precision_by_user(TARGETS, SCORES, SIZES)
    assert found.shape == (6,)
    for value, rows in zip(found, SLICES, strict=True):
        expected = average_precision_score(TARGETS[rows].ravel(), SCORES[rows].ravel())
        assert value == pytest.approx(expected, abs=1e-12)


def test_one_user_with_everything_is_micro_ap() -> None:
    [found] = average_precision_by_user(TARGETS, SCORES, np.array([45]))
    assert found == pytest.approx(average_precision(TARGETS, SCORES, average="micro"), abs=1e-12)


def test_undefined_without_a_positive_or_without_a_negative() -> None:
    targets = np.array([[0, 0], [1, 1], [0, 1]])
    scores = np.array([[0.2, 0.1], [0.2, 0.1], [0.2, 0.1]])
    found = average_precision_by_user(targets, scores, np.array([1, 1, 1]))
    np.testing.assert_array_equal(found, [np.nan, np.nan, 0.5])


@pytest.mark.parametrize("cells", [1, 2**20])
def test_loss_is_torchs_of_each_user(monkeypatch, cells: int) -> None:
    monkeypatch.setattr(per_user, "_CELLS", cells)
    for value, rows in zip(loss_by_user(TARGETS, SCORES, SIZES), SLICES, strict=True):
        expected = torch.nn.functional.binary_cross_entropy_with_logits(
            torch.from_numpy(SCORES[rows]).double(), torch.from_numpy(TARGETS[rows]).double()
        )
        assert value == pytest.approx(float(expected), rel=1e-12)


def test_users_without_images_have_no_figure() -> None:
    sizes = np.array([0, 45, 0])
    for figure in (average_precision_by_user, loss_by_user):
        assert np.isnan(figure(TARGETS, SCORES, sizes)).tolist() == [True, False, True]


def test_nobody_has_nothing() -> None:
    nothing = np.empty((0, 3))
    assert average_precision_by_user(nothing, nothing, np.empty(0, dtype=int)).shape == (0,)


@pytest.mark.parametrize("sizes", [[44], [-1, 46], [[45]], [45.0]])
def test_sizes_that_are_not_all_rows_are_refused(sizes: list) -> None:
    with pytest.raises(DataError, match="num_images: expected each user's number of images, 45"):
        average_precision_by_user(TARGETS, SCORES, np.array(sizes))

"""How users' results are spread, against sums over sorted lists."""

import csv
import math
import statistics

import numpy as np
import pytest

from fedsim.data.dataset import UserTable
from fedsim.errors import CheckpointError
from fedsim.evaluation.per_user import UserResults, by_num_images, spread, write_table, write_users


@pytest.mark.parametrize(("num_users", "tail"), [(1, 1), (10, 1), (11, 2), (100, 10), (101, 11)])
def test_the_worst_decile_is_a_tenth_rounded_up(num_users: int, tail: int) -> None:
    values = np.random.default_rng(num_users).permutation(num_users).astype(np.float64)
    assert spread(values)["worst_decile_mean"] == (tail - 1) / 2
    highest = spread(values, worst="highest")["worst_decile_mean"]
    assert highest == pytest.approx(num_users - 1 - (tail - 1) / 2)


def test_a_spread_is_that_of_the_users_who_have_the_figure() -> None:
    known = [0.9, 0.1, 0.4, 0.2]
    found = spread(np.array([0.9, math.nan, 0.1, 0.4, math.nan, 0.2]))
    assert (found["num_users"], found["num_undefined"]) == (4, 2)
    assert found["mean"] == pytest.approx(statistics.fmean(known))
    assert found["stddev"] == pytest.approx(statistics.pstdev(known))
    quartiles = statistics.quantiles(known, n=4, method="inclusive")
    assert [found[name] for name in ("q25", "median", "q75")] == pytest.approx(quartiles)
    assert found["q10"] == pytest.approx(0.13)
    assert found["q90"] == pytest.approx(0.75)


def test_nobody_has_a_reason_in_place_of_numbers() -> None:
    found = spread(np.array([math.nan]))
    assert (found["num_users"], found["num_undefined"], found["mean"]) == (0, 1, None)
    assert found["worst_decile_mean"] is None
    assert found["reason"] == "no user has this figure"


def test_sizes_double_from_bucket_to_bucket() -> None:
    sizes = np.array([1, 2, 3, 4, 7, 8, 64, 127, 128])
    loss = np.arange(9.0)
    loss[5] = np.nan
    rows = by_num_images(sizes, {"loss": loss})
    assert [(row["num_images"], row["num_users"], row["loss"]) for row in rows] == [
        ([1, 1], 1, 0.0),
        ([2, 3], 2, 1.5),
        ([4, 7], 2, 3.5),
        ([8, 15], 1, None),
        ([64, 127], 2, 6.5),
        ([128, 255], 1, 8.0),
    ]


def results() -> UserResults:
    """Three users, the model the surer the later they come; the second has no label."""
    targets = np.array([[1, 0], [0, 1], [0, 0], [1, 0]], dtype=np.bool_)
    right = np.where(targets, 1, -1) * np.array([[1], [1], [2], [3]], dtype=np.float32)
    right = right.astype(np.float32)
    users = UserTable(("a,1", "b", "c"), np.array([2, 1, 1]))
    return UserResults.of(users, targets, right, -right)


def test_gain_is_what_the_model_adds_to_the_reference() -> None:
    # Right: AP 1. Turned around, tied groups: of four pairs two positive, 2/4; of two one, 1/2.
    found = results()
    np.testing.assert_array_equal(found.gain, [0.5, np.nan, 0.5])
    summary = found.summary("initial")
    assert summary["gain"]["mean"] == 0.5
    assert (summary["share_better"], summary["share_worse"]) == (1.0, 0.0)
    assert summary["initial_micro_ap"]["mean"] == 0.5
    losses = [math.log1p(math.exp(-margin)) for margin in (1, 2, 3)]
    assert summary["loss"]["mean"] == pytest.approx(statistics.fmean(losses))
    # The largest loss is the worst one; of 3 users a tenth, rounded up, is 1.
    assert summary["loss"]["worst_decile_mean"] == pytest.approx(losses[0])
    assert summary["initial_loss"]["worst_decile_mean"] == pytest.approx(math.log1p(math.exp(3)))
    assert [row["gain"] for row in summary["by_num_images"]] == [0.5, 0.5]


def test_the_table_has_a_row_per_user(tmp_path) -> None:
    write_users(tmp_path, {"test": results(), "train": results()})
    with (tmp_path / "users.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["split"], row["user"], row["num_images"]) for row in rows[2:4]] == [
        ("test", "c", "1"),
        ("train", "a,1", "2"),
    ]
    assert (rows[0]["micro_ap"], rows[0]["initial_micro_ap"]) == ("1", "0.5")
    assert (rows[1]["micro_ap"], rows[1]["loss"]) == ("", "0.126928011")
    assert [path.name for path in tmp_path.iterdir()] == ["users.csv"]


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="expected to write a row per user, found No such"):
        write_table(tmp_path / "none" / "users.csv", ("a",), [])

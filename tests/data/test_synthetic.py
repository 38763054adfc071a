"""The synthetic collection: FLAIR's published statistics, users' styles, signs that can be learnt.

Published figures: Song, Granqvist and Talwar (2022), the code's ``explore_labels.ipynb``.
"""

import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from fedsim.data.decode import decode_image
from fedsim.data.index import ImageIndex, LabelRows, StoredImages
from fedsim.data.sources import open_dataset
from fedsim.data.synthetic import SyntheticImages, scan_synthetic
from fedsim.data.synthetic_images import draw_image
from fedsim.data.synthetic_labels import CLASS_OF_FINE, COARSE_NAMES, FINE_NAMES
from fedsim.errors import ConfigError

COARSE_COUNTS = {
    "structure": 228_923, "equipment": 225_862, "material": 139_733, "outdoor": 131_322,
    "plant": 123_363, "food": 110_792, "animal": 68_858, "liquid": 68_677, "art": 37_230,
    "interior_room": 32_042, "light": 11_326, "recreation": 5_651, "celebration": 3_769,
    "fire": 3_011, "music": 2_571, "games": 1_093, "religion": 866,
}  # fmt: skip
TOP_FINE_COUNTS = {
    "wood_processed": 82_336, "material": 74_807, "structure": 61_517, "grass": 44_741,
    "plate": 42_392, "plant": 42_009, "blue_sky": 41_043, "foliage": 40_793, "cloudy": 36_225,
    "tree": 33_984, "textile": 33_709, "building": 32_349, "rocks": 28_850, "container": 25_189,
    "land": 24_715, "sky": 24_669, "fence": 24_249, "food": 23_752, "interior_room": 23_254,
    "vegetation": 23_106,
}  # fmt: skip


@pytest.fixture(scope="module")
def flair() -> ImageIndex:
    return scan_synthetic().images.index


@pytest.fixture(scope="module")
def small() -> SyntheticImages:
    images = scan_synthetic(300).images
    assert isinstance(images, SyntheticImages)
    return images


def summary(values: np.ndarray) -> list[float]:
    return [values.mean(), values.std(ddof=1), *np.percentile(values, [0, 25, 50, 75, 100])]


def distinct_per_user(index: ImageIndex, rows: LabelRows) -> np.ndarray:
    bounds = rows.indptr[index.user_offsets].tolist()
    return np.array([len(set(rows.indices[a:b].tolist())) for a, b in itertools.pairwise(bounds)])


def test_users_and_images_are_flairs(flair) -> None:
    sizes = np.diff(flair.user_offsets)
    for split, users, images in (
        ("train", 41_131, 345_879), ("val", 5_141, 39_239), ("test", 5_142, 43_960),
    ):  # fmt: skip
        first, stop = flair.users_of(split)
        assert (stop - first, sizes[first:stop].sum()) == (users, images)
        ids = flair.user_ids.cut(first, stop)
        assert list(ids) == sorted(ids)
    assert len(set(flair.user_ids.cut(0, 51_414))) == 51_414
    assert len(set(flair.image_ids.cut(0, 429_078))) == 429_078
    assert flair.user_ids[7].endswith("@N00")
    assert (flair.user_ids[7][:8] + flair.image_ids[7]).isdigit()
    assert summary(sizes) == pytest.approx([8.3455, 51.276, 1, 1, 2, 5, 4151], rel=0.05)


@pytest.mark.parametrize(
    ("label_set", "per_image", "per_user"),
    [
        ("coarse", [2.7852, 1.1492, 1, 2, 3, 4, 9], [4.6086, 2.8111, 1, 3, 4, 6, 17]),
        ("fine", [4.6148, 2.7296, 1, 3, 4, 6, 36], [16.813, 32.667, 1, 4, 7, 16, 838]),
    ],
)
def test_labels_per_image_and_per_user_are_flairs(flair, label_set, per_image, per_user) -> None:
    rows = flair.labels[label_set]
    assert summary(np.diff(rows.indptr)) == pytest.approx(per_image, rel=0.05)
    assert summary(distinct_per_user(flair, rows)) == pytest.approx(per_user, rel=0.05)


def test_label_counts_are_flairs(flair) -> None:
    for label_set, published, number in (
        ("coarse", COARSE_COUNTS, 17), ("fine", TOP_FINE_COUNTS, 1_628),
    ):  # fmt: skip
        rows = flair.labels[label_set]
        counts = np.bincount(rows.indices, minlength=number)
        assert list(rows.names) == sorted(set(rows.names))
        assert len(rows.names) == number
        assert counts.min() >= 1
        found = dict(zip(rows.names, counts.tolist(), strict=True))
        assert {name: found[name] for name in published} == pytest.approx(published, rel=0.05)
        frequent = sorted(found, key=found.__getitem__, reverse=True)[: len(published)]
        assert set(frequent) == set(published)


def test_an_image_has_the_coarse_labels_of_its_fine_ones(flair) -> None:
    assert set(COARSE_NAMES) < set(FINE_NAMES)
    for name in COARSE_NAMES:
        assert COARSE_NAMES[CLASS_OF_FINE[FINE_NAMES.index(name)]] == name
    coarse, fine = flair.labels["coarse"], flair.labels["fine"]
    image = np.repeat(np.arange(len(flair)), np.diff(fine.indptr))
    derived = np.sort(image * 17 + CLASS_OF_FINE[fine.indices])
    derived = derived[np.diff(derived, prepend=-1) > 0]  # np.unique takes seconds
    listed = np.repeat(np.arange(len(flair)), np.diff(coarse.indptr)) * 17 + coarse.indices
    assert np.array_equal(derived, listed)
    # Within an image, fine labels are sorted, each once.
    assert (np.diff(image * 1_628 + fine.indices.astype(np.int64)) > 0).all()


@pytest.mark.parametrize(("label_set", "most"), [("coarse", 0.9), ("fine", 0.75)])
def test_users_prefer_some_labels(flair, label_set, most) -> None:
    """Labels that are shuffled between all images give users more distinct ones."""
    rows = flair.labels[label_set]
    shuffled = np.random.default_rng(0).permutation(rows.indices)
    mixed = LabelRows(rows.names, rows.indptr, shuffled)
    sizes = np.diff(flair.user_offsets)
    some = (sizes >= 5) & (sizes <= 50)
    own, others = (distinct_per_user(flair, r)[some].mean() for r in (rows, mixed))
    assert own < most * others


def test_the_same_bits_each_time_in_any_order(small) -> None:
    again = pickle.loads(pickle.dumps(scan_synthetic(300).images))
    assert again.index.sha256() == small.index.sha256()
    rows = [0, 5, 1_000, 2, 5]
    one_by_one = [next(again.read([row])) for row in reversed(rows)][::-1]
    for a, b in zip(small.read(rows), one_by_one, strict=True):
        assert np.array_equal(a, b)
    first = next(small.read([0]))
    assert (first.shape, first.dtype) == ((64, 64, 3), np.uint8)
    assert not np.array_equal(first, next(small.read([1])))
    other = scan_synthetic(300, seed=1).images
    assert other.index.sha256() != small.index.sha256()
    assert not np.array_equal(first, draw_image(1, 0, 0, [3]))


def test_a_population_has_the_size_that_is_asked_for() -> None:
    for size, expected in ((50, (50, 6, 6)), (1, (1, 1, 1)), (8_000, (8_000, 1_000, 1_000))):
        index = scan_synthetic(size).images.index
        bounds = [index.users_of(split) for split in ("train", "val", "test")]
        assert tuple(stop - first for first, stop in bounds) == expected
        assert [len(index.labels[name].names) for name in ("coarse", "fine")] == [17, 1_628]
        assert len(set(index.user_ids.cut(0, len(index.user_ids)))) == sum(expected)
    sizes = np.diff(index.user_offsets)
    assert summary(sizes)[3:6] == [1, 2, 5]
    assert sizes.mean() == pytest.approx(8.3455, rel=0.05)
    with pytest.raises(ConfigError, match="population_size: expected 1 to 10,000,000"):
        scan_synthetic(0)


def pixels(images: StoredImages, rows: np.ndarray, size: int) -> np.ndarray:
    drawn = [decode_image(image, size).ravel() for image in images.read(rows.tolist())]
    return np.array(drawn, dtype=np.float32) / 255


def test_classes_can_be_learnt_across_users() -> None:
    """On new users, ridge regression on 8 x 8 pixels beats the constant predictor's macro AP."""
    images = scan_synthetic(400).images
    index, rng = images.index, np.random.default_rng(0)
    first_val = index.user_offsets[index.users_of("val")[0]]
    rows, new_rows = rng.choice(first_val, 1_500, replace=False), np.arange(first_val, len(index))
    x, x_new = pixels(images, rows, 8), pixels(images, new_rows, 8)
    y, y_new = (index.labels["coarse"].dense(r) for r in (rows, new_rows))
    mean = x.mean(0)
    gram = (x - mean).T @ (x - mean) + 5 * np.eye(x.shape[1], dtype=np.float32)
    scores = (x_new - mean) @ np.linalg.solve(gram, (x - mean).T @ (y - y.mean(0)))
    common = np.flatnonzero(y_new.sum(0) >= 20)
    assert len(common) >= 9
    precisions = [average_precision_score(y_new[:, k], scores[:, k]) for k in common]
    constant = y_new[:, common].mean()
    assert constant + 0.15 < np.mean(precisions) < 0.9


def test_a_user_has_a_style(small) -> None:
    """From the mean colour and the brightness of quarters alone, two users are told apart."""
    sizes = np.diff(small.index.user_offsets)
    users = np.flatnonzero(sizes >= 16)[:12]
    right = []
    for one, two in zip(users[::2], users[1::2], strict=False):
        rows = np.concatenate([small.index.user_offsets[u] + np.arange(16) for u in (one, two)])
        x, y = pixels(small, rows, 2), np.repeat([0, 1], 16)
        seen = np.arange(32) % 2 == 0
        model = LogisticRegression(C=10, max_iter=200).fit(x[seen], y[seen])
        right.append(model.score(x[~seen], y[~seen]))
    assert np.mean(right) > 0.8


def test_the_source_is_opened_by_name() -> None:
    dataset = open_dataset("synthetic", labels="fine", image_size=32, population_size=20)
    examples = dataset.load("val", np.arange(3))
    assert len(dataset.users("train")) == 20
    assert examples.images.shape == (3, 3, 32, 32)
    assert examples.labels.shape == (3, 1_628)
    images = scan_synthetic(20).images
    start = int(images.index.user_offsets[20])
    expected = decode_image(next(images.read([start])), 32)
    assert np.array_equal(examples.images[0].permute(1, 2, 0).numpy(), expected)


def test_a_run_trains_on_it(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(
        "name: tiny\n"
        "data: {source: synthetic, population_size: 50, image_size: 16, max_images_per_user: 8}\n"
        "model: {name: cnn, channels: [8]}\n"
        "federated: {num_rounds: 2, cohort_size: 5}\n"
        "evaluation: {bootstrap_resamples: 0}\n"
        "engine: {workers: 1}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "fedsim.cli", "run", "tiny.yaml", "--out", "runs"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sizes = np.diff(scan_synthetic(50).images.index.user_offsets)[:50]
    left_out = np.maximum(sizes - 8, 0).sum()
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/**/summary.json"))
    assert summary["config"]["data"]["source"] == "synthetic"
    assert summary["num_rounds"] == 2
    assert summary["num_images_left_out"] == left_out

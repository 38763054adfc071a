"""Episodes, learners and scores, beside stored episodes over real digits."""

import json
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation import learners
from fedsim.evaluation.episode_files import (
    check_fit,
    load_episodes,
    read_features,
    store_episodes,
)
from fedsim.evaluation.episodes import (
    Episode,
    Episodes,
    EpisodeShape,
    draw_episodes,
    episodes_of_runs,
)
from fedsim.evaluation.few_shot import score_run, score_runs, worst

CASE = Path(__file__).parent / "cases" / "fewshot_digits"
EXPECTED = json.loads((CASE / "expected.json").read_text())
LEARNERS = {
    "ncm_euclid": learners.nearest_centroid,
    "ncm_cosine": learners.nearest_centroid_cosine,
    "1nn": learners.nearest_neighbor,
    "zero": learners.constant,
}


def digits() -> tuple[dict[str, np.ndarray], np.ndarray]:
    found = load_digits()
    whole = found.images / 16
    halves = {
        "top": whole[:, :4],
        "bottom": whole[:, 4:],
        "left": whole[:, :, :4],
        "right": whole[:, :, 4:],
    }
    flat = {name: images.reshape(len(whole), -1) for name, images in halves.items()}
    return {"raw": whole.reshape(len(whole), -1), **flat}, found.target.astype(np.int64)


@pytest.mark.parametrize("learner", LEARNERS)
def test_stored_episodes_over_digits(learner: str) -> None:
    inputs, labels = digits()
    runs = load_episodes(CASE / "episodes.npz")
    check_fit(CASE, runs, labels)
    for data_set, features in inputs.items():
        scores = score_runs(LEARNERS[learner], features, runs)
        for run, score in enumerate(scores):
            known = EXPECTED["per_run"][f"{learner}|{data_set}|{run}"]
            assert (score.num_correct, score.num_queries) == (known["correct"], 57000)
            assert score.accuracy == pytest.approx(known["mean"], abs=1e-15)
            assert score.half_width == pytest.approx(known["ci95_t"], abs=1e-15)
        lowest = EXPECTED["min_over_seeds"][learner][data_set]
        assert worst(scores).accuracy == pytest.approx(lowest, abs=1e-15)
        if learner == "zero":
            assert {(score.accuracy, score.half_width) for score in scores} == {(0.2, 0.0)}
        if (learner, data_set) == ("ncm_euclid", "raw"):
            assert scores[0].num_correct == 50803
            assert round(scores[0].half_width or 0, 8) == 0.00431588


@given(
    ways=st.integers(2, 4),
    shots=st.integers(1, 3),
    queries=st.integers(1, 3),
    seed=st.integers(0, 5),
    sizes=st.lists(st.integers(6, 9), min_size=4, max_size=7),
)
def test_episodes_are_what_they_should_be(
    ways: int, shots: int, queries: int, seed: int, sizes: list[int]
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))
    drawn = draw_episodes(labels, EpisodeShape(ways, shots, queries), 3, seed=seed)
    assert drawn.indices.shape == (3, ways, shots + queries)
    for classes, rows in zip(drawn.classes, drawn.indices, strict=True):
        assert len(set(classes.tolist())) == ways
        assert len(set(rows.ravel().tolist())) == rows.size
        assert (labels[rows] == classes[:, None]).all()
    check_fit(Path("drawn"), [drawn], labels)
    more = draw_episodes(labels, EpisodeShape(ways, shots, queries), 5, seed=seed)
    assert np.array_equal(more.indices[:3], drawn.indices)
    other = draw_episodes(labels, EpisodeShape(ways, shots, queries), 3, seed=seed, run=1)
    assert not np.array_equal(other.indices, drawn.indices)


def test_classes_and_images_are_drawn_uniformly() -> None:
    labels = np.repeat(np.arange(6), [10, 20, 10, 10, 10, 10])  # size does not count
    drawn = draw_episodes(labels, EpisodeShape(3, 2, 2), 2000, seed=0)
    counts = Counter(drawn.classes.ravel().tolist())
    assert scipy.stats.chisquare([counts[k] for k in range(6)]).pvalue > 1e-3
    of_first = drawn.indices[drawn.classes == 0]
    in_support = np.bincount(of_first[:, :2].ravel(), minlength=10)
    assert scipy.stats.chisquare(in_support).pvalue > 1e-3


def test_fixed_and_per_run_episodes() -> None:
    labels = np.arange(100) % 5
    shape = EpisodeShape(2, 1, 3)
    fixed = episodes_of_runs(labels, shape, 4, num_runs=3)
    assert all(np.array_equal(run.indices, fixed[0].indices) for run in fixed)
    own = episodes_of_runs(labels, shape, 4, num_runs=3, episode_seed="per_run")
    assert np.array_equal(own[0].indices, fixed[0].indices)
    assert len({run.indices.tobytes() for run in own}) == 3
    seeds = []
    score_runs(lambda e: seeds.append(e.seed) or np.zeros(6, int), labels, fixed, seed=7)
    assert seeds == [7] * 4 + [8] * 4 + [9] * 4  # what varies is what learners draw


def test_mean_and_interval_over_episodes() -> None:
    labels = np.arange(90) % 3
    drawn = draw_episodes(labels, EpisodeShape(3, 2, 4), 9, seed=1)

    def guess(episode: Episode) -> np.ndarray:
        return np.random.default_rng(episode.number).integers(0, 3, len(episode.queries))

    truth = np.repeat(np.arange(3), 4)
    shares = [np.mean(np.random.default_rng(k).integers(0, 3, 12) == truth) for k in range(9)]
    low, high = scipy.stats.t.interval(
        0.95, 8, loc=statistics.fmean(shares), scale=statistics.stdev(shares) / 3
    )
    score = score_run(guess, labels, drawn)
    assert score.accuracy == pytest.approx((low + high) / 2)
    assert score.half_width == pytest.approx((high - low) / 2)
    one = draw_episodes(labels, EpisodeShape(3, 2, 4), 1, seed=1)
    assert score_run(guess, labels, one).half_width is None


def test_a_learner_that_knows_is_right() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([4, 9, 2, 7], 12))

    def knows(episode: Episode) -> np.ndarray:
        of = dict(zip(episode.support.tolist(), episode.support_classes.tolist(), strict=True))
        return np.array([of[label] for label in episode.queries.tolist()])

    drawn = draw_episodes(labels, EpisodeShape(3, 2, 5), 20, seed=0)
    assert score_run(knows, labels, drawn).accuracy == 1


def test_the_logistic_head_is_scikit_learn_s() -> None:
    inputs, labels = digits()
    drawn = draw_episodes(labels, EpisodeShape(), 3, seed=3)
    with threadpool_limits(1):
        for number in range(len(drawn)):
            for features in (inputs["raw"] * 3, inputs["top"]):
                episode = drawn.episode(number, features, 0)
                reference = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000)
                reference.fit(episode.support, episode.support_classes)
                agreed = learners.logistic_head(episode) == reference.predict(episode.queries)
                assert agreed.all()


def test_the_logistic_head_on_fewer_features_than_images_and_on_nothing() -> None:
    rng = np.random.default_rng(0)
    support = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 4, axis=0) + rng.random((12, 2))
    classes = np.repeat(np.arange(3), 4)
    queries = np.array([[8.0, 1.0], [0.0, 8.0], [1.0, 0.0]])
    episode = Episode(support, classes, queries, 3, 0, 0)
    assert learners.logistic_head(episode).tolist() == [1, 2, 0]
    blank = Episode(np.zeros((12, 2)), classes, np.zeros((3, 2)), 3, 0, 0)
    for learner in (learners.logistic_head, learners.nearest_centroid_cosine):
        assert learner(blank).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("labels", "shape", "message"),
    [
        ([0] * 24 + [1] * 23 + [2] * 24, (2, 5, 19), r"at least 24 images .* fewer of 1 \(23\)"),
        ([0] * 3 + [1] * 3, (3, 1, 2), "at least num_ways = 3, found 2"),
    ],
)
def test_too_small_data(labels: list[int], shape: tuple[int, int, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        draw_episodes(np.array(labels), EpisodeShape(*shape), 2, seed=0)


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (lambda e: np.zeros(3, int), "expected 4 whole numbers"),
        (lambda e: np.zeros(4), "found shape .* of float64"),
        (lambda e: np.full(4, 2), "classes from 0 to 1, found 2 to 2"),
        (lambda e: 1 / 0, "learner mine: .*ZeroDivisionError"),
    ],
)
def test_learners_that_can_not_be_used(learner: object, message: str) -> None:
    labels = np.arange(20) % 2
    drawn = draw_episodes(labels, EpisodeShape(2, 1, 2), 2, seed=0)
    with pytest.raises(ConfigError, match=message):
        score_run(learner, labels, drawn, name="mine")  # type: ignore[arg-type]


def test_sizes_out_of_range() -> None:
    with pytest.raises(ConfigError, match="num_ways: expected at least 2, found 1"):
        EpisodeShape(1, 5, 5)
    labels = np.arange(20) % 2
    with pytest.raises(ConfigError, match="num_episodes"):
        draw_episodes(labels, EpisodeShape(2, 1, 2), 0, seed=0)
    with pytest.raises(ConfigError, match="num_runs"):
        episodes_of_runs(labels, EpisodeShape(2, 1, 2), 1, num_runs=0)


def test_episodes_are_stored_and_replayed(tmp_path: Path) -> None:
    labels = np.arange(100) % 5
    runs = episodes_of_runs(labels, EpisodeShape(3, 2, 4), 7, num_runs=2, episode_seed="per_run")
    path = tmp_path / "episodes.npz"
    store_episodes(path, runs)
    back = load_episodes(path)
    assert [run.num_shots for run in back] == [2, 2]
    for one, other in zip(runs, back, strict=True):
        assert np.array_equal(one.indices, other.indices)
        assert np.array_equal(one.classes, other.classes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, i: i.__setitem__((1, 0, 0), 100), "episode 1: expected rows from 0 to 99"),
        (lambda c, i: c.__setitem__((2, 0), c[2, 1]), "episode 2: .*another class"),
        (lambda c, i: i.__setitem__((0, 1, 5), i[0, 1, 0]), "episode 0: .*an image twice"),
        (
            lambda c, i: (c[0].fill(c[0, 0]), i[0].__setitem__(slice(None), i[0, 0])),
            "a class twice",
        ),
    ],
)
def test_stored_episodes_of_other_data(change, message: str) -> None:
    labels = np.arange(100) % 5
    drawn = draw_episodes(labels, EpisodeShape(3, 2, 4), 7, seed=0)
    classes, indices = drawn.classes.copy(), drawn.indices.copy()
    change(classes, indices)
    with pytest.raises(DataError, match=message):
        check_fit(Path("stored.npz"), [Episodes(classes, indices, 2)], labels)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"features": np.zeros((3, 2))},
            r"found no classes among \[\"features\"\]",
        ),
        ({"features": np.zeros(3), "classes": np.zeros(3, int)}, "a row per image"),
        ({"features": np.zeros((3, 2)), "classes": np.zeros(2, int)}, "one class"),
        ({"features": np.zeros((3, 2)), "classes": np.zeros(3)}, "one class"),
        ({"features": np.zeros((0, 2)), "classes": np.zeros(0, int)}, "found none"),
        ({"features": np.array([[0.0], [np.nan]]), "classes": np.zeros(2, int)}, "first in row 1"),
        ({"features": np.array([[{}]]), "classes": np.zeros(1, int)}, "plain arrays"),
    ],
)
def test_files_of_features_with_faults(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    path = tmp_path / "features.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        read_features(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found No such file"):
        read_features(tmp_path / "none.npz")
    path = tmp_path / "text.npz"
    path.write_text("no zip")
    with pytest.raises(DataError, match="plain arrays"):
        load_episodes(path)
    np.savez(path, classes=np.zeros((1, 2, 3), int), indices=np.zeros((1, 2, 4, 6), int))
    with pytest.raises(DataError, match=r"found \(1, 2, 3\) of int64 and \(1, 2, 4, 6\)"):
        load_episodes(path)
    np.savez(path, classes=np.zeros((1, 2, 4), int), indices=np.zeros((1, 2, 4, 6), int))
    with pytest.raises(DataError, match="from 1 to 5 shots"):
        load_episodes(path, num_shots=6)


def test_classes_may_have_names(tmp_path: Path) -> None:
    path = tmp_path / "birds.npz"
    np.savez(path, features=np.zeros((3, 2, 2)), classes=np.array(["wren", "owl", "wren"]))
    read = read_features(path)
    assert (read.names, read.labels.tolist()) == (("owl", "wren"), [1, 0, 1])
    assert read.features.shape == (3, 4)

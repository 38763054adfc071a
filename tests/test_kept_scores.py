import dataclasses

import numpy as np
import pytest

from fedsim import kept_scores
from fedsim.errors import CheckpointError, DataError
from fedsim.kept_scores import SCORES_FILE, KeptScores, keep_scores, load_kept_scores


def scores(num_labels=11):
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(4, dtype=np.int32), [3, 1, 5, 2])
    logits = rng.standard_normal((len(owner), num_labels)).astype(np.float32)
    labels = tuple(f"label{i}" for i in range(num_labels))
    return KeptScores(logits, rng.random(logits.shape) < 0.3, owner, ("a", "b", "ç", "d"), labels)


@pytest.mark.parametrize("num_labels", [1, 8, 11])
def test_what_is_written_is_read(tmp_path, num_labels):
    written = scores(num_labels)
    assert keep_scores(tmp_path, written) is None
    read = load_kept_scores(tmp_path)
    for field in dataclasses.fields(KeptScores):
        one, other = getattr(written, field.name), getattr(read, field.name)
        assert np.array_equal(one, other)
        assert type(one) is type(other)
    assert read.targets.dtype == np.bool_
    assert [path.name for path in tmp_path.iterdir()] == [SCORES_FILE]


def test_the_file_is_plain_numpy_and_small(tmp_path):
    written = scores()
    keep_scores(tmp_path, written)
    with np.load(tmp_path / SCORES_FILE, allow_pickle=False) as stored:
        assert stored["targets"].shape == (11, 2)  # 11 labels take two bytes
        assert np.array_equal(stored["logits"], written.logits)


def test_what_is_too_large_is_not_kept_nor_left_from_before(tmp_path, monkeypatch):
    keep_scores(tmp_path, scores())
    monkeypatch.setattr(kept_scores, "_LARGEST_MB", 0)
    assert keep_scores(tmp_path, scores()) == "0 MB, and at most 0 MB are kept"
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="found no such file"):
        load_kept_scores(tmp_path)


def test_what_can_not_be_written_says_so(tmp_path):
    (tmp_path / f"{SCORES_FILE}.tmp").mkdir()
    with pytest.raises(CheckpointError, match="found Is a directory"):
        keep_scores(tmp_path, scores())


@pytest.mark.parametrize(
    "change",
    [
        {"logits": np.zeros((11, 3), np.float32)},
        {"logits": np.zeros((11, 11))},
        {"owner": np.zeros((11, 1), np.int32)},
        {"owner": np.full(11, 4, np.int32)},
        {"owner": np.full(11, -1, np.int32)},
        {"owner": np.zeros(5, np.int32)},
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, change):
    keep_scores(tmp_path, dataclasses.replace(scores(), **change))
    with pytest.raises(DataError, match="expected a score for every image"):
        load_kept_scores(tmp_path)


def test_broken_files_are_refused(tmp_path):
    keep_scores(tmp_path, scores())
    path = tmp_path / SCORES_FILE
    whole = path.read_bytes()
    for content in (b"", b"nothing", whole[: len(whole) // 2], whole[:200] + b"x" + whole[201:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="expected a run's test scores"):
            load_kept_scores(tmp_path)
    np.savez(path, logits=np.zeros(3))
    with pytest.raises(DataError, match="expected a run's test scores"):
        load_kept_scores(tmp_path)
    np.savez(path, label_names=np.array([object()], dtype=object))
    with pytest.raises(DataError, match="allow_pickle"):
        load_kept_scores(tmp_path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"label_names": tuple("abcdefghijk")}, "other labels;"),
        ({"user_ids": ("a", "b", "c", "d")}, "other test users"),
        ({"owner": np.repeat(np.arange(4, dtype=np.int32), [1, 3, 5, 2])}, "test images per user"),
        ({"targets": np.zeros((11, 11), bool)}, "labels of the test images"),
    ],
)
def test_other_test_splits_can_not_be_compared(change, what):
    other = dataclasses.replace(scores(), logits=scores().logits + 1)
    scores().check_comparable(other, "x")
    with pytest.raises(DataError, match=f"x: expected runs on the same test split.*{what}"):
        scores().check_comparable(dataclasses.replace(other, **change), "x")

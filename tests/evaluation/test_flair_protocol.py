"""FLAIR's protocol: published values, forms of files, what it explains, and faults."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from metrics.worked_cases import expected_values, federated
from sklearn.metrics import average_precision_score, f1_score
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.flair import score_flair, why_not_ap
from fedsim.evaluation.flair_files import FlairPredictions, read_npz, read_two_tables
from fedsim.evaluation.scoring import score_logits
from fedsim.kept_scores import KeptScores, keep_scores
from fedsim.metrics import bootstrap_by_user
from fedsim.protocols.flair import read_predictions

LABELS = tuple(f"label_{k}" for k in range(17))


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    targets, scores, users = federated()
    path = tmp_path_factory.mktemp("flair") / "federated.npz"
    np.savez(path, targets=targets, scores=scores, users=users, labels=np.array(LABELS))
    return path


def command(*words: Any) -> Any:
    result = CliRunner().invoke(app, ["evaluate", "flair", *map(str, words)])
    if result.exception:
        raise result.exception
    return result.output


def write_tables(folder: Path, kind: str, dtype: Any = np.float64) -> tuple[Path, Path]:
    """The case as two tables, whose rows and columns stand in another order each."""
    rng = np.random.default_rng(0)
    targets, scores, users = federated()
    paths = folder / f"targets.{kind}", folder / f"scores.{kind}"
    for path, values in zip(paths, (targets, scores.astype(dtype)), strict=True):
        frame = pd.DataFrame(values, columns=LABELS)
        frame.insert(3, "id", [f"image {k}" for k in range(len(frame))])
        if path is paths[0]:
            frame["user"] = [f"user {u}" for u in users]
        frame = frame.iloc[rng.permutation(len(frame)), rng.permutation(frame.shape[1])]
        if kind == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path)
    return paths


def test_published_values(npz: Path, tmp_path: Path) -> None:
    expected = expected_values("fed")
    facts = json.loads(command(npz, "--json", "--resamples", 50))
    for average, tool in (("micro", "sk_micro"), ("macro", "sk_macro")):
        assert facts[average]["ap"] == pytest.approx(expected[tool], abs=1e-12)
    assert facts["micro"]["ap_binned200"] == pytest.approx(expected["bin200_micro"], abs=1e-12)
    assert facts["macro"]["ap_binned200"] == pytest.approx(
        expected["merged_bin200_macro"], abs=1e-12
    )
    assert facts["micro"]["card_f1"] == pytest.approx(expected["f1_micro"], abs=1e-12)
    assert facts["macro"]["card_f1"] == pytest.approx(expected["f1_macro"], abs=1e-12)
    assert facts["apple_macro_f1"] == pytest.approx(expected["flair_macro_f1"], abs=1e-12)
    assert (facts["num_images"], facts["num_users"], facts["num_labels_scored"]) == (298, 20, 17)


def test_every_label_and_the_intervals() -> None:
    targets, scores, users = federated()
    found = score_flair(
        FlairPredictions.of(targets, scores, LABELS, users), num_resamples=100, seed=3
    )
    by_label = average_precision_score(targets, scores, average=None)
    assert np.allclose(found.per_label.ap, by_label, atol=1e-12)
    assert np.allclose(found.per_label.f1, f1_score(targets, scores > 0.5, average=None))
    assert found.per_label.positives.tolist() == targets.sum(axis=0).tolist()
    ids = users.astype(str)  # ids are text in files, and are numbered in the order of text
    direct = bootstrap_by_user(targets, scores, ids, num_resamples=100, seed=3)
    assert found.micro.interval == direct["micro_ap"]
    assert found.macro.interval == direct["macro_ap"]
    without = score_flair(FlairPredictions.of(targets, scores), num_resamples=100)
    assert without.micro.interval is None
    assert without.num_users is None
    one_user = FlairPredictions.of(targets, scores, users=["a"] * len(targets))
    assert score_flair(one_user).macro.interval is None


def test_it_says_why_f1_is_not_ap(npz: Path) -> None:
    sentences = why_not_ap(score_flair(read_npz(npz), num_resamples=0))
    for number in ("0.5224", "0.5094", "0.5659", "0.5730"):
        assert number in sentences
    output = command(npz, "--resamples", 0)
    assert sentences in " ".join(output.split())
    assert 'F1, which the evaluation card calls "averaged precision"' in output
    assert len(sentences.split(". ")) == 2


def test_labels_that_no_image_has() -> None:
    scores = np.array([[0.9, 0.2], [0.1, 0.7]])
    found = score_flair(FlairPredictions.of(np.array([[1, 0], [0, 0]]), scores))
    assert (found.macro.ap, found.macro.ap_binned200) == (1.0, 0.5)
    assert np.isnan(found.per_label.ap[1])
    nothing = score_flair(FlairPredictions.of(np.zeros((2, 2)), scores))
    assert "undefined (macro)" in why_not_ap(nothing)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_two_tables_are_matched_by_names(tmp_path: Path, npz: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    paths = write_tables(tmp_path, kind)
    tables, arrays = score_flair(read_two_tables(*paths)), score_flair(read_npz(npz))
    assert tables.micro.ap == pytest.approx(arrays.micro.ap, abs=1e-15)
    assert tables.macro.ap_binned200 == pytest.approx(arrays.macro.ap_binned200, abs=1e-15)
    order = [tables.per_label.names.index(name) for name in LABELS]
    assert tables.per_label.ap[order] == pytest.approx(arrays.per_label.ap, abs=1e-15)
    assert tables.num_users == 20
    assert tables.micro.interval is not None
    assert json.loads(command(*paths, "--json"))["num_users"] == 20


def test_a_run_is_scored_as_in_its_summary(tmp_path: Path) -> None:
    targets, scores, users = federated()
    logits = (np.log(scores / (1 - scores)) * 40).astype(np.float32)  # many sigmoids tie at 0 or 1
    ids = tuple(f"user {u}" for u in range(20))
    keep_scores(
        tmp_path, KeptScores(logits, targets.astype(bool), users.astype(np.int32), ids, LABELS)
    )
    summary = score_logits(targets.astype(bool), logits)
    direct = bootstrap_by_user(targets, logits, users, num_resamples=30, seed=1)
    for path in (tmp_path, tmp_path / "test_scores.npz"):
        found = score_flair(read_predictions([path]), num_resamples=30, seed=1)
        assert found.micro.ap == summary["micro_ap"]
        assert found.macro.ap == summary["macro_ap"]
        assert found.micro.ap_binned200 == summary["micro_ap_binned200"]
        assert found.macro.f1 == summary["macro_f1"]
        assert found.macro.interval == direct["macro_ap"]
        assert found.per_label.names == LABELS


def test_what_is_written(npz: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    command(npz, "--resamples", 20, "--out", out)
    stem = "flair_ap_by_frequency"
    assert {path.name for path in out.iterdir()} == {
        "flair.json",
        "flair.csv",
        "flair_labels.csv",
        f"{stem}.png",
        f"{stem}.svg",
    }
    svg = (out / f"{stem}.svg").read_text()
    ElementTree.fromstring(svg)
    assert all(label in svg for label in LABELS)
    rows = pd.read_csv(out / "flair_labels.csv")
    facts = json.loads((out / "flair.json").read_text())
    by_label = {entry["label"]: entry for entry in facts["per_label"]}
    assert rows["images"].is_monotonic_decreasing
    assert [by_label[name]["ap"] for name in rows["label"]] == rows["AP"].tolist()


CSV_FAULTS = {
    "a wrong column": (
        "id,cat,dog\na,1,0\n",
        "id,cat,dgo\na,0.5,0.5\n",
        'expected the 2 labels of {targets}, found 2, without ["dog"] and with ["dgo"] besides',
    ),
    "no id": ("image,cat\na,1\n", "id,cat\na,0.5\n", '{targets}: expected a column "id"'),
    "an image twice": (
        "id,cat\na,1\na,0\n",
        "id,cat\na,0.5\n",
        '{targets}: expected each id once, found "a"',
    ),
    "another image": (
        "id,cat\na,1\nb,0\n",
        "id,cat\na,0.5\nc,0.5\n",
        '{scores}: expected the 2 ids of {targets}, found 2, without ["b"] and with ["c"] besides',
    ),
    "a label out of range": (
        "id,cat\na,1\nb,2\n",
        "id,cat\na,0.5\nb,0.5\n",
        '{targets}, line 3: expected 0 or 1 in column "cat", found 2',
    ),
    "a logit": (
        "id,cat\na,1\n",
        "id,cat\na,1.5\n",
        '{scores}, line 2: expected a number in [0, 1] in column "cat", found 1.5',
    ),
    "no rows": ("id,cat\n", "id,cat\na,0.5\n", "{targets}: expected at least one row, found none"),
    "no score": ("id,cat\na,1\n", "id,cat\na,nan\n", "{scores}, line 2: expected a finite number"),
    "no label": ("id\na\n", "id\na\n", "expected at least one image and one label"),
}


@pytest.mark.parametrize("fault", CSV_FAULTS)
def test_faults_of_tables(tmp_path: Path, fault: str) -> None:
    targets, scores = tmp_path / "targets.csv", tmp_path / "scores.csv"
    truth, guess, expected = CSV_FAULTS[fault]
    targets.write_text(truth)
    scores.write_text(guess)
    with pytest.raises(DataError) as caught:
        command(targets, scores)
    assert expected.format(targets=targets, scores=scores) in str(caught.value)
    assert "\n" not in str(caught.value)


ARRAY_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"scores": None}, "found no scores among"),
    "integer scores": (
        {"scores": np.ones((2, 2), dtype=int)},
        "expected floats, found dtype int64",
    ),
    "a label out of range": (
        {"targets": np.full((2, 2), 3)},
        r"\[row 0, class 0\]: expected 0 or 1",
    ),
    "other shapes": ({"scores": np.ones((3, 2))}, r"expected the targets' shape \(2, 2\)"),
    "names": ({"labels": np.array(["a"])}, "expected labels to be 2 names, one for each column"),
    "equal names": ({"labels": np.array(["a", "a"])}, 'expected each label once, found "a" 2'),
    "users": ({"users": np.array([0.5, 1.5])}, "expected users to be 2 names, one for each image"),
    "pickles": ({"labels": np.array(["a", {}], dtype=object)}, "not as objects"),
    "nothing": ({"targets": np.ones((0, 2)), "scores": np.ones((0, 2))}, "at least one image"),
}


@pytest.mark.parametrize("fault", ARRAY_FAULTS)
def test_faults_of_arrays(tmp_path: Path, fault: str) -> None:
    changed, expected = ARRAY_FAULTS[fault]
    arrays = {"targets": np.eye(2), "scores": np.full((2, 2), 0.5), **changed}
    path = tmp_path / "p.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DataError, match=expected) as caught:
        command(path)
    assert str(caught.value).startswith(str(path))


def test_other_numbers_of_files(npz: Path) -> None:
    with pytest.raises(ConfigError, match="expected one NPZ file"):
        command(npz, npz, npz)
    with pytest.raises(ConfigError, match=r"a table of labels and a table of scores, found a\.csv"):
        command("a.csv")
    with pytest.raises(ConfigError, match="num_resamples: expected 0 or more"):
        command(npz, "--resamples", -1)

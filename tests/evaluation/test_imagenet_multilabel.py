"""Accuracy by reviewed labels: the protocol as published, its forms of files, and faults."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.errors import DataError
from fedsim.evaluation.imagenet_annotations import Annotations, read_annotations
from fedsim.evaluation.imagenet_classes import Classes, read_wnids
from fedsim.evaluation.imagenet_multilabel import MultiLabelScores
from fedsim.evaluation.imagenet_predictions import predicted_classes, read_predictions

SHARED = Path(__file__).parents[2] / ".." / "shared" / "acceptance" / "imagenet_mla"
needs_subset = pytest.mark.skipif(
    not SHARED.is_dir(), reason="needs ../shared/acceptance/imagenet_mla"
)

# Not in sorted order: class 0 is n00000001, 1 is n00000004, and so on.
WNIDS = ("n00000009", "n00000004", "n00000001", "n00000007")
FOUR = Classes.of(WNIDS)
IMAGES = [f"ILSVRC2012_val_{n:08d}.JPEG" for n in range(1, 9)]
# Image, own class, correct, unclear, wrong, problematic, ImageNet-M.
REVIEWED: list[tuple[str, int, list[int], list[int], list[int], bool, bool]] = [
    (IMAGES[0], 0, [0], [], [1], False, False),
    (IMAGES[1], 0, [0, 2], [3], [], False, True),
    (IMAGES[2], 1, [1], [], [], False, False),
    (IMAGES[3], 1, [2], [1], [0], True, False),
    (IMAGES[4], 2, [2, 3], [], [], False, True),
    (IMAGES[5], 3, [3], [0], [1, 2], False, False),
    (IMAGES[6], 3, [], [3], [], True, True),
]
GUESSES = dict(zip(IMAGES, [0, 3, 2, 2, 3, 0, 3, 1], strict=True))
# Right: image 1, 2 (unclear), not 3 (nobody reviewed it), not counted 4, 5, 6 (unclear).
COLUMNS = [
    "file_name",
    "original_label",
    "correct_multi_labels",
    "unclear_multi_labels",
    "wrong_multi_labels",
    "is_problematic",
    "imagenet_m",
]


def frame(**changed: list[Any]) -> pd.DataFrame:
    table = pd.DataFrame(REVIEWED, columns=COLUMNS)
    return table.assign(**changed)


def annotations(tmp_path: Path, table: pd.DataFrame | None = None) -> Annotations:
    path = tmp_path / "annotations.parquet"
    pytest.importorskip("pyarrow")
    (frame() if table is None else table).to_parquet(path)
    return read_annotations(path, classes=FOUR)


def published(tmp_path: Path, classes: Classes = FOUR) -> tuple[Path, Path]:
    """The same in the published form: wnids, and no key where a list is empty."""
    assert classes.wnids is not None
    kinds = ("correct", "unclear", "wrong")
    images: dict[str, Any] = {"another_set.JPEG": {"correct": ["no wnid"]}}
    for name, _, *lists, _, _ in REVIEWED:
        wnids = {kind: [classes.wnids[k] for k in v] for kind, v in zip(kinds, lists, strict=True)}
        images[name] = {kind: labels for kind, labels in wnids.items() if labels}
    path, originals = tmp_path / "human_accuracy.json", tmp_path / "labels.txt"
    problematic = {row[0]: {} for row in REVIEWED if row[5]} | {"another_set.JPEG": {}}
    imagenet_m = [row[0] for row in REVIEWED if row[6]]
    path.write_text(
        json.dumps(
            {
                "initial_annots": images,
                "problematic_images": problematic,
                "imagenet_m": imagenet_m,
                "wnid_map": {},
            }
        )
    )
    originals.write_text("".join(f"{classes.wnids[row[1]]}\n" for row in REVIEWED))
    return path, originals


def same(one: Annotations, other: Annotations) -> bool:
    fields = ("file_names", "correct", "unclear", "wrong")
    arrays = ("original", "problematic", "imagenet_m")
    return all(getattr(one, f) == getattr(other, f) for f in fields) and all(
        np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays
    )


def command(*words: Any) -> Any:
    result = CliRunner().invoke(app, ["evaluate", "imagenet-multilabel", *map(str, words)])
    if result.exception:
        raise result.exception
    return result.output


# The subset of real images


@needs_subset
def test_real_images_give_the_expected_accuracies() -> None:
    expected = json.loads((SHARED / "expected_subset.json").read_text())
    path = SHARED / "ethsri_subset.csv"
    columns = ["common_wrong_top1_pred", "vit3b_pred", "greedysoups_pred"]
    options = [word for column in columns for word in ("--column", column)]
    by_class = json.loads(command(path, *options, "--classes", "present", "--json"))["models"]
    pooled = json.loads(command(path, *options, "--average", "micro", "--json"))["models"]
    for one, other, right in zip(by_class, pooled, expected.values(), strict=True):
        assert one["accuracy"] == pytest.approx(right["macro"], abs=1e-12)
        assert other["accuracy"] == pytest.approx(right["micro"], abs=1e-12)
        assert other["original_label_accuracy"] == pytest.approx(right["top1_original"], abs=1e-12)
        assert (one["num_right"], one["num_images"]) == (right["n_correct"], right["n_images"])
        assert one["num_classes"] == right["n_classes"]
    rounded = [round(model["accuracy"], 4) for model in by_class]
    assert rounded == [0.2414, 0.9120, 0.9383]
    with pytest.raises(DataError, match="all 1000 classes, found none of 149 of them"):
        command(path, *options)
    with pytest.raises(DataError, match="expected unclear labels in a column of their own"):
        command(path, *options, "--strict")


# The rule


def seed_recipe(
    reviewed: list[Any], guesses: Mapping[str, int], *, strict: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """Count right predictions and images of each class, image by image."""
    right: dict[int, int] = {}
    images: dict[int, int] = {}
    for name, own, correct, unclear, _, is_problematic, _ in reviewed:
        if is_problematic:
            continue
        images[own] = images.get(own, 0) + 1
        hit = guesses[name] in correct or (not strict and guesses[name] in unclear)
        right[own] = right.get(own, 0) + hit
    return right, images


some_labels = st.lists(st.integers(0, 3), max_size=3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), *[some_labels] * 3, st.booleans(), st.booleans(), st.integers(0, 3)
        ),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_it_is_the_published_recipe(rows: list[Any], strict: bool) -> None:
    reviewed = [(f"{k}.JPEG", *row[:-1]) for k, row in enumerate(rows)]
    guesses = {f"{k}.JPEG".encode(): row[-1] for k, row in enumerate(rows)}
    right, images = seed_recipe(
        reviewed, {k.decode(): v for k, v in guesses.items()}, strict=strict
    )
    columns = list(zip(*reviewed, strict=True))
    sets = [tuple(frozenset(labels) for labels in column) for column in columns[2:5]]
    given = Annotations(
        "made up",
        columns[0],
        np.array(columns[1]),
        sets[0],
        sets[1],
        sets[2],
        np.array(columns[5]),
        np.array(columns[6]),
        FOUR,
    )
    scores = MultiLabelScores.of(given, guesses, strict=strict)
    assert scores.images.tolist() == [images.get(k, 0) for k in range(4)]
    assert scores.right.tolist() == [right.get(k, 0) for k in range(4)]
    # ImageNet-M is a plain count: of problematic images too.
    whole = [(*row[:5], not row[6], row[6]) for row in reviewed]
    in_m, of_m = seed_recipe(whole, {k.decode(): v for k, v in guesses.items()}, strict=strict)
    assert (scores.imagenet_m_right, scores.imagenet_m_images) == (
        sum(in_m.values()),
        sum(of_m.values()),
    )
    if not images:
        with pytest.raises(DataError, match="found none"):
            scores.accuracy("micro")
        return
    macro = sum(right[k] / images[k] for k in images) / len(images)
    assert scores.accuracy(classes="present") == pytest.approx(macro, abs=1e-12)
    assert scores.accuracy("micro") == sum(right.values()) / sum(images.values())
    if len(images) == 4:
        assert scores.accuracy() == scores.accuracy(classes="present")
    else:
        with pytest.raises(DataError, match="expected images of all 4 classes"):
            scores.accuracy()


def test_the_example_by_hand(tmp_path: Path) -> None:
    given = annotations(tmp_path)
    scores = MultiLabelScores.of(given, GUESSES)
    assert scores.images.tolist() == [2, 1, 1, 1]
    assert scores.right.tolist() == [2, 0, 1, 1]
    assert scores.right_original.tolist() == [1, 0, 0, 0]
    assert scores.accuracy() == 0.75
    assert scores.accuracy("micro") == 0.8
    assert (scores.num_problematic, scores.num_not_reviewed) == (2, 1)
    assert (scores.imagenet_m_right, scores.imagenet_m_images) == (3, 3)
    strict = MultiLabelScores.of(given, GUESSES, strict=True)
    assert strict.right.tolist() == [1, 0, 1, 0]
    assert strict.imagenet_m_right == 1


def test_missing_predictions_are_named(tmp_path: Path) -> None:
    given = annotations(tmp_path)
    some = {name: GUESSES[name] for name in IMAGES if name not in (IMAGES[0], IMAGES[6])}
    with pytest.raises(DataError, match="each of 6 images, found none for 2, like") as caught:
        MultiLabelScores.of(given, some)
    assert IMAGES[0] in str(caught.value)
    assert IMAGES[6] in str(caught.value)  # problematic, but of ImageNet-M
    without = {name: GUESSES[name] for name in IMAGES if name != IMAGES[3]}
    assert MultiLabelScores.of(given, without).accuracy() == 0.75  # problematic: not needed


def test_predictions_in_python() -> None:
    rows = {b"a": np.array([0.1, 0.4, 0.4, 0.0]), "b": "n00000009", "c": b"n00000001", "d": 2}
    assert predicted_classes(rows, FOUR) == {"a": 1, "b": 3, "c": 0, "d": 2}
    faults = {
        "expected each image once": {"a": 1, b"a": 1},
        'predictions, "a": expected a class from 0 to 3, found 4': {"a": 4},
        "expected a class from 0 to 3, found -1": {"a": -1},
        "expected a class from 0 to 3, found 1.0": {"a": 1.0},
        "expected a class from 0 to 3, found True": {"a": True},
        "expected one of the 4 wnids, found n12345678": {"a": "n12345678"},
        "expected 4 scores, one for each class, found float64 of shape (3,)": {"a": [0.1] * 3},
        "expected finite scores, found nan": {"a": [0.1, np.nan, 0, 0]},
        "expected file names": {None: 1},
    }
    for expected, predictions in faults.items():
        with pytest.raises(DataError) as caught:
            predicted_classes(predictions, FOUR)
        assert expected in str(caught.value)
    with pytest.raises(DataError, match="expected a number, not a wnid, found n00000001"):
        predicted_classes({"a": "n00000001"}, Classes())


# Forms of annotations


def test_the_published_form(tmp_path: Path) -> None:
    path, originals = published(tmp_path)
    found = read_annotations(path, originals=originals, classes=FOUR)
    assert same(found, annotations(tmp_path))
    table = tmp_path / "originals.csv"
    assert FOUR.wnids is not None
    pd.DataFrame(
        {"file_name": IMAGES, "original_label": [FOUR.wnids[r[1]] for r in REVIEWED] + ["1"]}
    ).to_csv(table, index=False)
    assert same(read_annotations(path, originals=table, classes=FOUR), found)


@pytest.mark.parametrize("kind", ["csv", "csv of numpy", "jsonl"])
def test_exports(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"export.{kind.split()[0]}"
    lists = COLUMNS[2:5]
    table = frame()
    if kind == "jsonl":
        table.to_json(path, orient="records", lines=True)
    elif kind == "csv":
        table[lists] = table[lists].map(lambda labels: " ".join(map(str, labels)))
        table.to_csv(path, index=False)
    else:  # what pandas writes of the arrays and bytes that TensorFlow Datasets gives
        table[lists] = table[lists].map(np.array)
        table["file_name"] = [name.encode() for name in table["file_name"]]
        table.to_csv(path, index=False)
        assert "b'ILSVRC" in path.read_text()
    assert same(read_annotations(path, classes=FOUR), annotations(tmp_path))


def test_names_in_bytes_and_tables_with_fewer_columns(tmp_path: Path) -> None:
    as_bytes = frame(file_name=[row[0].encode() for row in REVIEWED])
    assert same(annotations(tmp_path, as_bytes), annotations(tmp_path))
    found = annotations(tmp_path, frame().drop(columns=COLUMNS[4:]))
    assert found.wrong is None
    assert not found.problematic.any()
    assert MultiLabelScores.of(found, GUESSES).num_not_reviewed is None


def test_a_thousand_wnids_need_no_list(tmp_path: Path) -> None:
    thousand = Classes.of(f"n{k:08d}" for k in range(7, 5007, 5))
    path, originals = published(tmp_path, thousand)
    with pytest.raises(DataError, match="expected labels of 1000 wnids, found 4"):
        read_annotations(path, originals=originals)
    stored = json.loads(path.read_text())
    stored["initial_annots"][IMAGES[0]]["wrong"] = list(reversed(thousand.wnids or ()))
    path.write_text(json.dumps(stored))
    assert read_annotations(path, originals=originals).classes == thousand
    listed = tmp_path / "wnids.txt"
    listed.write_text("".join(f"{wnid} a name\n" for wnid in reversed(thousand.wnids or ())))
    assert read_wnids(listed) == thousand


ANNOTATION_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an image twice": ({"file_name": [IMAGES[0]] * 7}, "expected each file_name once"),
    "a label out of range": (
        {"original_label": [0, 0, 1, 1, 2, 3, 4]},
        "row 7, original_label: expected a class from 0 to 3, found 4",
    ),
    "a reviewed label out of range": (
        {"correct_multi_labels": [[0]] * 6 + [[9]]},
        "row 7, correct_multi_labels: expected a class from 0 to 3, found 9",
    ),
    "no list": ({"wrong_multi_labels": [1] * 7}, "expected a list of labels, found 1"),
    "no flag": ({"is_problematic": ["perhaps"] * 7}, "expected true or false, found 'perhaps'"),
}


@pytest.mark.parametrize("fault", ANNOTATION_FAULTS)
def test_faults_of_tables(tmp_path: Path, fault: str) -> None:
    changed, expected = ANNOTATION_FAULTS[fault]
    with pytest.raises(DataError) as caught:
        annotations(tmp_path, frame(**changed))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_and_rows_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='expected a column "unclear_multi_labels"'):
        annotations(tmp_path, frame().drop(columns="unclear_multi_labels"))
    with pytest.raises(DataError, match="expected at least one row, found none"):
        annotations(tmp_path, frame()[:0])


def test_faults_of_the_published_form(tmp_path: Path) -> None:
    path, originals = published(tmp_path)

    def fault(stored: Any) -> str:
        path.write_text(stored if isinstance(stored, str) else json.dumps(stored))
        with pytest.raises(DataError) as caught:
            read_annotations(path, originals=originals, classes=FOUR)
        return str(caught.value)

    good = json.loads(path.read_text())
    assert "expected initial_annots" in fault("{")
    assert "found a list" in fault([])
    assert "found no 'problematic_images'" in fault({"initial_annots": {}})
    assert "found none" in fault({**good, "initial_annots": {}, "imagenet_m": []})
    assert "every ImageNet-M image" in fault({**good, "imagenet_m": ["other"]})
    spoiled = {**good["initial_annots"], IMAGES[0]: {"correct": "n00000001"}}
    assert f'"n00000001" for {IMAGES[0]}' in fault({**good, "initial_annots": spoiled})
    spoiled = {**good["initial_annots"], IMAGES[0]: {"correct": ["n99999999"]}}
    assert "expected one of the 4 wnids, found n99999999" in fault(
        {**good, "initial_annots": spoiled}
    )
    path.write_text(json.dumps(good))
    with pytest.raises(DataError, match="name a file of them with --originals"):
        read_annotations(path, classes=FOUR)
    originals.write_text("n00000001\n")
    with pytest.raises(DataError, match="expected the class of every annotated image"):
        read_annotations(path, originals=originals, classes=FOUR)
    originals.write_text("490\n361\n")
    with pytest.raises(DataError, match=r"line 1: expected a wnid.*devkit"):
        read_annotations(path, originals=originals, classes=FOUR)


# Forms of predictions


def test_forms_of_predictions(tmp_path: Path) -> None:
    assert FOUR.wnids is not None
    numbers = list(GUESSES.values())
    wnids = [FOUR.wnids[k] for k in numbers]
    scores = np.random.default_rng(0).random((8, 4))
    scores[np.arange(8), numbers] += 1
    np.savez(tmp_path / "numbers.npz", file_names=np.array(IMAGES, dtype="S"), predictions=numbers)
    np.savez(tmp_path / "wnids.npz", file_names=IMAGES, predictions=wnids)
    np.savez(tmp_path / "scores.npz", file_names=IMAGES, scores=scores)
    tables = {
        "numbers": {"prediction": numbers},
        "wnids": {"prediction": wnids},
        "scores": {f"{k}": scores[:, k] for k in (2, 0, 3, 1)},
        "named": {FOUR.wnids[k]: scores[:, k] for k in (3, 2, 1, 0)},
    }
    for name, columns in tables.items():
        pd.DataFrame({"file_name": IMAGES, **columns}).to_csv(tmp_path / f"{name}.csv", index=False)
    paths = [*tmp_path.glob("*.npz"), *tmp_path.glob("*.csv")]
    assert len(paths) == 7
    for path in paths:
        assert read_predictions(path, FOUR) == {path.stem: GUESSES}, path
    two = tmp_path / "two.csv"
    pd.DataFrame({"file_name": IMAGES, "a": numbers, "b": wnids}).to_csv(two, index=False)
    assert read_predictions(two, FOUR, ["b", "a"]) == {"b": GUESSES, "a": GUESSES}


PREDICTION_FAULTS = {
    "a wrong column": (
        "file_name,predicted\na,1\n",
        "expected a column prediction, or scores in columns named by class, found the columns "
        '["file_name", "predicted"]',
    ),
    "an image twice": (
        "file_name,prediction\na,1\na,2\n",
        'expected each file_name once, found "a"',
    ),
    "a class out of range": (
        "file_name,prediction\na,1\nb,4\n",
        ", column prediction, \"b\": expected a class from 0 to 3, found '4'",
    ),
    "no rows": ("file_name,prediction\n", "expected at least one row, found none"),
    "nothing": ("file_name,prediction\na,\n", "expected a class from 0 to 3, found ''"),
    "too few scores": ("file_name,0,1,2\na,1,1,1\n", "expected the scores of 4 classes, found 3"),
    "a class twice": ("file_name,0,1,2,n00000001\na,1,1,1,1\n", "write each class once"),
    "NaN": (
        "file_name,0,1,2,3\na,1,1,nan,1\n",
        'expected a finite number in column "2", found nan',
    ),
    "no names": ("name,prediction\na,1\n", 'expected a column "file_name"'),
}


@pytest.mark.parametrize("fault", PREDICTION_FAULTS)
def test_faults_of_predictions(tmp_path: Path, fault: str) -> None:
    text, expected = PREDICTION_FAULTS[fault]
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_predictions(path, FOUR)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"file_names": ["a", "a"], "predictions": [1, 2]}, 'each image once, found "a" again'),
        ({"file_names": ["a"], "predictions": [1, 2]}, "write one for each image"),
        ({"file_names": ["a"], "scores": [0.5]}, "expected file_names of shape"),
        ({"file_names": ["a"], "predictions": [1.5]}, "expected a class from 0 to 3, found 1.5"),
        ({"file_names": ["a"], "scores": [[1, 2]]}, "expected 4 scores"),
        ({"file_names": ["a"]}, "found no predictions among"),
        ({"file_names": [], "predictions": []}, "expected at least one image, found none"),
    ],
)
def test_faults_of_arrays(tmp_path: Path, arrays: dict[str, Any], expected: str) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError) as caught:
        read_predictions(path, FOUR)
    assert expected in str(caught.value)


# The command


def test_the_command_on_the_published_form(tmp_path: Path) -> None:
    path, originals = published(tmp_path)
    listed, model, out = tmp_path / "wnids.txt", tmp_path / "a model.csv", tmp_path / "out"
    listed.write_text("\n".join(WNIDS))
    pd.DataFrame({"file_name": IMAGES, "prediction": GUESSES.values()}).to_csv(model, index=False)
    words = [path, model, "--originals", originals, "--wnids", listed]
    output = command(*words, "--out", out)
    assert "correct or unclear labels, mean over classes" in output
    assert "0.75000000" in output
    assert "3 of 3" in output
    assert "2 problematic images were left out." in output
    assert "ImageNet-M has 68 images; 3 of them are annotated." in output
    facts = json.loads((out / "imagenet_multilabel.json").read_text())["models"][0]
    assert facts["accuracy"] == 0.75
    assert [entry["right"] for entry in facts["per_class"]] == [2, 0, 1, 1]
    assert facts["per_class"][1]["wnid"] == "n00000004"
    ElementTree.fromstring((out / "imagenet_multilabel_1.svg").read_text())
    rows = pd.read_csv(out / "imagenet_multilabel_classes.csv")
    assert rows["class"].tolist() == [2, 3, 0, 1]
    assert rows["difference"].tolist() == [1, 1, 0.5, 0]
    strict = json.loads(command(*words, "--strict", "--average", "micro", "--json"))
    assert strict["models"][0]["accuracy"] == 0.4
    with pytest.raises(DataError, match="expected files of different names, found a model twice"):
        command(path, model, model, *words[2:])

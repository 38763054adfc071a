"""Runs from NPZ files and tables, and what is said of faulty ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.errors import DataError
from fedsim.evaluation.classifier_runs import read_runs

DIGITS = Path(__file__).parent / "cases" / "digits_lt" / "predictions.npz"


def arrays() -> dict[str, Any]:
    return {
        "loss": np.array(["a", "a", "b"]),
        "seed": np.array([1, 0, 0]),
        "y_test": np.array([0, 1, 2], dtype=np.uint8),
        "pred_test": np.array([[0, 1, 1], [0, 0, 2], [2, 1, 0]], dtype=np.uint8),
        "y_val": np.array([[0, 2], [1, 1], [0, 0]]),
        "pred_val": np.array([[0, 2], [1, 0], [0, 1]]),
        "class_counts": np.array([[9, 3, 1], [8, 4, 1], [9, 3, 1]]),
    }


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "runs.npz"
    stored = {name: value for name, value in (arrays() | changes).items() if value is not None}
    np.savez(path, **stored)
    return path


def table(folder: Path, text: str, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_npz(tmp_path: Path) -> None:
    runs = read_runs([written(tmp_path)])
    assert runs.num_classes == 3
    assert {model: [run.seed for run in found] for model, found in runs.by_model.items()} == {
        "a": [0, 1],
        "b": [0],
    }
    run = runs.by_model["a"][0]
    assert run.predictions.tolist() == [0, 0, 2]
    assert run.targets.tolist() == runs.targets.tolist() == [0, 1, 2]
    assert run.validation is not None
    assert [part.tolist() for part in run.validation] == [[1, 1], [1, 0]]
    assert run.class_counts is not None
    assert run.class_counts.tolist() == [8, 4, 1]
    plain = read_runs([written(tmp_path, y_val=None, pred_val=None, class_counts=None)])
    assert plain.num_classes == 3
    assert plain.by_model["b"][0].validation is None
    digits = read_runs([DIGITS])
    assert {model: len(found) for model, found in digits.by_model.items()} == {
        "ce": 5,
        "logit_adj": 5,
    }


def test_tables(tmp_path: Path) -> None:
    long = table(
        tmp_path,
        "image,model,seed,target,prediction\n"
        "y,b,0,1,0\nx,a,0,0,0\nx,b,0,0,1\ny,a,0,1,1\ny,a,1,1,0\nx,a,1,0,0\n",
    )
    runs = read_runs([long])
    found = {
        (run.model, run.seed): run.predictions.tolist()
        for each in runs.by_model.values()
        for run in each
    }
    # By image: x, then y.
    assert found == {("b", 0): [1, 0], ("a", 0): [0, 1], ("a", 1): [0, 0]}
    assert runs.targets.tolist() == [0, 1]
    assert runs.num_classes == 2
    first = table(tmp_path, "prediction,target\n3,0\n1,1\n", "plain.csv")
    second = table(tmp_path, "target,prediction\n0,0\n1,1\n", "adjusted.csv")
    runs = read_runs([first, second])
    assert list(runs.by_model) == ["plain", "adjusted"]
    assert runs.by_model["plain"][0].predictions.tolist() == [3, 1]
    assert runs.num_classes == 4
    assert read_runs([first, second], 7).num_classes == 7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": None}, r"runs\.npz: expected the arrays .* found no y_test"),
        ({"pred_val": None}, "expected y_val and pred_val, or neither"),
        ({"loss": np.array(["a", "a", "b"], dtype=object)}, "as text, not as objects"),
        ({"loss": np.array([1, 2, 3])}, r"loss: expected text of shape \(3\), found int64"),
        ({"seed": np.array([1, 0])}, r"seed: expected whole numbers of shape \(3\)"),
        ({"y_test": np.array([0.0, 1.0, 2.0])}, "y_test: expected whole numbers .* found float64"),
        ({"y_test": np.array([0, 1])}, r"pred_test: expected whole numbers of shape \(3, 2\)"),
        ({"pred_val": np.array([[0], [1], [1]])}, r"pred_val: .* of shape \(3, 2\)"),
        ({"seed": np.array([1, 1, 0])}, 'model "a": expected each seed once, found seed 1 twice'),
        (
            {"pred_test": np.array([[0, 1, 1], [0, 0, 3], [2, 1, 0]])},
            r'model "a", seed 0, predictions \[2\]: expected a class from 0 to 2, found 3',
        ),
        ({"y_val": np.array([[0, 2], [1, 1], [0, -1]])}, r'model "b", seed 0, y_val \[1\]'),
        ({"class_counts": np.array([[9, 3, 1], [0, 0, 0], [9, 3, 1]])}, "seed 0, class_counts"),
        ({"class_counts": np.array([[9, 3, 1], [9, -1, 1], [9, 3, 1]])}, "seed 0, class_counts"),
        ({"loss": np.array([], dtype=str)}, "loss: expected at least one run, found none"),
    ],
)
def test_faulty_npz(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_runs([written(tmp_path, **changes)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target,predicted\n0,0\n", 'expected a column "prediction", .* rename "predicted" to it'),
        ("target,prediction,split\n0,0,1\n", 'found "split"; rename or remove it'),
        ("target,prediction\n", "expected at least one row, found none"),
        ("", "expected a column"),
        ("target,prediction\n0,0\n1,cat\n", "line 3: expected a whole number in column prediction"),
        ("target,prediction\n0,0\n1,0.5\n", r"line 3: .* found '0\.5'"),
        ("target,prediction\n0,\n", "line 2: expected a whole number"),
        ("target,prediction\n-1,0\n", "line 2: expected a class from 0 up in column target"),
        ("target,prediction\n0,99999999999999999999\n", "line 2: expected a class from 0 up"),
        (
            "image,target,prediction\nx,0,0\ny,1,1\nx,0,1\n",
            'expected each image once in a run, found "x" in line 2 and in line 4',
        ),
        (
            "model,target,prediction\na,0,0\na,1,0\nb,1,1\nb,0,1\n",
            'model "b", seed 0: expected the targets of "a", seed 0',
        ),
        (
            "model,image,target,prediction\na,x,0,0\na,y,1,0\nb,x,0,1\nb,z,1,1\n",
            'model "b", seed 0: expected the image names of "a", seed 0',
        ),
        ("model,target,prediction\n,0,0\n", "line 2: expected a name in column model"),
    ],
)
def test_faulty_tables(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_runs([table(tmp_path, text)])


def test_a_label_beyond_the_given_number_of_classes(tmp_path: Path) -> None:
    path = table(tmp_path, "target,prediction\n1,1\n2,2\n")
    with pytest.raises(DataError, match=r"targets \[1\]: expected a class from 0 to 1, found 2"):
        read_runs([path], 2)
    with pytest.raises(DataError, match="found no such file"):
        read_runs([tmp_path / "none.csv"])

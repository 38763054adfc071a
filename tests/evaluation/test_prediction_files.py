"""Tables and arrays of predictions: what is read, and one clear sentence for each fault."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsim.errors import DataError
from fedsim.evaluation.prediction_arrays import array_names, read_arrays
from fedsim.evaluation.prediction_files import column_names, plain_name, read_table

ROWS: dict[str, list[Any]] = {"id": ["a", "b,c", "ç"], "x": [0.1, 1e-20, -3.0], "y": [1.0, 0.5, 2]}


def write(path: Path, columns: dict[str, list[Any]] = ROWS) -> Path:
    frame = pd.DataFrame(columns)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    return path


def fault_of(path: Path, *columns: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_table(path, *columns)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_columns_are_read_by_name(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"t.{kind}")
    table = read_table(path, ["id"], ["y", "x"])
    assert column_names(path) == ("id", "x", "y")
    assert table.unique_names("id") == ROWS["id"]
    expected = np.array([ROWS["y"], ROWS["x"]]).T
    # pandas writes JSON numbers with 15 decimals; the other forms keep every bit.
    assert np.allclose(table.numbers, expected, atol=1e-15 if kind == "jsonl" else 0, rtol=0)
    assert table.numbers.dtype == np.float64
    assert len(table.places) == 3
    assert table.places[0] == {"csv": "line 2", "parquet": "row 1", "jsonl": "line 1"}[kind]


def test_single_precision_is_kept_in_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    scores = np.array([0.1, 0.3], dtype=np.float32)
    pd.DataFrame({"id": [1, 2], "x": scores}).to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", ["id"], ["x"])
    assert table.numbers.dtype == np.float32
    assert np.array_equal(table.numbers[:, 0], scores)
    assert table.names("id") == ["1", "2"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_faults_of_any_table(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"t.{kind}")
    message = fault_of(path, ["ids"], ["x"])
    assert 'expected a column "ids", found the columns ["id", "x", "y"]' in message
    assert 'rename "id" to it' in message
    assert "expected a number" in fault_of(path, [], ["id"]) or kind == "parquet"
    if kind == "parquet":
        assert 'expected numbers in column "id"' in fault_of(path, [], ["id"])
    bad = write(tmp_path / f"bad.{kind}", {"id": ["a", "b"], "x": [1.0, float("inf")]})
    if kind != "jsonl":  # which pandas writes as null
        assert "expected a finite number" in fault_of(bad, ["id"], ["x"])
    twice = read_table(write(tmp_path / f"twice.{kind}", {"id": ["a", "b", "a"]}), ["id"])
    with pytest.raises(DataError, match=r'expected each id once, found "a" in \w+ \d and in'):
        twice.unique_names("id")
    empty = tmp_path / f"empty.{kind}"
    if kind == "csv":
        empty.write_text("id,x\n")
    elif kind == "parquet":
        pd.DataFrame({"id": [], "x": []}).to_parquet(empty)
    else:
        empty.write_text("\n")
    found = fault_of(empty, [] if kind == "jsonl" else ["id"])
    assert "expected at least one row, found none" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id,x\na,0.5\n\nb,oops\n", ", line 4: expected a number in column \"x\", found 'oops'"),
        ("id,x\na,0.5\nb,nan\n", ', line 3: expected a finite number in column "x", found nan'),
        ("id,x\na,0.5,7\n", ", line 2: expected 2 fields as in the first line, found 3"),
        ("id,x\na\n", ", line 2: expected 2 fields as in the first line, found 1"),
        ("id,x,x\na,1,2\n", ': expected each column once, found "x" 2 times'),
        ('id,x\n"a,1\n', "expected CSV, found what can't be parsed"),
        ("", ': expected a column "id", found the columns []'),
        ("\xff", "expected text in UTF-8, found other bytes"),
    ],
)
def test_faults_of_csv(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode("latin-1"))
    assert expected in fault_of(path, ["id"], ["x"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", ", line 1: expected a JSON object, found what can't be parsed"),
        ("[1]", ", line 1: expected a JSON object, found [1]"),
        ('{"id": 1, "x": 2}\n{"id": 2}', ', line 2: expected "x" in every object'),
        ('{"id": 1, "x": null}', ", line 1: expected a number in column"),
        ("[" * 100_000, ", line 1: expected a JSON object"),
    ],
)
def test_faults_of_json_lines(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    assert expected in fault_of(path, [] if text[0] == "[" else ["id"], ["x"] * (text[0] != "["))


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "found no such file" in fault_of(tmp_path / "t.csv", ["id"])
    assert "ends in .csv, .parquet, .jsonl" in fault_of(tmp_path / "t.xlsx", ["id"])
    broken = tmp_path / "t.parquet"
    broken.write_bytes(b"PAR1 no")
    pytest.importorskip("pyarrow")
    assert "expected a whole parquet file" in fault_of(broken, ["id"])


def test_names_that_are_none(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.csv", {"id": ["a", None]}), ["id"])
    with pytest.raises(DataError, match=r", line 3: expected a name in column id, found ''"):
        table.names("id")
    assert [plain_name(x) for x in (True, None, 1.0, ["a"])] == [None] * 4


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, one=np.arange(3), two=np.array(["x"]), other=np.array([{}], dtype=object))
    assert array_names(path) == ("one", "two", "other")
    assert read_arrays(path, ["one"], ["two", "three"]).keys() == {"one", "two"}
    with pytest.raises(DataError, match="expected the arrays one, three, found no three among"):
        read_arrays(path, ["one", "three"])
    with pytest.raises(DataError, match="plain arrays, found Object arrays"):
        read_arrays(path, ["other"])
    for broken in (b"", b"PK\x03\x04", b"text"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="expected an NPZ file"):
            array_names(path)
    np.save(tmp_path / "single.npy", np.arange(3))
    with pytest.raises(DataError, match="found another kind of file"):
        array_names(tmp_path / "single.npy")
    with pytest.raises(DataError, match="No such file"):
        array_names(tmp_path / "none.npz")


def test_json_lines_hold_what_json_holds(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"a": cell}) + "\n" for cell in ([1, 2], None, True)))
    assert read_table(path, ["a"]).cells["a"] == [[1, 2], None, True]

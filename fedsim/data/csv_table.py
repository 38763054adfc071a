"""Reads the table of a CSV file that names images, and checks it row by row."""

import csv
import difflib
import io
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from fedsim.data.faults import Faults, shown
from fedsim.errors import DataError, remedy_for

_REQUIRED = ("image", "user", "labels")
_OPTIONAL = ("split", "fine_labels")
# What people call the optional columns: without them a collection would be read as another one.
_MISSPELT = {
    **dict.fromkeys(("split", "splits", "partition", "subset"), "split"),
    **dict.fromkeys(("fine_labels", "fine_label", "fine", "fine_grained_labels"), "fine_labels"),
}
_SPLITS = ("train", "val", "dev", "test")


def read_table(path: Path) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the header of a CSV file, and every row with where it stands; blank lines are none.

    Raises:
        DataError: There is no such file, it is no CSV in UTF-8, it lacks a column or has no rows:
            nothing could be said about single rows.
    """
    text = _read_text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [(f"line {reader.line_num}", row) for row in reader if row]
    except csv.Error as error:
        raise DataError(
            f"{path}: expected a CSV file, found a line {reader.line_num} that can't be parsed "
            f"({error}); mend it"
        ) from error
    header = rows[0][1] if rows else []
    _check_header(path, header)
    if len(rows) == 1:
        raise DataError(f"{path}: expected a row for every image, found none; add them")
    return header, rows[1:]


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(
            f"{path}: expected a CSV file, found {error.strerror}; "
            f"{remedy_for(error, 'correct the path')}"
        ) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: expected text in UTF-8, found other bytes in line {line}; save it as UTF-8"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}: expected text, found a NUL byte in line {line}; save it as UTF-8")
    return text


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in _REQUIRED if name not in header]
    other = next((mark for mark in (";", "\t") if header and mark in header[0]), None)
    if missing and other is not None:
        raise DataError(
            f"{path}: expected columns separated by commas, found {shown(other)} in the first line "
            f"({shown(header)}); save the table with commas"
        )
    if missing:
        raise DataError(
            f"{path}: expected the columns image, user and labels, separated by commas, found no "
            f"{', '.join(missing)} in the first line ({shown(header)}); add "
            f"{'it' if len(missing) == 1 else 'them'}{_nearest(missing, header)}"
        )
    for found in header:
        meant = _MISSPELT.get(found.strip().lower().replace(" ", "_").replace("-", "_"))
        if meant is not None and found != meant and meant not in header:
            raise DataError(
                f"{path}: expected the column {meant}, found {found!r}, which would be ignored; "
                "rename it"
            )
    for name in (*_REQUIRED, *_OPTIONAL):
        if header.count(name) > 1:
            raise DataError(
                f"{path}: expected each column once, found {name} {header.count(name)} times; "
                "remove all but one"
            )


def _nearest(missing: list[str], header: list[str]) -> str:
    """Suggest to rename columns that are called nearly so."""
    plain = {name.strip().lower(): name for name in header}
    advice = ""
    for name in missing:
        for found in difflib.get_close_matches(name, plain, n=1):
            advice += f", or rename {plain[found]!r} to {name!r}"
    return advice


def entries_of(
    header: list[str], rows: list[tuple[str, list[str]]], faults: Faults
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sound rows in the words of FLAIR's metadata, after noting faults of the others."""
    for where, row in rows:
        if len(row) != len(header):
            faults.add(
                f"{where}: expected {len(header)} fields as in the first line, found {len(row)}; "
                "put a field that holds a comma in quotes"
            )
            continue
        fields = dict(zip(header, row, strict=True))
        wrong = _field_faults(fields)
        for fault in wrong:
            faults.add(f"{where}: {fault}")
        if not wrong:
            labels = _labels(fields["labels"])
            fine_labels = _labels(fields["fine_labels"]) if "fine_labels" in fields else labels
            yield (
                where,
                {
                    "user_id": fields["user"],
                    "image_id": fields["image"],
                    "labels": labels,
                    "fine_grained_labels": fine_labels,
                    "partition": fields.get("split"),
                },
            )


def _field_faults(fields: dict[str, str]) -> list[str]:
    faults = []
    if not fields["user"]:
        faults.append("user must not be empty; say whose image it is")
    if fields["user"] != fields["user"].strip():
        faults.append(f"user must not begin or end with a space, found {shown(fields['user'])}")
    wrong = _path_fault(fields["image"])
    if wrong is not None:
        faults.append(wrong)
    faults += [
        f"{name} must be names joined by |, found an empty one in {shown(fields[name])}"
        for name in ("labels", "fine_labels")
        if "" in _labels(fields.get(name, ""))
    ]
    faults += [
        f"{name} must not have spaces around a name, found {shown(fields[name])}"
        for name in ("labels", "fine_labels")
        if any(label != label.strip() for label in _labels(fields.get(name, "")))
    ]
    split = fields.get("split", "train")
    if split not in _SPLITS:
        faults.append(f"split must be train, val (or dev) or test, found {shown(split)}")
    return faults


def _path_fault(image: str) -> str | None:
    if not image:
        return "image must be the path of an image, found nothing"
    path = PurePosixPath(image)
    if path.is_absolute() or ".." in path.parts or "\\" in image or ":" in path.parts[0][1:2]:
        return f"image must be a path below the CSV's folder, with /, found {shown(image)}"
    if path.as_posix() != image or image == ".":
        return f'image must be a plain path, found {shown(image)}; write "{path.as_posix()}"'
    return None


def _labels(field: str) -> list[str]:
    return field.split("|") if field else []

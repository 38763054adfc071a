"""ImageNet's classes: numbers 0 to 999 are the places of their wnids in sorted order."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedsim.data.faults import shown
from fedsim.errors import DataError
from fedsim.evaluation.prediction_files import file_faults, plain_name

NUM_CLASSES = 1000
WNID = re.compile(r"n\d{8}")
_DIGITS = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True)
class Classes:
    """The classes that labels and predictions may name.

    Attributes:
        wnids: In sorted order, or None if only numbers are known.
        number: How many there are.
    """

    wnids: tuple[str, ...] | None = None
    number: int = NUM_CLASSES

    @classmethod
    def of(cls, wnids: Iterable[str]) -> Self:
        """Number the classes with these wnids by their sorted order."""
        ordered = tuple(sorted(wnids))
        return cls(ordered, len(ordered))

    def index(self, label: Any) -> int:
        """Return the number of a class that is named by its number or wnid, as text or not.

        Raises:
            DataError: It names no class; the sentence lacks the place and the remedy.

        Examples:
            >>> Classes.of(["n02084071", "n01440764"]).index(b"n02084071"), Classes().index("7")
            (1, 7)
            >>> Classes().index(1000)
            Traceback (most recent call last):
            fedsim.errors.DataError: expected a class from 0 to 999, found 1000
        """
        name = label if type(label) is str else plain_name(label)
        number = self._number_of.get(name or "")
        if number is not None:
            return number
        if name is not None and _DIGITS.fullmatch(name):
            number = int(name)
            if number < self.number:
                return number
        if name is not None and WNID.fullmatch(name):
            known = f"one of the {self.number} wnids" if self.wnids else "a number, not a wnid"
            raise DataError(f"expected {known}, found {name}")
        raise DataError(f"expected a class from 0 to {self.number - 1}, found {label!r:.60}")

    def name(self, number: int) -> str:
        """Return a class in words: its number, and its wnid if it is known."""
        return f"class {number}" + ("" if self.wnids is None else f" ({self.wnids[number]})")

    @cached_property
    def _number_of(self) -> dict[str, int]:
        return {wnid: number for number, wnid in enumerate(self.wnids or ())}


def read_wnids(path: Path) -> Classes:
    """Read a text file with one wnid a line, in any order; what follows a blank is not looked at.

    Raises:
        DataError: There is no such file, or a line does not begin with a wnid of its own.
    """
    wnids = read_lines(path)
    if len(set(wnids)) < len(wnids):
        twice = next(wnid for wnid in wnids if wnids.count(wnid) > 1)
        raise DataError(f"{path}: expected each wnid once, found {twice} again; list the classes")
    return Classes.of(wnids)


def read_lines(path: Path) -> list[str]:
    """Return the wnids with which the lines of a text file begin.

    Raises:
        DataError: There is no such file, no line, or one that begins with something else.
    """
    with file_faults(path, "a text file"):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    wnids = [line.split(maxsplit=1)[0] if line.strip() else "" for line in lines]
    for number, wnid in enumerate(wnids, start=1):
        if not WNID.fullmatch(wnid):
            raise DataError(
                f"{path}, line {number}: expected a wnid like n01440764, found "
                f"{shown(wnid)}; numbers of the devkit are no class numbers: write wnids"
            )
    if not wnids:
        raise DataError(f"{path}: expected a wnid in each line, found no line; list the classes")
    return wnids


def class_of_scores(scores: Any, classes: Classes) -> int:
    """Return the class of the highest score; of equal ones, the first.

    Raises:
        DataError: There is not a finite score for each class; the sentence lacks the place.

    Examples:
        >>> class_of_scores([0.1, 0.7, 0.7], Classes(number=3))
        1
    """
    row = np.asarray(scores)
    if row.shape != (classes.number,) or row.dtype.kind not in "fiu":
        raise DataError(
            f"expected {classes.number} scores, one for each class, found {row.dtype} of shape "
            f"{row.shape}"
        )
    if not np.isfinite(row).all():
        raise DataError(f"expected finite scores, found {row[~np.isfinite(row)][0]}")
    return int(row.argmax())

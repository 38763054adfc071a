"""Collects what is wrong with a collection, so that all is told at once."""

import json
from typing import Any

from fedsim.errors import DataError


class Faults:
    """Collects the faults of a source, so that all are reported at once.

    Examples:
        >>> faults = Faults("animals")
        >>> faults.add("record 3: partition must be train, val or test, found 'trian'")
        >>> faults.check()
        Traceback (most recent call last):
        fedsim.errors.DataError: animals: expected no faults, found 1; mend it in the source:
          record 3: partition must be train, val or test, found 'trian'
    """

    SHOWN = 20

    def __init__(self, place: str) -> None:
        self._place = place
        self._count = 0
        self._first: list[str] = []

    def add(self, fault: str) -> None:
        """Note a fault; only the first ones are kept word for word."""
        self._count += 1
        if self._count <= self.SHOWN:
            self._first.append(fault)

    def check(self) -> None:
        """Raise DataError if there are any faults."""
        if not self._count:
            return
        them = "it" if self._count == 1 else "them"
        shown = f" (the first {self.SHOWN} are shown)" if self._count > self.SHOWN else ""
        raise DataError(
            f"{self._place}: expected no faults, found {self._count}{shown}; "
            f"mend {them} in the source:\n  " + "\n  ".join(self._first)
        )


def shown(value: Any) -> str:
    """Show a JSON value in at most 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Checks records in the words of FLAIR's metadata one by one and notes what is wrong."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedsim.data.faults import Faults, shown
from fedsim.data.index import LABEL_SETS, MAX_LABELS, ImageRecord

LABEL_KEYS = ("labels", "fine_grained_labels")  # in the order of LABEL_SETS

_KEYS = ("user_id", "image_id", *LABEL_KEYS, "partition")
_SPLIT_OF_PARTITION = {"train": "train", "val": "val", "dev": "val", "test": "test"}


class RecordReader:
    """Turns entries of the metadata into records, one by one, and notes what is wrong.

    Args:
        faults: Takes what is wrong.
        image_fault: Says what is wrong with the image of an id, or None; by default any id will do.

    Attributes:
        repeated_labels: Labels named again within one list, which count once.

    Examples:
        >>> faults = Faults("animals")
        >>> reader = RecordReader(faults)
        >>> entry = {"user_id": "ann", "image_id": "1", "partition": "dev",
        ...          "labels": ["cat"], "fine_grained_labels": []}
        >>> reader.read("record 0", entry)
        ImageRecord(user_id='ann', image_id='1', split='val', labels=(('cat',), ()))
    """

    def __init__(
        self, faults: Faults, image_fault: Callable[[str], str | None] = lambda image_id: None
    ) -> None:
        self._faults = faults
        self._image_fault = image_fault
        self._split_of_user: dict[str, str] = {}
        self._record_of_image: dict[str, str] = {}
        self._reported_users: set[str] = set()
        self.repeated_labels = 0

    def read(self, where: str, entry: Any) -> ImageRecord | None:
        """Return the record of an entry, or None after noting its faults."""
        wrong = _shape_faults(entry)
        if wrong:
            for fault in wrong:
                self._faults.add(f"{where}: {fault}")
            return None
        user_id, image_id = entry["user_id"], entry["image_id"]
        split = _SPLIT_OF_PARTITION[entry["partition"]]
        # All three are looked at, since each may have something to report.
        sound = [
            self._is_in_one_split(where, user_id, split),
            self._is_new_image(where, image_id),
            self._has_image(where, image_id),
        ]
        if not all(sound):
            return None
        labels = tuple(self._unique(entry[key]) for key in LABEL_KEYS)
        return ImageRecord(user_id, image_id, split, labels)

    def _is_in_one_split(self, where: str, user_id: str, split: str) -> bool:
        first = self._split_of_user.setdefault(user_id, split)
        if first != split and user_id not in self._reported_users:
            self._reported_users.add(user_id)
            self._faults.add(
                f"{where}: user {user_id!r} must be in one split, found in {first} and {split}"
            )
        return first == split

    def _is_new_image(self, where: str, image_id: str) -> bool:
        first = self._record_of_image.setdefault(image_id, where)
        if first != where:
            self._faults.add(f"{where}: image_id {image_id!r} must be unique, found in {first} too")
        return first == where

    def _has_image(self, where: str, image_id: str) -> bool:
        wrong = self._image_fault(image_id)
        if wrong is not None:
            self._faults.add(f"{where}: {wrong}")
        return wrong is None

    def _unique(self, labels: list[str]) -> tuple[str, ...]:
        # Label names repeat in every record; interned, each is kept in memory once.
        unique = tuple(dict.fromkeys(map(sys.intern, labels)))
        self.repeated_labels += len(labels) - len(unique)
        return unique


def _shape_faults(entry: Any) -> list[str]:
    """Say what is wrong with an entry by itself."""
    if not isinstance(entry, dict):
        return [f"must be an object, found {shown(entry)}"]
    missing = [key for key in _KEYS if key not in entry]
    if missing:
        return [f"must have the keys {', '.join(_KEYS)}, found no {', '.join(missing)}"]
    faults = [_text_fault(key, entry[key]) for key in ("user_id", "image_id")]
    partition = entry["partition"]
    if not isinstance(partition, str) or partition not in _SPLIT_OF_PARTITION:
        faults.append(f"partition must be train, val (or dev) or test, found {shown(partition)}")
    for key in LABEL_KEYS:
        labels = entry[key]
        if isinstance(labels, list):
            faults += [_text_fault(f"every name in {key}", label) for label in labels]
        else:
            faults.append(f"{key} must be a list of names, found {shown(labels)}")
    return [fault for fault in faults if fault is not None]


def _text_fault(what: str, value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # 0123 and 123 are two users, and a JSON number can't tell them apart.
        return f"{what} must be text, found the number {value}; write it in quotes"
    if not isinstance(value, str) or not value:
        return f"{what} must be text of at least one letter, found {shown(value)}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{what} must be valid Unicode, found half a surrogate pair in {shown(value)}"
    return None


def indexable(
    records: list[ImageRecord], faults: Faults, names: Mapping[str, Iterable[str]] | None = None
) -> list[ImageRecord]:
    """Return records, or none after noting that they have more labels than an index can number.

    Args:
        records: Of a whole collection.
        faults: Takes what is wrong.
        names: Label names beside those that occur, for each of ``LABEL_SETS`` that has some.
    """
    for position, (label_set, key) in enumerate(zip(LABEL_SETS, LABEL_KEYS, strict=True)):
        used = {label for record in records for label in record.labels[position]}
        num_names = len(used.union((names or {}).get(label_set, ())))
        if num_names > MAX_LABELS:
            faults.add(f"{key} must have at most {MAX_LABELS} different names, found {num_names}")
            return []
    return records

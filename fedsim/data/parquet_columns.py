"""Checks that a parquet file has the columns of ``apple/flair``."""

from pathlib import Path
from typing import Any

from fedsim.data.faults import shown
from fedsim.data.parquet_images import arrow
from fedsim.data.records import LABEL_KEYS

COLUMNS = ("image", "image_id", "user_id", *LABEL_KEYS)


def column_faults(path: Path, schema: Any, split: str | None) -> list[str]:
    """Say what is wrong with the columns of a file.

    Args:
        path: The file.
        schema: Its schema, of pyarrow.
        split: The split that its name states; None if a column must.
    """
    counts = {name: schema.names.count(name) for name in (*COLUMNS, "partition")}
    faults = []
    missing = [name for name in COLUMNS if not counts[name]]
    if missing:
        faults.append(
            f"must have the columns {', '.join(COLUMNS)}, found no {', '.join(missing)} "
            f"among {shown(schema.names)}"
        )
    if split is None and not counts["partition"]:
        faults.append(
            "its split must be told, found neither a name that begins with train, val (validation "
            "or dev) or test nor a column partition; rename the file, as in train-0.parquet"
        )
    for name, count in counts.items():
        if count > 1:
            faults.append(f"must have the column {name} once, found it {count} times")
        elif count == 1:
            faults += _type_faults(path, name, schema.field(name).type)
    return faults


def _type_faults(path: Path, name: str, found: Any) -> list[str]:
    types = arrow("pyarrow.types", path)

    def is_text(kind: Any) -> bool:
        if types.is_dictionary(kind):
            kind = kind.value_type
        return bool(types.is_string(kind) or types.is_large_string(kind))

    def is_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    if name == "image":
        expected = "bytes, or a struct of bytes and path"
        places = [k for k in range(found.num_fields) if types.is_struct(found)]
        inner = [found.field(k).type for k in places if found.field(k).name == "bytes"]
        sound = is_bytes(found) or (len(inner) == 1 and is_bytes(inner[0]))
    elif name in LABEL_KEYS:
        expected = "lists of text"
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        # Lists that are all empty have elements of the type null.
        sound = any(is_list(found) for is_list in lists) and (
            is_text(found.value_type) or types.is_null(found.value_type)
        )
    else:
        expected = "text"
        sound = is_text(found) or (name == "image_id" and types.is_integer(found))
    if sound:
        return []
    return [f"the column {name} must hold {expected}, found {found}; write it so"]

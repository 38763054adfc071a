"""The name of a run, made of its case, the swept values and its seed."""

import hashlib
import re
from typing import Any

_LONGEST_VALUE, _LONGEST_ID = 40, 160  # letters; a folder's name has room for 255 bytes


def run_id_of(case: str | None, swept: dict[str, Any], seed: Any) -> str:
    """Return a run's id: the same for the same settings, and fit to name a folder.

    Examples:
        >>> run_id_of("a", {"federated.local.epochs": 2, "strategy.name": "./x.py:X"}, 0)
        'a-epochs=2-name=._x.py_X-seed0'
    """
    parts = [str(case)] if case else []
    names = [key.rpartition(".")[2] for key in swept]
    for key, name in zip(swept, names, strict=True):
        shown = _shortened(_flat(swept[key]), _LONGEST_VALUE)
        parts.append(f"{key if names.count(name) > 1 else name}={shown}")
    text = re.sub(r"[^\w.,=+~-]+", "_", "-".join(parts))  # a folder's name, whatever is swept
    return "-".join([*([_shortened(text, _LONGEST_ID)] if text else []), f"seed{seed}"])


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={_flat(item)}" for key, item in value.items())
    return "none" if value is None else str(value)


def _shortened(text: str, longest: int) -> str:
    """Cut a long text, and let a hash tell it from others that begin alike."""
    if len(text.encode()) <= longest:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    kept = text.encode()[: longest - 9].decode(errors="ignore")
    return f"{kept}~{digest}"

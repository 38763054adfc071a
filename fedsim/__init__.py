"""fedsim: a federated learning simulator for private learning on images that belong to users."""

import importlib
import os
from typing import Any

__version__ = "0.1.0"

# Nothing is reported to anyone unless the user's environment says so; flwr and ray read these
# when they are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

_PUBLIC = {
    "RunConfig": "fedsim.config",
    "load_rounds": "fedsim.loading",
    "load_runs": "fedsim.loading",
    "run": "fedsim.experiment",
}
__all__ = ["RunConfig", "__version__", "load_rounds", "load_runs", "run"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for, since some bring heavy packages."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)

"""fedsim: a federated learning simulator for private learning on images that belong to users."""

import os

__version__ = "0.1.0"

# Nothing is reported to anyone unless the user's environment says so; flwr and ray read these
# when they are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

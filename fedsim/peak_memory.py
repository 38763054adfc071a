"""The most memory that processes have held."""

import resource
import sys


def peak_bytes(who: int = resource.RUSAGE_SELF) -> int:
    """Return the peak resident memory of this process, or of its largest ended child, in bytes.

    Args:
        who: ``resource.RUSAGE_SELF`` or ``resource.RUSAGE_CHILDREN``.
    """
    peak = resource.getrusage(who).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)

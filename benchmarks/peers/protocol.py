"""How a peer talks with ``round_time.py``: JSON lines out, "round" or "quit" in.

A peer is a process. It prepares, prints ``{"ready": true, ...}`` with its versions and settings,
and then, for every line "round" on its standard input, runs one round and prints
``{"seconds": s, "rss_mb": m, "update_norm": u}``. It ends on "quit" or when its input ends.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Channel:
    """A peer's end of the conversation; whatever else it prints goes to standard error."""

    def __init__(self, root_pid: int | None = None) -> None:
        """Take over standard output.

        Args:
            root_pid: The process at the top of the peer's tree; this one when None.
        """
        self._root_pid = root_pid or os.getpid()
        # If the parent dies while this process is stopped, wake up, read the end of input and end.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # frameworks, and Ray's processes, print as they like

    def ready(self, **settings: Any) -> None:
        """Tell that rounds can be asked for."""
        self._send({"ready": True, "python": sys.version.split()[0], **settings})

    def wait(self) -> bool:
        """Sleep until a round is asked for (True), or the end (False)."""
        return sys.stdin.readline().strip() == "round"

    def report(self, seconds: float, update_norm: float) -> None:
        """Tell a round's duration and, as a check that it trained, how far the model moved."""
        rss_mb = tree_rss_mb(self._root_pid)
        self._send({"seconds": seconds, "rss_mb": rss_mb, "update_norm": update_norm})

    def _send(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


def tree_pids(root_pid: int) -> list[int]:
    """Return the ids of a process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        children.setdefault(parent, []).append(int(stat.parent.name))
    pids = [root_pid]
    for pid in pids:
        pids.extend(children.get(pid, []))
    return pids


def tree_rss_mb(root_pid: int) -> float:
    """Return the resident memory of a process and its descendants, in MB (10^6 bytes).

    Pages that several of them share, such as the mapped data, count once for each.
    """
    pages = 0
    for pid in tree_pids(root_pid):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pages * _PAGE_MB

"""What runs in a Ray actor: one model, the data opened here, units answered one after another."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message

from fedsim.arrays import Arrays, zeros_like
from fedsim.engines.client_app import MakeClientApp
from fedsim.engines.ray_connection import import_ray
from fedsim.engines.stripped import StrippedUnit
from fedsim.engines.unit import Unit, execute
from fedsim.engines.workers import keep_freed_memory
from fedsim.errors import FedsimError
from fedsim.flower_seam import ensure_task_identity, to_arrays
from fedsim.peak_memory import peak_bytes
from fedsim.update_sum import ARRAYS


class RayActor:
    """Trains and scores in a process of Ray's. Faults are answers: an actor that raises would die.

    Args:
        folder: Where the run was started: relative paths are meant from there, if it exists here.
        search_path: Where modules are looked for there.
    """

    def __init__(self, folder: Path, search_path: list[str]) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        sys.path += [place for place in search_path if place not in sys.path]
        self._published_id = ""
        self._record = ArrayRecord()  # for messages without arrays
        self._total: Arrays = {}

    def start(self, make_client_app: MakeClientApp) -> FedsimError | None:
        """Build the ClientApp; return what stands in the way."""
        torch.set_num_threads(1)
        keep_freed_memory()
        ensure_task_identity()
        try:
            self._app = make_client_app()
        except FedsimError as error:
            return error
        return None

    def answer(
        self, stripped: StrippedUnit, published: list[Any]
    ) -> tuple[FedsimError | None, Message | None]:
        """Answer a unit.

        Args:
            stripped: The unit without the published arrays.
            published: A reference to these, or empty if there are none.

        Returns:
            A fault, or the reply: two values, so that the first may be asked for without the second
            crossing the network.
        """
        unit = stripped.restored(self._fetched(published))
        try:
            return None, execute(self._app, unit, self._total_for(unit))
        except FedsimError as error:
            return error, None

    def peak_memory(self) -> int:
        """Return the most resident memory that this process has held so far, in bytes."""
        return peak_bytes()

    def _fetched(self, published: list[Any]) -> ArrayRecord:
        """Return the published record: copied out of the store once, not once a unit."""
        if published and published[0].hex() != self._published_id:
            self._record = import_ray().get(published[0])
            self._published_id = published[0].hex()
        return self._record

    def _total_for(self, unit: Unit) -> Arrays:
        if unit.rule is not None:
            received = to_arrays(unit.messages[0].content.array_records[ARRAYS])
            if list(self._total) != list(received):
                self._total = zeros_like(received)
        return self._total


def place_of_driver() -> tuple[Path, list[str]]:
    """Return what an actor is made with: this process's folder and search path."""
    return Path.cwd(), sys.path

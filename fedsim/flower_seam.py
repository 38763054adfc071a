"""The one file that touches Flower's internals: arrays that travel live, and a task identity.

In process nothing needs to be serialized. ``LiveArray`` is a ``flwr.app.Array`` that holds a tensor
and serializes it only when somebody reads ``.data``. Checked with Flower 1.42;
``tests/test_flower_seam.py`` fails loudly on a release where it no longer holds.
"""

import logging
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.supercore.task_identity import TaskIdentity

from fedsim.arrays import Arrays

# Flower sets its logger to INFO on import and narrates every round; warnings still come through.
logging.getLogger("flwr").setLevel(logging.WARNING)


class LiveArray(Array):
    """A Flower array that holds a tensor instead of its bytes.

    Attributes:
        live: The tensor itself, shared with whoever made the array: read it, do not write.
    """

    live: torch.Tensor

    def __init__(self, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        self.__dict__.update(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            stype="numpy.ndarray",
            live=tensor,
        )

    @property
    def data(self) -> bytes:
        """The serialized tensor, made on first use."""
        if "_bytes" not in self.__dict__:
            buffer = BytesIO()
            np.save(buffer, self.live.cpu().numpy(), allow_pickle=False)
            self.__dict__["_bytes"] = buffer.getvalue()
        value: bytes = self.__dict__["_bytes"]
        return value

    @data.setter
    def data(self, value: bytes) -> None:
        array = np.load(BytesIO(value), allow_pickle=False)
        self.__dict__.update(live=torch.from_numpy(array), _bytes=value)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a private, writable copy, as Flower's own arrays do."""
        copied: np.ndarray[Any, Any] = self.live.cpu().numpy().copy()
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        # A module-level function: pickle would look the class up under its borrowed name.
        return _unpickle, (self.live.cpu().numpy(),)


# The header of a serialized record names the class; the other side knows only "Array".
LiveArray.__qualname__ = "Array"


def _unpickle(array: np.ndarray[Any, Any]) -> LiveArray:
    # A shared store hands out views that may not be written to; a client may use its arrays up.
    return LiveArray(torch.from_numpy(np.require(array, requirements="W")))


def to_record(arrays: Arrays) -> ArrayRecord:
    """Wrap named tensors, without a copy.

    Examples:
        >>> record = to_record({"w": torch.ones(2)})
        >>> to_arrays(record)["w"]
        tensor([1., 1.])
    """
    record = ArrayRecord()
    for name, tensor in arrays.items():
        record[name] = LiveArray(tensor)
    return record


def to_arrays(record: Mapping[str, Array]) -> Arrays:
    """Return a record's tensors: live ones shared, serialized ones read into new memory."""
    return {
        name: array.live if isinstance(array, LiveArray) else torch.from_numpy(array.numpy())
        for name, array in record.items()
    }


def ensure_task_identity() -> None:
    """Give this process the identity that a new ``Message`` asks for, unless it has one."""
    for name in ("run_id", "task_id", "node_id"):
        if getattr(TaskIdentity, f"_{name}") is None:
            setattr(TaskIdentity, name, 0)

"""Any Flower strategy, with our cohorts: what it samples from is this round's cohort.

Left alone, a Flower strategy trains ``fraction_train`` of all nodes and draws them from the global
``random``. Here it sees a Grid whose nodes are the cohort, so its own fraction stays 1, and the
global generators are seeded around each of its calls and restored afterwards.
"""

import copy
import functools
import random
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.arrays import Arrays, is_finite
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import LoopScoredStrategy, node_id
from fedsim.errors import ConfigError, EngineError
from fedsim.flower_seam import ensure_task_identity, to_arrays, to_record
from fedsim.replies import Senders
from fedsim.strategy_checks import check_aggregate, named_faults
from fedsim.streams import global_torch_stream, numpy_stream
from fedsim.update_sum import ROUND, USER


class CohortGrid(Grid):
    """A view of a Grid in which only the cohort is connected."""

    def __init__(self, grid: Grid, node_ids: list[int], strategy: str) -> None:
        self._grid, self._node_ids, self._strategy = grid, node_ids, strategy
        self._asked = 0

    def get_node_ids(self) -> list[int]:
        """Return the cohort's nodes.

        Raises:
            EngineError: The strategy keeps asking: it waits for more nodes than the cohort holds,
                and would for ever.
        """
        self._asked += 1
        if self._asked > 8:
            raise EngineError(
                f"strategy {self._strategy}: expected to do with this round's cohort of "
                f"{len(self._node_ids)}, found it waiting for more nodes; raise "
                "federated.cohort_size or lower strategy.min_available_nodes and min_train_nodes"
            )
        return list(self._node_ids)

    def set_run(self, run: Any) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Pass on."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Pass on."""
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Pass on."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class ForeignStrategy(LoopScoredStrategy):
    """Runs somebody's Flower strategy on our cohorts.

    Args:
        strategy: The strategy, as its author wrote it.
        cohort: Who takes part.
        seed: The run's seed.

    Attributes:
        on_resume: What came back of a resumed strategy and what did not; empty if it says so
            itself, by ``state_dict`` and ``load_state_dict``.

    Raises:
        ConfigError: The strategy brings its own ``start``: fedsim's loop would never call it.
    """

    def __init__(self, strategy: Strategy, cohort: CohortSampler, seed: int) -> None:
        self._strategy, self._cohort, self._seed = strategy, cohort, seed
        self._name = type(strategy).__name__
        self._sent: Arrays = {}
        self._senders = Senders(0, {})
        self.on_resume = ""
        if type(strategy).start is not Strategy.start:
            raise ConfigError(
                f"strategy.name: {self._name} overrides start(), which is the training loop itself "
                "and which fedsim's own loop replaces; use a strategy that overrides "
                "configure_train and aggregate_train only"
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Let the strategy address the cohort; put its messages into the cohort's order."""
        ensure_task_identity()
        self._sent = to_arrays(arrays)
        nodes = {node_id(int(index)): int(index) for index in self._cohort.draw(server_round)}
        users = self._cohort.users.ids
        self._senders = Senders(server_round, {node: users[i] for node, i in nodes.items()})
        if not nodes:
            return []
        view = CohortGrid(grid, list(nodes), self._name)
        with (
            _seeded_globals(self._seed, self._name, server_round),
            named_faults(self._name, server_round),
        ):
            messages = list(
                self._strategy.configure_train(server_round, arrays, ConfigRecord({**config}), view)
            )
        rank = {node: position for position, node in enumerate(nodes)}
        for message in messages:
            if message.metadata.dst_node_id not in rank:
                raise EngineError(
                    f"strategy {self._name}, round {server_round}: expected messages to this "
                    f"round's cohort, found one to node {message.metadata.dst_node_id}; address "
                    "nodes from grid.get_node_ids()"
                )
        messages.sort(key=lambda message: rank[message.metadata.dst_node_id])
        return [
            _addressed(message, server_round, users[nodes[message.metadata.dst_node_id]])
            for message in messages
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Let the strategy aggregate, and check what it is given and what it returns.

        Raises:
            EngineError: A reply holds NaN or infinity: Flower's robust strategies would leave it
                out, or take it in, without a word.
        """
        given = list(replies)
        for reply in given:
            self._check_reply(reply)
        with (
            _seeded_globals(self._seed, self._name, server_round, "aggregate"),
            named_faults(self._name, server_round),
        ):
            result = self._strategy.aggregate_train(server_round, given)
        if not isinstance(result, tuple) or len(result) != 2:
            raise EngineError(
                f"strategy {self._name}, round {server_round}: expected aggregate_train to return "
                f"(arrays, metrics), found {type(result).__name__}; return both"
            )
        arrays, metrics = result
        if arrays is None:
            if not given:  # an empty cohort: nothing to aggregate
                return to_record(self._sent), MetricRecord()
            raise EngineError(
                f"strategy {self._name}, round {server_round}: expected arrays, found None; "
                "aggregate_train must return the new global arrays"
            )
        if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord | None):
            raise EngineError(
                f"strategy {self._name}, round {server_round}: expected an ArrayRecord and a "
                f"MetricRecord, found {type(arrays).__name__} and {type(metrics).__name__}; return "
                "flwr.app's records"
            )
        found = to_arrays(arrays)
        check_aggregate(found, self._sent, self._name, server_round)
        cast = {name: found[name].to(sent.dtype) for name, sent in self._sent.items()}
        return to_record(cast), metrics if metrics is not None else MetricRecord()

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's own state, or what of its attributes can be stored.

        That is numbers, strings, arrays, records, and lists, tuples and dicts of these: the
        moments of Flower's FedAdam, say. Anything else is taken to be what it was built with.
        """
        if self._keeps_its_own_state:
            with named_faults(self._name, self._senders.round_num):
                return {"own": self._strategy.state_dict()}  # type: ignore[attr-defined]
        stored = {name: _encode(value) for name, value in vars(self._strategy).items()}
        lost = [
            name
            for name, value in vars(self._strategy).items()
            if stored[name] is _UNKNOWN and not isinstance(value, _CODE)
        ]
        attributes = {name: value for name, value in stored.items() if value is not _UNKNOWN}
        return {"attributes": attributes, "lost": lost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        if "own" in state:
            self._strategy.load_state_dict(state["own"])  # type: ignore[attr-defined]
            return
        for name, value in state.get("attributes", {}).items():
            setattr(self._strategy, name, _decode(value))
        self.on_resume = (
            f"strategy {self._name} has no state_dict and load_state_dict: its attributes were "
            "taken back from the checkpoint"
        )
        if state.get("lost"):
            names = ", ".join(state["lost"])
            self.on_resume += f", but not {names}, which can't be stored: as they were built"

    @property
    def _keeps_its_own_state(self) -> bool:
        return all(hasattr(self._strategy, name) for name in ("state_dict", "load_state_dict"))

    def _check_reply(self, reply: Message) -> None:
        records = reply.content.array_records.values() if reply.has_content() else ()
        for record in records:
            bad = [name for name, tensor in to_arrays(record).items() if not is_finite(tensor)]
            if bad:
                raise EngineError(
                    f"strategy {self._name}, {self._senders.place_of(reply)}: expected a reply of "
                    f"finite numbers, found NaN or infinity in {bad[:3]}; lower "
                    "federated.local.learning_rate or set federated.local.max_grad_norm"
                )


_CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type,
    functools.partial,
)  # fmt: skip
"""What is no state: it is made with the strategy."""

_UNKNOWN = object()


def _encode(value: Any) -> Any:
    """Turn a value into tensors and plain containers, tagged so that ``_decode`` restores it."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):  # before anything else: np.float64 is a float
        return ["scalar", torch.from_numpy(np.array(value))]
    if isinstance(value, np.ndarray) and value.dtype != object:
        return ["ndarray", torch.from_numpy(value.copy())]
    if isinstance(value, torch.Tensor):
        return ["tensor", value]
    if isinstance(value, ArrayRecord):
        return ["record", to_arrays(value)]
    if type(value) in (list, tuple):  # of a subclass nobody knows how it is made
        items = [_encode(item) for item in value]
        return _UNKNOWN if _UNKNOWN in items else [type(value).__name__, items]
    if type(value) is dict and all(isinstance(key, str | int) for key in value):
        encoded = {key: _encode(item) for key, item in value.items()}
        return _UNKNOWN if _UNKNOWN in encoded.values() else ["dict", encoded]
    return _UNKNOWN


def _decode(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, content = value
    match kind:
        case "scalar":
            return content.numpy()[()]
        case "ndarray":
            return content.numpy()
        case "record":
            return to_record(content)
        case "list":
            return [_decode(item) for item in content]
        case "tuple":
            return tuple(_decode(item) for item in content)
        case "dict":
            return {key: _decode(item) for key, item in content.items()}
        case _:
            return content


def _addressed(message: Message, round_num: int, user: str) -> Message:
    """Copy a message and add the user to its config; strategies share one content among all."""
    content = RecordDict(dict(message.content.items()))
    configs = message.content.config_records
    key = next(iter(configs), "config")
    content[key] = ConfigRecord({**configs.get(key, {}), ROUND: round_num, USER: user})
    addressed = copy.copy(message)
    addressed.content = content
    return addressed


@contextmanager
def _seeded_globals(seed: int, *keys: str | int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch for a while, and restore them after."""
    stream = numpy_stream(seed, "foreign strategy", *keys)
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(int(stream.integers(2**63)))
    np.random.seed(int(stream.integers(2**32)))  # noqa: NPY002
    try:
        with global_torch_stream(seed, "foreign strategy", *keys):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002

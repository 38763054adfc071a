"""Which node of Flower's runtime trains which user."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim import __version__
from fedsim.data.dataset import UserTable
from fedsim.errors import DataError, EngineError, FedsimError, raise_together

QUESTION = "question"
"""Key of the record with which a node is asked about its data."""

USERS, NUM_IMAGES, LABELS, LABEL_COUNTS = "users", "num-images", "labels", "label-counts"
VERSION = "fedsim"
REASON = "reason"
"""Keys of what it tells; the last one alone if it can't."""

_SECONDS_BETWEEN_LOOKS = 0.5


class Nodes(Protocol):
    """Says where users can be trained."""

    def holding(self, users: Sequence[str]) -> list[int | None]:
        """Return a connected node for each user; None where there is none at the moment."""
        ...

    def news(self) -> list[str]:
        """Return what there is to tell about nodes, once."""
        ...


@dataclass(frozen=True)
class AnyNode:
    """Every node reads the same data, as in Flower's simulation: users are dealt in turn.

    What is sent again goes to other nodes, if fewer users are left than before.

    Attributes:
        grid: Flower's.
    """

    grid: Grid

    def holding(self, users: Sequence[str]) -> list[int | None]:
        """Return a node for each user."""
        nodes = sorted(self.grid.get_node_ids())
        return [nodes[i % len(nodes)] if nodes else None for i in range(len(users))]

    def news(self) -> list[str]:
        """Return nothing."""
        return []


@dataclass(frozen=True)
class Holding:
    """What a node tells about its data.

    Attributes:
        users: Those of its train split.
        label_names: In order.
        label_counts: How many of their images have each label, shape (labels,).
        version: Of its fedsim.
    """

    users: UserTable
    label_names: tuple[str, ...]
    label_counts: npt.NDArray[np.int64]
    version: str


class Owners:
    """Every node holds users of its own, as in a deployment: a node is asked once a run which.

    Args:
        grid: Flower's.
        question: What they are asked; answered by the keys above.
        label_names: Theirs have to be the same.
        seconds: How long they may take to answer.
    """

    def __init__(
        self, grid: Grid, question: ConfigRecord, label_names: tuple[str, ...], seconds: float
    ) -> None:
        self._grid, self._question, self._seconds = grid, question, seconds
        self._label_names = label_names
        self._holdings: dict[int, Holding] = {}
        self._waited_in_vain = False
        self._left_out: set[int] = set()  # connected, and not asked again or told of again
        self._news: list[str] = []

    def wait_for(self, num_nodes: int) -> dict[int, Holding]:
        """Wait until so many nodes are connected, and return what all that are hold.

        They are asked anew, and what is gone is forgotten: between two runs nodes may leave, and
        come back with other users or under other ids. After a wait in vain nobody is waited for:
        the other runs of a file would wait for the same nodes.

        Raises:
            FedsimError: They do not connect, or one does not answer, has another fedsim, data that
                can't be read, or other labels.
        """
        until = time.monotonic() + (0.0 if self._waited_in_vain else self._seconds)
        while len(connected := list(self._grid.get_node_ids())) < num_nodes:
            if time.monotonic() > until:
                self._waited_in_vain = True
                raise EngineError(
                    f"num-nodes: expected {num_nodes} SuperNodes, found {len(connected)} connected "
                    f"after {self._seconds:g} s; start the others, or lower num-nodes"
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._waited_in_vain = False
        self._holdings, self._left_out, self._news = {}, set(), []
        raise_together(list(self._ask(connected).values()))
        return dict(self._holdings)

    def holding(self, users: Sequence[str]) -> list[int | None]:
        """Return the connected node that holds each user; a node that came back is asked anew.

        One that does not answer or does not fit is left out until it comes back once more. One that
        holds a user of another node, as one that came back under another id may for a while, is
        left out as long as that one is connected.
        """
        connected = list(self._grid.get_node_ids())
        self._left_out &= set(connected)
        known = self._holdings.keys() | self._left_out
        for node, fault in self._ask([node for node in connected if node not in known]).items():
            self._leave_out(node, str(fault))
        owner: dict[str, int] = {}
        for node, holding in self._holdings.items():
            if node not in connected:
                continue
            held = next((user for user in holding.users.ids if user in owner), None)
            if held is None:
                owner |= dict.fromkeys(holding.users.ids, node)
            else:
                why = f"expected users of its own, found {held!r} of SuperNode {owner[held]}"
                self._leave_out(node, f"SuperNode {node}: {why}; it waits until that one leaves")
        return [owner.get(user) for user in users]

    def news(self) -> list[str]:
        """Return which nodes were left out since the last call, and why."""
        news, self._news = self._news, []
        return news

    def _leave_out(self, node: int, why: str) -> None:
        if node not in self._left_out:
            self._left_out.add(node)
            self._news.append(f"a SuperNode that connected late is left out: {why}")

    def _ask(self, nodes: Sequence[int]) -> dict[int, FedsimError]:
        """Ask nodes whom they hold; return what is wrong with those that can't take part."""
        messages = [
            Message(
                RecordDict({QUESTION: self._question}),
                dst_node_id=node,
                message_type=MessageType.QUERY,
                ttl=self._seconds,
            )
            for node in nodes
        ]
        wrong: dict[int, FedsimError] = {
            node: EngineError(
                f"SuperNode {node}: expected to be told within {self._seconds:g} s which users it "
                "holds, found no answer; see its log"
            )
            for node in nodes
        }
        if not messages:
            return wrong
        for reply in self._grid.send_and_receive(messages, timeout=self._seconds):
            node = reply.metadata.src_node_id
            if node not in wrong:  # the runtime tells of a lost message in its own name
                continue
            try:
                self._holdings[node] = _checked(node, reply, self._label_names)
                del wrong[node]
            except FedsimError as error:
                wrong[node] = error
        return wrong


def _checked(node: int, reply: Message, label_names: tuple[str, ...]) -> Holding:
    if reply.has_error():
        raise EngineError(
            f"SuperNode {node}: expected to be told which users it holds, found that its client "
            f"failed: {reply.error.reason}; see its log"
        )
    holding = _holding_of(node, reply.content)
    _check_alike(node, holding, label_names)
    return holding


def _holding_of(node: int, content: RecordDict) -> Holding:
    answer: Mapping[str, object] = next(iter(content.config_records.values()), {})
    if REASON in answer:
        raise DataError(f"SuperNode {node}: {answer[REASON]}")
    told: list[Any] = [answer.get(key) for key in (USERS, NUM_IMAGES, LABELS, LABEL_COUNTS)]
    ids, sizes, labels, counts = told
    if not (
        _is_list_of(str, ids)
        and _is_list_of(int, sizes)
        and _is_list_of(str, labels)
        and _is_list_of(int, counts)
        and (len(ids), len(labels)) == (len(sizes), len(counts))
        and sorted(set(ids)) == ids
        and min(sizes, default=1) >= 1
        and min(counts, default=0) >= 0
    ):
        raise EngineError(
            f"SuperNode {node}: expected sorted ids of its users, their numbers of images and "
            f"labels, found {str(dict(answer))[:80]}; use the same release of fedsim everywhere"
        )
    return Holding(
        UserTable(tuple(ids), np.array(sizes, dtype=np.int64)),
        tuple(labels),
        np.array(counts, dtype=np.int64),
        str(answer.get(VERSION)),
    )


def _is_list_of(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def all_users(holdings: Mapping[int, Holding]) -> UserTable:
    """Return the users of all nodes together.

    Raises:
        DataError: Two nodes hold the same user, whose influence would not be bounded.
    """
    owner: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for node, holding in holdings.items():
        for user, size in zip(holding.users.ids, holding.users.num_images.tolist(), strict=True):
            if user in owner:
                raise DataError(
                    f"SuperNodes {owner[user]} and {node}: expected users that are on one node "
                    f"each, found {user!r} on both; give the file of one of them without this user"
                )
            owner[user], sizes[user] = node, size
    ids = tuple(sorted(owner))
    return UserTable(ids, np.array([sizes[user] for user in ids], dtype=np.int64))


def _check_alike(node: int, holding: Holding, label_names: tuple[str, ...]) -> None:
    """Raise DataError for a node whose labels, or EngineError for one whose fedsim, differ."""
    if holding.version != __version__:
        raise EngineError(
            f"SuperNode {node}: expected fedsim {__version__} as on the server, found "
            f"{holding.version}; install the same release on every machine"
        )
    if holding.label_names != label_names:
        different = sorted(set(holding.label_names).symmetric_difference(label_names))[:3]
        raise DataError(
            f"SuperNode {node}: expected the server's {len(label_names)} labels, found "
            f"{len(holding.label_names)} (different: {different}); make the files of all "
            "machines from one collection, as `fedsim data split` does"
        )


Tell = Callable[[str], None]
"""Told what there is to know about a run that stops nothing."""

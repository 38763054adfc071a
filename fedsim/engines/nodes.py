"""Which node of Flower's runtime trains which user."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim.engines.holdings import QUESTION, Holding, checked_holding
from fedsim.errors import EngineError, FedsimError, raise_together

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
                self._holdings[node] = checked_holding(node, reply, self._label_names)
                del wrong[node]
            except FedsimError as error:
                wrong[node] = error
        return wrong


Tell = Callable[[str], None]
"""Told what there is to know about a run that stops nothing."""

"""A strategy's part on the user's side, with everything that it does checked."""

from collections.abc import Callable
from typing import TypeVar

import torch

from fedsim.arrays import Arrays
from fedsim.client_part import Client, ClientPart
from fedsim.errors import EngineError
from fedsim.strategy_checks import check_named_tensors, raised_by

_Result = TypeVar("_Result")


class CheckedPart(ClientPart):
    """Does what a part does; its faults bear the strategy's name and the part's.

    Round and user are added where the message that names them is known.

    Args:
        part: The strategy's.
        strategy: The strategy's name.
    """

    def __init__(self, part: ClientPart, strategy: str) -> None:
        self._part, self._strategy = part, strategy
        self.state_copies, self.keeps_example_level = part.state_copies, part.keeps_example_level
        self._versions: list[int] = []

    def start(self, client: Client) -> None:
        """Begin a user's round."""
        self._versions = _versions_of(client)
        self._checked("start", lambda: self._part.start(client))

    def adjust(self, client: Client, gradients: list[torch.Tensor]) -> None:
        """Change a step's gradients."""
        self._checked("adjust", lambda: self._part.adjust(client, gradients))

    def finish(self, client: Client) -> Arrays:
        """End a user's round.

        Raises:
            EngineError: What is sent back or kept can't be, or the part wrote into what the user
                received, which is everybody's.
        """
        increments = self._checked("finish", lambda: self._part.finish(client))
        where = self._where("finish")
        if self._versions != _versions_of(client):
            raise EngineError(
                f"{where}: expected client.received and client.sent_along as they came, found that "
                "the part wrote into them, which are the next user's too; make new tensors"
            )
        check_named_tensors(increments, where)
        for name, increment in increments.items():
            _check_increment(name, increment, client.sent_along, where)
        check_named_tensors(client.state, f"{where}: client.state")
        return increments

    def _checked(self, method: str, call: Callable[[], _Result]) -> _Result:
        with raised_by(self._where(method)):
            return call()

    def _where(self, method: str) -> str:
        return f"strategy {self._strategy}, {type(self._part).__name__}.{method}"


def _versions_of(client: Client) -> list[int]:
    shared = (*client.received.values(), *client.sent_along.values())
    return [tensor._version for tensor in shared]


def _check_increment(name: str, increment: torch.Tensor, sent: Arrays, where: str) -> None:
    if name not in sent:
        raise EngineError(
            f"{where}: expected increments for what was sent along ({', '.join(sent) or 'nothing'})"
            f", found {name!r}; let sent_along send it, or leave it out"
        )
    if increment.shape != sent[name].shape or increment.dtype != sent[name].dtype:
        raise EngineError(
            f"{where}: expected {name!r} of {sent[name].dtype} {tuple(sent[name].shape)}, found "
            f"{increment.dtype} {tuple(increment.shape)}; return it as it was sent"
        )

"""The unit of work: what one worker does between two words with the Grid."""

import copy
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays, one_thread, zeros_like
from fedsim.engines.client_app import LocalClientApp
from fedsim.engines.on_device import back_on_cpu, sent_to
from fedsim.errors import EngineError, FedsimError
from fedsim.flower_seam import to_arrays
from fedsim.update_sum import ARRAYS, FOLD, ROUND, USER, FoldRule, UpdateSum


@dataclass(frozen=True)
class Unit:
    """Messages that one worker answers in order: a block of users, or a single message.

    Attributes:
        messages: At least one.
        rule: How the users' updates are folded into one reply; None for a single message whose
            reply is handed on as it is.
    """

    messages: tuple[Message, ...]
    rule: FoldRule | None


def split_into_units(messages: Iterable[Message]) -> Iterator[Unit]:
    """Cut a round's messages into units: neighbours that share a block and ask to be folded."""
    for group, members in groupby(messages, key=_block_of):
        if group is None:
            for message in members:
                yield Unit((message,), rule=None)
        else:
            block = tuple(members)
            yield Unit(block, FoldRule.from_record(block[0].content.config_records[FOLD]))


def _block_of(message: Message) -> str | None:
    return message.metadata.group_id if FOLD in message.content else None


def execute(app: ClientApp, unit: Unit, total: Arrays, following: Message | None = None) -> Message:
    """Answer a unit's messages, on one torch thread.

    Args:
        app: The ClientApp.
        unit: What to do.
        total: Zeroed here if the unit is folded; then the block's sum grows in it.
        following: What the app is asked next, after the unit, if that is known.

    Returns:
        The client's reply, or one that holds the block's sum, in ``total``'s memory.

    Raises:
        EngineError: A client failed, with the user, the round and the traceback.
    """
    with one_thread():
        if unit.rule is None:
            return back_on_cpu(_call(app, unit.messages[0], following))
        block = _trained_at_once(app, unit.messages, unit.rule, total)
        if block is None:
            block = _trained_in_turn(app, unit.messages, unit.rule, total, following)
        return Message(block.to_content(), reply_to=unit.messages[0])


def _trained_at_once(
    app: ClientApp, messages: tuple[Message, ...], rule: FoldRule, total: Arrays
) -> UpdateSum | None:
    """Train a block's users together, where the model can."""
    if not isinstance(app, LocalClientApp):
        return None
    try:
        return app.train_block(messages, rule, total)
    except FedsimError:
        raise  # it names the user
    except Exception as error:
        raise _failed(f"{place_of(messages[0])} and others", error) from error


def _trained_in_turn(
    app: ClientApp,
    messages: tuple[Message, ...],
    rule: FoldRule,
    total: Arrays,
    following: Message | None,
) -> UpdateSum:
    device = app.device if isinstance(app, LocalClientApp) else torch.device("cpu")
    for tensor in total.values():
        tensor.zero_()
    grown = total
    if device.type != "cpu":  # there the whole block is trained, clipped and folded
        messages, grown = sent_to(device, messages), zeros_like(total, device)
    block = UpdateSum(grown)
    for message, coming in zip(messages, (*messages[1:], following), strict=True):
        reply = _call(app, message, coming)
        received = to_arrays(message.content.array_records[ARRAYS])
        block.add(reply, received, rule, where=place_of(message))
    if grown is not total:
        torch._foreach_copy_(list(total.values()), [grown[name] for name in total])
        block.total = total
    return block


def _call(app: ClientApp, message: Message, following: Message | None) -> Message:
    if isinstance(app, LocalClientApp):
        app.announce(following)
    # A fresh content: an app that writes into its message must not reach the next client.
    private = copy.copy(message)
    private.content = RecordDict(dict(message.content.items()))
    context = Context(
        run_id=message.metadata.run_id,
        node_id=message.metadata.dst_node_id,
        node_config={},
        state=RecordDict(),
        run_config={},
    )
    try:
        return app(private, context)
    except FedsimError as error:
        raise type(error)(f"{place_of(message)}: {error}") from error
    except Exception as error:
        raise _failed(place_of(message), error) from error


def _failed(place: str, error: Exception) -> EngineError:
    return EngineError(
        f"{place}: the client failed with {type(error).__name__}: {error}; mend the client or "
        f"leave the user out\n{traceback.format_exc()}"
    )


def place_of(message: Message) -> str:
    """Return the round and the user that a message is about, for an error."""
    for config in message.content.config_records.values():
        if USER in config:
            return f"round {config.get(ROUND)!r}, user {config[USER]!r}"
    return f"{message.metadata.message_type}, node {message.metadata.dst_node_id}"

"""The weighted sum of users' updates: clipped one by one, folded in a fixed order."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedsim.arrays import Arrays, add_clipped, add_difference, zeros_like
from fedsim.errors import EngineError
from fedsim.flower_seam import to_arrays, to_record

Weighting = Literal["uniform", "examples"]

ARRAYS, CONFIG, METRICS, FOLD, SUM = "arrays", "config", "metrics", "fold", "sum"
"""Keys of the records in a message."""

USER, ROUND = "user", "server-round"
"""Keys of a message's config record."""


@dataclass(frozen=True)
class FoldRule:
    """How a user's update enters the sum. It travels with the messages.

    Attributes:
        weighting: Weight 1 per user, or the number of examples.
        clipping_norm: S, the L2 bound of one user's update before it is weighted; infinity for
            none.
    """

    weighting: Weighting
    clipping_norm: float = math.inf

    def to_record(self) -> ConfigRecord:
        """Return the form in which it travels."""
        return ConfigRecord({"weighting": self.weighting, "clipping-norm": self.clipping_norm})

    @classmethod
    def from_record(cls, record: ConfigRecord) -> "FoldRule":
        """Read it back."""
        weighting: Weighting = "uniform" if record["weighting"] == "uniform" else "examples"
        return cls(weighting, float(record["clipping-norm"]))  # type: ignore[arg-type]


@dataclass
class UpdateSum:
    """A running sum of weighted, clipped updates, with what each user reported.

    Attributes:
        total: The sum, in the arrays' own dtype (float32 for all of fedsim's models).
        num_examples, train_loss, update_norm: One entry per user, in the order of the sum; the
            norm is the update's before clipping.
        weight: Sum of the users' weights.
    """

    total: Arrays
    num_examples: list[int] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    update_norm: list[float] = field(default_factory=list)
    weight: float = 0.0

    def add(self, reply: Message, received: Arrays, rule: FoldRule, where: str) -> None:
        """Add one user's reply: its trained arrays minus those that the user received.

        The reply's arrays may be used up, and hold the update afterwards.

        Args:
            reply: Holds trained arrays, ``num-examples`` and ``train_loss``.
            received: The arrays that were sent to the user.
            rule: Weighting and clipping.
            where: Round and user, for errors.

        Raises:
            EngineError: The update has other names or shapes, or is not finite.
        """
        trained = to_arrays(reply.content.array_records[ARRAYS])
        _check_like(trained, received, where)
        metrics = reply.content.metric_records[METRICS]
        num_examples = int(metrics["num-examples"])  # type: ignore[arg-type]
        weight = 1.0 if rule.weighting == "uniform" else float(num_examples)
        new = [trained[name] for name in received]
        old, total = list(received.values()), list(self.total.values())
        if math.isinf(rule.clipping_norm):
            norm = add_difference(total, new, old, weight)
        else:
            torch._foreach_sub_(new, old)
            norm = add_clipped(total, new, rule.clipping_norm, weight)
        if not math.isfinite(norm):
            raise EngineError(
                f"{where}: expected an update of finite numbers, found NaN or infinity in "
                f"{_not_finite(trained)}; lower federated.local.learning_rate or set "
                "federated.local.max_grad_norm"
            )
        self.num_examples.append(num_examples)
        self.train_loss.append(float(metrics["train_loss"]))  # type: ignore[arg-type]
        self.update_norm.append(norm)
        self.weight += weight

    def merge(self, other: "UpdateSum") -> None:
        """Add a partial sum; partial sums come in the order of their blocks."""
        torch._foreach_add_(list(self.total.values()), [other.total[name] for name in self.total])
        self.num_examples += other.num_examples
        self.train_loss += other.train_loss
        self.update_norm += other.update_norm
        self.weight += other.weight

    def to_content(self) -> RecordDict:
        """Return the form in which a block's sum travels."""
        metrics = MetricRecord(
            {
                "num-examples": self.num_examples,
                "train_loss": self.train_loss,
                "update-norm": self.update_norm,
                "weight": self.weight,
            }
        )
        return RecordDict({SUM: to_record(self.total), METRICS: metrics})

    @classmethod
    def from_content(cls, content: RecordDict) -> "UpdateSum":
        """Read it back; the arrays are shared with the message."""
        metrics = content.metric_records[METRICS]
        return cls(
            total=to_arrays(content.array_records[SUM]),
            num_examples=metrics["num-examples"],  # type: ignore[arg-type]
            train_loss=metrics["train_loss"],  # type: ignore[arg-type]
            update_norm=metrics["update-norm"],  # type: ignore[arg-type]
            weight=metrics["weight"],  # type: ignore[arg-type]
        )


def _node_of(reply: Message) -> str:
    return f"node {reply.metadata.src_node_id}"


def update_of(
    reply: Message,
    received: Arrays,
    kept: UpdateSum,
    place_of: Callable[[Message], str] = _node_of,
) -> Arrays:
    """Return one user's update, as new arrays, and keep what the user reported.

    Args:
        reply: From a user; not folded.
        received: The arrays that were sent to the user.
        kept: Takes the number of examples, the loss and the norm; its total is not touched.
        place_of: Round and user of a reply, for errors.

    Raises:
        EngineError: The reply is an error, or its update does not fit or is not finite.
    """
    _check_reply(reply, place_of)
    alone = UpdateSum(zeros_like(received))
    alone.add(reply, received, FoldRule("uniform"), place_of(reply))
    kept.num_examples += alone.num_examples
    kept.train_loss += alone.train_loss
    kept.update_norm += alone.update_norm
    return alone.total


def fold_replies(
    replies: Iterable[Message],
    received: Arrays,
    rule: FoldRule,
    place_of: Callable[[Message], str] = _node_of,
) -> UpdateSum:
    """Sum a round's replies: block sums as they come, or users' replies folded in the same way.

    Args:
        replies: In the order of the messages. An engine that folds hands over one per block; any
            other one per user, and those of a block share their ``group_id``.
        received: The arrays that were sent out.
        rule: Weighting and clipping, for replies that nobody has folded yet.
        place_of: Round and user of a reply, for errors.

    Raises:
        EngineError: A reply is an error, or its arrays do not fit.
    """
    result = UpdateSum(zeros_like(received))
    for part in _partial_sums(replies, received, rule, place_of):
        result.merge(part)
    return result


def _partial_sums(
    replies: Iterable[Message],
    received: Arrays,
    rule: FoldRule,
    place_of: Callable[[Message], str],
) -> Iterator[UpdateSum]:
    block: UpdateSum | None = None
    block_id = ""
    for reply in replies:
        _check_reply(reply, place_of)
        if SUM in reply.content:
            yield UpdateSum.from_content(reply.content)
            continue
        if block is None or reply.metadata.group_id != block_id:
            if block is not None:
                yield block
            block, block_id = UpdateSum(zeros_like(received)), reply.metadata.group_id
        block.add(reply, received, rule, where=place_of(reply))
    if block is not None:
        yield block


def _check_reply(reply: Message, place_of: Callable[[Message], str]) -> None:
    if reply.has_error():
        raise EngineError(f"{place_of(reply)}: the client failed: {reply.error.reason}")


def _check_like(found: Arrays, expected: Arrays, where: str) -> None:
    if found.keys() != expected.keys():
        names = sorted(found.keys() ^ expected.keys())[:3]
        raise EngineError(
            f"{where}: expected a reply with the arrays that were sent, found a difference "
            f"in {names}; return every array under its own name"
        )
    for name, tensor in found.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise EngineError(
                f"{where}: expected array {name!r} of {expected[name].dtype} "
                f"{tuple(expected[name].shape)}, found {tensor.dtype} {tuple(tensor.shape)}; "
                "return it with the shape and dtype that it was sent with"
            )


def _not_finite(arrays: Arrays) -> list[str]:
    return [name for name, tensor in arrays.items() if not bool(tensor.isfinite().all())][:3]

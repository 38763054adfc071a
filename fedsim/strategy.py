"""The base of strategies whose aggregation is a weighted sum of updates.

A round is: draw the cohort, sum the users' (clipped) updates, add the privacy mechanism's noise,
divide, and take a server step. The cohort sampler and the mechanism are values that the strategy
is composed with; the server step is what a strategy of one's own writes::

    class Mine(SumStrategy):
        def __init__(self, *, server_learning_rate: float = 1.0) -> None:
            super().__init__(weighting="uniform")
            self.server_learning_rate = server_learning_rate

        def server_step(self, round_num, arrays, update):
            return {name: a + self.server_learning_rate * update[name]
                    for name, a in arrays.items()}
"""

import traceback
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.arrays import Arrays, one_thread
from fedsim.cohort import CohortSampler, deal
from fedsim.errors import ConfigError, EngineError, FedsimError
from fedsim.flower_seam import ensure_task_identity, to_arrays, to_record
from fedsim.replies import drain
from fedsim.streams import global_torch_stream
from fedsim.update_sum import (
    ARRAYS,
    CONFIG,
    FOLD,
    ROUND,
    USER,
    FoldRule,
    UpdateSum,
    Weighting,
    fold_replies,
)

NUM_BLOCKS = 32
"""Partial sums that a cohort is dealt to. Part of the numbers: it fixes the order of every sum."""


class SumMechanism(Protocol):
    """A central privacy mechanism for sums."""

    @property
    def clipping_norm(self) -> float:
        """S: the bound of one user's update in the round at hand."""
        ...

    @property
    def denominator(self) -> float:
        """What the noised sum is divided by: public, the same in every round."""
        ...

    def release(self, total: Arrays, update_norms: list[float], round_num: int) -> dict[str, float]:
        """Noise the sum in place; return figures about the round."""
        ...


class LoopScoredStrategy(Strategy):
    """A Flower strategy that leaves scoring to the loop, and its summary to config.yaml."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return nothing: every round is scored by the loop."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Return nothing: every round is scored by the loop."""

    def summary(self) -> None:
        """Print nothing: the run's config.yaml says it all."""


class SumStrategy(LoopScoredStrategy):
    """A Flower strategy made of a cohort sampler, a privacy mechanism and a server step.

    Args:
        weighting: ``"uniform"``: every user counts the same, and the sum is divided by the number
            of users (under central DP by the public expected cohort size). ``"examples"``: users
            are weighted by their number of examples.
    """

    def __init__(self, *, weighting: Weighting = "uniform") -> None:
        if weighting not in ("uniform", "examples"):
            raise ConfigError(
                "strategy.weighting: expected 'uniform' or 'examples', "
                f"found {weighting!r}; choose one of the two"
            )
        self.weighting = weighting
        self._cohort: CohortSampler | None = None
        self._mechanism: SumMechanism | None = None
        self._sent: Arrays = {}

    def compose(self, cohort: CohortSampler, mechanism: SumMechanism | None = None) -> None:
        """Set the sampler and the mechanism. Called once, before the first round."""
        if mechanism is not None:
            check_bounded(self)
        self._cohort, self._mechanism = cohort, mechanism

    @abstractmethod
    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Return the next global arrays.

        Args:
            round_num: From 1.
            arrays: The current global arrays; not to be written to.
            update: The mean update of the cohort (trained minus received), noised under central
                DP; the step may write to it.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors, numbers, strings, lists and dicts of these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the cohort and address one message to each of its users, block by block."""
        if self._cohort is None:
            raise ConfigError(
                f"{type(self).__name__}: expected compose() before the first round, found no "
                "cohort sampler; call strategy.compose(CohortSampler(...))"
            )
        ensure_task_identity()
        self._sent = to_arrays(arrays)
        users = self._cohort.users
        drawn = self._cohort.draw(server_round)
        fold = self._rule().to_record()
        messages = []
        for number, block in enumerate(deal(users.num_images[drawn], NUM_BLOCKS)):
            for position in block:
                index = int(drawn[position])
                address = ConfigRecord({**config, ROUND: server_round, USER: users.ids[index]})
                messages.append(
                    Message(
                        RecordDict({ARRAYS: arrays, CONFIG: address, FOLD: fold}),
                        dst_node_id=node_id(index),
                        message_type=MessageType.TRAIN,
                        group_id=f"{server_round}/{number}",
                    )
                )
        return messages

    @one_thread()
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Sum, noise, divide, step."""
        summed = fold_replies(drain(replies), self._sent, self._rule())
        figures = _cohort_metrics(summed)
        if self._mechanism is not None:
            figures |= self._mechanism.release(summed.total, summed.update_norm, server_round)
            denominator = self._mechanism.denominator
        else:
            denominator = summed.weight
        if denominator > 0:  # an empty cohort without a mechanism has nothing to divide
            torch._foreach_div_(list(summed.total.values()), denominator)
        arrays = self._stepped(server_round, summed.total)
        return to_record(arrays), MetricRecord({**figures})

    def _stepped(self, round_num: int, update: Arrays) -> Arrays:
        """Take the server step, and check what came of it."""
        name, sent = type(self).__name__, self._sent
        versions = [tensor._version for tensor in sent.values()]
        seed = self._cohort.seed if self._cohort else 0
        with global_torch_stream(seed, "server step", round_num), named_faults(name, round_num):
            arrays = self.server_step(round_num, sent, update)
        if versions != [tensor._version for tensor in sent.values()]:
            raise EngineError(
                f"strategy {name}, round {round_num}: expected server_step to leave its arrays as "
                "they were, found that it wrote into them, which may be the best round's; return "
                "new tensors (a + u for a += u)"
            )
        check_aggregate(arrays, sent, name, round_num)
        return {key: arrays[key].to(tensor.dtype) for key, tensor in sent.items()}

    def _rule(self) -> FoldRule:
        if self._mechanism is None:
            return FoldRule(self.weighting)
        return FoldRule(self.weighting, self._mechanism.clipping_norm)


def check_bounded(strategy: SumStrategy) -> None:
    """Raise ConfigError for a strategy under which a user's influence would not be bounded."""
    if strategy.weighting != "uniform":
        raise ConfigError(
            f"strategy.weighting: expected 'uniform' under privacy.central, found "
            f"{strategy.weighting!r}, with which one user's influence would not be bounded by the "
            "clipping norm; set strategy.weighting: uniform"
        )
    kind = type(strategy)
    own = [
        name
        for name in ("configure_train", "aggregate_train", "compose")
        if getattr(kind, name) is not getattr(SumStrategy, name)
    ]
    if own:
        raise ConfigError(
            f"privacy.central: expected a strategy that leaves clipping, noise and denominator "
            f"to SumStrategy, found {kind.__name__}, which overrides {', '.join(own)}; "
            "override server_step only, or drop privacy.central"
        )


def node_id(user_index: int) -> int:
    """Return the Grid's node for a user of the train split; Flower reserves node 0."""
    return user_index + 1


@contextmanager
def named_faults(strategy: str, round_num: int) -> Iterator[None]:
    """Turn what a strategy raises into an EngineError that names it, with the traceback."""
    try:
        yield
    except FedsimError:
        raise
    except Exception as error:
        raise EngineError(
            f"strategy {strategy}, round {round_num}: failed with {type(error).__name__}: {error}; "
            f"check its parameters, or mend it\n{traceback.format_exc()}"
        ) from error


def check_aggregate(arrays: Arrays, expected: Arrays, strategy: str, round_num: int) -> None:
    """Raise EngineError unless a strategy returned the model's arrays, finite.

    Args:
        arrays: What it returned.
        expected: The arrays of the round before.
        strategy: Its name, for the message.
        round_num: For the message.
    """
    where = f"strategy {strategy}, round {round_num}"
    if arrays.keys() != expected.keys():
        names = sorted(arrays.keys() ^ expected.keys())[:3]
        raise EngineError(
            f"{where}: expected the model's arrays, found a difference in {names}; return every "
            "array under its own name"
        )
    for name, tensor in arrays.items():
        if tensor.shape != expected[name].shape:
            raise EngineError(
                f"{where}: expected {name!r} of shape {tuple(expected[name].shape)}, found "
                f"{tuple(tensor.shape)}; return it with the model's shape"
            )
        if not bool(tensor.isfinite().all()):
            raise EngineError(
                f"{where}: expected finite numbers, found NaN or infinity in {name!r}; lower the "
                "learning rates, or the noise"
            )


def _cohort_metrics(summed: UpdateSum) -> dict[str, float]:
    """What a round's users reported; the loss is the mean over examples."""
    num_clients, num_examples = len(summed.num_examples), sum(summed.num_examples)
    metrics: dict[str, float] = {"num-clients": num_clients, "num-examples": num_examples}
    if num_clients:
        weighted = zip(summed.train_loss, summed.num_examples, strict=True)
        metrics["train_loss"] = sum(loss * n for loss, n in weighted) / num_examples
        metrics["diagnostic-update-norm-mean"] = sum(summed.update_norm) / num_clients
    return metrics

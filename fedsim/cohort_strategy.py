"""What all of fedsim's own strategies share: they address a cohort, and their steps are checked."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.arrays import Arrays
from fedsim.client_part import ClientPart
from fedsim.cohort import CohortSampler, deal
from fedsim.errors import ConfigError, EngineError
from fedsim.flower_seam import ensure_task_identity, to_arrays, to_record
from fedsim.replies import Senders
from fedsim.strategy_checks import check_aggregate, check_beside, check_state, named_faults
from fedsim.streams import global_torch_stream
from fedsim.update_sum import ARRAYS, CONFIG, ROUND, USER, UpdateSum

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


class CohortStrategy(LoopScoredStrategy):
    """A Flower strategy that addresses a cohort; what becomes of the replies is a subclass's.

    Attributes:
        num_blocks: Partial sums that a cohort is dealt to. Part of the numbers.
    """

    num_blocks: int = NUM_BLOCKS

    def __init__(self) -> None:
        self._cohort: CohortSampler | None = None
        self._model: Arrays = {}
        self._sent: Arrays = {}
        self._senders = Senders(0, {})
        self._shapes_beside: dict[str, torch.Size] | None = None

    def compose(self, cohort: CohortSampler, mechanism: SumMechanism | None = None) -> None:
        """Set the sampler. Called once, before the first round."""
        self._cohort = cohort

    @property
    def population_size(self) -> int:
        """N: how many users a cohort is drawn from."""
        return len(self._cohort.users) if self._cohort else 0

    def client_part(self) -> ClientPart | None:
        """Return what runs where users train; None if training is as usual."""
        return None

    def sent_along(self, arrays: Arrays) -> Arrays:
        """Return what travels to every user beside the model, for the ``ClientPart``.

        Args:
            arrays: The model's.

        Returns:
            Arrays of the model's dtype, under names that it does not have; the same names and
            shapes in every round.
        """
        return {}

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
        self._model = to_arrays(arrays)
        beside = self.checked_sent_along(self._model, server_round)
        self._sent = {**self._model, **beside}
        record = to_record(self._sent) if beside else arrays
        users = self._cohort.users
        drawn = self._cohort.draw(server_round)
        self._senders = Senders(server_round, {node_id(int(i)): users.ids[i] for i in drawn})
        fold = self._fold()
        messages = []
        for number, block in enumerate(deal(users.num_images[drawn], self.num_blocks)):
            for position in block:
                index = int(drawn[position])
                address = ConfigRecord({**config, ROUND: server_round, USER: users.ids[index]})
                messages.append(
                    Message(
                        RecordDict({ARRAYS: record, CONFIG: address, **fold}),
                        dst_node_id=node_id(index),
                        message_type=MessageType.TRAIN,
                        group_id=f"{server_round}/{number}",
                    )
                )
        return messages

    def checked_sent_along(self, arrays: Arrays, round_num: int) -> Arrays:
        """Return ``sent_along(arrays)``.

        Raises:
            EngineError: It failed, or what it returned can't travel.
        """
        name = type(self).__name__
        with named_faults(name, round_num):
            beside = self.sent_along(arrays)
        check_beside(beside, arrays, self._shapes_beside, f"strategy {name}, round {round_num}")
        self._shapes_beside = {key: tensor.shape for key, tensor in beside.items()}
        return beside

    @abstractmethod
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Make the next global arrays of the replies."""

    def _fold(self) -> dict[str, ConfigRecord]:
        """Return the rule by which an engine may fold a block's replies, if there is one."""
        return {}

    def _checked_step(self, round_num: int, step: Callable[[], Arrays]) -> Arrays:
        """Take a step of the server's, and check what came of it."""
        name, sent = type(self).__name__, self._model
        versions = [tensor._version for tensor in sent.values()]
        seed = self._cohort.seed if self._cohort else 0
        with global_torch_stream(seed, "server step", round_num), named_faults(name, round_num):
            arrays = step()
        if versions != [tensor._version for tensor in sent.values()]:
            raise EngineError(
                f"strategy {name}, round {round_num}: expected the server's step to leave the "
                "global arrays as they were, found that it wrote into them, which may be the best "
                "round's; return new tensors (a + u for a += u)"
            )
        check_aggregate(arrays, sent, name, round_num)
        with named_faults(name, round_num):
            check_state(self.state_dict(), f"strategy {name}, round {round_num}")
        return {key: arrays[key].to(tensor.dtype) for key, tensor in sent.items()}


def node_id(user_index: int) -> int:
    """Return the Grid's node for a user of the train split; Flower reserves node 0."""
    return user_index + 1


def cohort_metrics(summed: UpdateSum) -> dict[str, float]:
    """What a round's users reported; the loss is the mean over examples."""
    num_clients, num_examples = len(summed.num_examples), sum(summed.num_examples)
    metrics: dict[str, float] = {"num-clients": num_clients, "num-examples": num_examples}
    if num_clients:
        weighted = zip(summed.train_loss, summed.num_examples, strict=True)
        metrics["train_loss"] = sum(loss * n for loss, n in weighted) / num_examples
        metrics["diagnostic-update-norm-mean"] = sum(summed.update_norm) / num_clients
    return metrics

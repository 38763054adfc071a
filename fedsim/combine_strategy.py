"""The base of strategies that look at all updates of a cohort together."""

from abc import abstractmethod
from collections.abc import Iterable

from flwr.app import ArrayRecord, Message, MetricRecord

from fedsim.arrays import Arrays, one_thread, zeros_like
from fedsim.cohort_strategy import CohortStrategy, cohort_metrics
from fedsim.errors import EngineError
from fedsim.flower_seam import to_record
from fedsim.replies import drain
from fedsim.strategy_checks import check_named_tensors
from fedsim.update_sum import UpdateSum, update_of


class CombineStrategy(CohortStrategy):
    """A Flower strategy that looks at all updates of a cohort together: a median, say.

    The server holds the whole cohort's updates at a time, and central DP is not offered: how much
    one user may change is not bounded.
    """

    @abstractmethod
    def combine(self, updates: list[Arrays], num_examples: list[int]) -> Arrays:
        """Return what the global arrays are moved by.

        Args:
            updates: One per user (trained minus received), in the cohort's order; at least one. May
                be used up.
            num_examples: How many images each of them holds.
        """

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Return the next global arrays: by default the current ones plus the combined update."""
        return {name: array + update[name] for name, array in arrays.items()}

    @one_thread()
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Collect, combine, step."""
        kept = UpdateSum(zeros_like(self._sent))  # checks every reply, and keeps what it reports
        place_of = self._senders.place_of
        updates = [update_of(reply, self._sent, kept, place_of) for reply in drain(replies)]
        if not updates:
            return to_record(self._model), MetricRecord({**cohort_metrics(kept)})

        def step() -> Arrays:
            combined = self.combine(updates, kept.num_examples)
            self._check_combined(combined, server_round)
            return self.server_step(server_round, self._model, combined)

        arrays = self._checked_step(server_round, step)
        return to_record(arrays), MetricRecord({**cohort_metrics(kept)})

    def _check_combined(self, combined: Arrays, round_num: int) -> None:
        where = f"strategy {type(self).__name__}, round {round_num}: combine"
        check_named_tensors(combined, where)
        for name, sent in self._model.items():
            found = tuple(combined[name].shape) if name in combined else "none"
            if found != tuple(sent.shape):
                raise EngineError(
                    f"{where}: expected {name!r} of shape {tuple(sent.shape)}, found {found}; "
                    "return an array for each of the updates' names"
                )

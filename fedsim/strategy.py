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

from abc import abstractmethod
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from fedsim.arrays import Arrays, one_thread
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import CohortStrategy, SumMechanism, cohort_metrics
from fedsim.errors import ConfigError
from fedsim.flower_seam import to_record
from fedsim.replies import drain
from fedsim.strategy_checks import named_faults
from fedsim.update_sum import FOLD, FoldRule, Weighting, fold_replies


class SumStrategy(CohortStrategy):
    """A Flower strategy made of a cohort sampler, a privacy mechanism and a server step.

    Args:
        weighting: ``"uniform"``: every user counts the same, and the sum is divided by the number
            of users (under central DP by the public expected cohort size). ``"examples"``: users
            are weighted by their number of examples.

    Attributes:
        denominator: What the round's sum was divided by: the weights of the users who took part,
            or under central DP the public expected cohort size. Mean times this is the sum.
    """

    def __init__(self, *, weighting: Weighting = "uniform") -> None:
        super().__init__()
        if weighting not in ("uniform", "examples"):
            raise ConfigError(
                "strategy.weighting: expected 'uniform' or 'examples', "
                f"found {weighting!r}; choose one of the two"
            )
        self.weighting = weighting
        self.denominator = 0.0
        self._mechanism: SumMechanism | None = None

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
                DP, and the mean of what came back for ``sent_along``; the step may write to it.
        """

    def after_round(self, round_num: int, metrics: dict[str, float]) -> None:
        """Take note of what a round's users reported, after the server's step.

        Args:
            round_num: From 1.
            metrics: ``num-clients``, ``num-examples``, ``train_loss`` and others; none under
                central DP, where they carry no noise and what follows from them would be private.
                Under example-level DP the loss is not protected either: a strategy that uses it
                must have a part that says ``keeps_example_level = False``.
        """

    @one_thread()
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Sum, noise, divide, step."""
        summed = fold_replies(drain(replies), self._sent, self._rule(), self._senders.place_of)
        figures = cohort_metrics(summed)
        if self._mechanism is not None:
            figures |= self._mechanism.release(summed.total, summed.update_norm, server_round)
            self.denominator = self._mechanism.denominator
        else:
            self.denominator = summed.weight
        if self.denominator > 0:  # an empty cohort without a mechanism has nothing to divide
            torch._foreach_div_(list(summed.total.values()), self.denominator)
        arrays = self._checked_step(
            server_round, lambda: self.server_step(server_round, self._model, summed.total)
        )
        with named_faults(type(self).__name__, server_round):
            self.after_round(server_round, figures if self._mechanism is None else {})
        return to_record(arrays), MetricRecord({**figures})

    def _fold(self) -> dict[str, ConfigRecord]:
        return {FOLD: self._rule().to_record()}

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
        for name in ("configure_train", "aggregate_train", "compose", "_fold")
        if getattr(kind, name) is not getattr(SumStrategy, name)
    ]
    if own:
        raise ConfigError(
            f"privacy.central: expected a strategy that leaves clipping, noise and denominator "
            f"to SumStrategy, found {kind.__name__}, which overrides {', '.join(own)}; "
            "override server_step only, or drop privacy.central"
        )

"""FedProx with a proximal term whose weight follows the loss.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (arXiv:1812.06127),
appendix C.3.3.
"""

import math
from typing import Any

import torch

from fedsim.arrays import Arrays
from fedsim.client_part import Client, ClientPart
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import SumMechanism
from fedsim.errors import ConfigError
from fedsim.parameters import number, whole_number
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting
from fedsim_strategies.fedprox import add_proximal_gradient

MU = "fedprox.mu"
"""Under this name mu travels to the users."""


class FedProxAdaptive(SumStrategy):
    """FedProx whose mu, in [0, 1], rises when the cohort's training loss does, and falls with it.

    Every ``adapt_every`` rounds, from the first one, the loss is compared with the one before (at
    first: with infinity). Lower ``decrease_after`` times in a row or more: mu falls by
    ``step_size``. Not lower: mu rises by ``step_size``, and the count starts anew. This is the
    paper's rule as pfl 0.6.0 (``AdaptMuOnMetricCallback``) writes it.

    The loss is not noised, so the strategy is refused under central DP.

    Args:
        initial_mu: In [0, 1]; the paper starts at 0 with users that are alike, at 1 otherwise.
        step_size: In (0, 1].
        adapt_every: Rounds, at least 1.
        decrease_after: At least 1; 5 in the paper, 1 by default in pfl.
        weighting: The mean over users or over examples.
        server_learning_rate: Step size of the server, above 0, or a schedule; 1 in the paper.
    """

    def __init__(
        self,
        *,
        initial_mu: float = 0.0,
        step_size: float = 0.1,
        adapt_every: int = 1,
        decrease_after: int = 5,
        weighting: Weighting = "examples",
        server_learning_rate: LearningRate = 1.0,
    ) -> None:
        super().__init__(weighting=weighting)
        self.mu = number("strategy.initial_mu", initial_mu, at_least=0, at_most=1)
        self.step_size = number("strategy.step_size", step_size, above=0, at_most=1)
        self.adapt_every = whole_number("strategy.adapt_every", adapt_every, at_least=1)
        self.decrease_after = whole_number("strategy.decrease_after", decrease_after, at_least=1)
        self.server_learning_rate = learning_rate(server_learning_rate)
        self.loss, self.num_decreases = math.inf, 0

    def compose(self, cohort: CohortSampler, mechanism: SumMechanism | None = None) -> None:
        """Set the sampler.

        Raises:
            ConfigError: Central DP: mu would tell about losses that no noise hides.
        """
        if mechanism is not None:
            raise ConfigError(
                "privacy.central: expected a strategy that sees noised sums alone, found "
                f"{type(self).__name__}, which sees the cohort's loss; use fedprox with a fixed mu"
            )
        super().compose(cohort)

    def client_part(self) -> ClientPart:
        """Return the proximal term."""
        return ProximalOfSentWeight()

    def sent_along(self, arrays: Arrays) -> Arrays:
        """Return mu."""
        dtype = next(iter(arrays.values())).dtype
        return {MU: torch.tensor([self.mu], dtype=dtype)}

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Add the mean update."""
        rate = self.server_learning_rate(round_num)
        return {name: a.add(update[name], alpha=rate) for name, a in arrays.items()}

    def after_round(self, round_num: int, metrics: dict[str, float]) -> None:
        """Adapt mu to the cohort's loss; a round without users says nothing."""
        if (round_num - 1) % self.adapt_every or "train_loss" not in metrics:
            return
        loss = metrics["train_loss"]
        if loss < self.loss:
            self.num_decreases += 1
            if self.num_decreases >= self.decrease_after:
                self.mu = max(0.0, self.mu - self.step_size)
        else:
            self.num_decreases = 0
            self.mu = min(1.0, self.mu + self.step_size)
        self.loss = loss

    def state_dict(self) -> dict[str, Any]:
        """Return mu, and what it will be adapted by."""
        return {"mu": self.mu, "loss": self.loss, "num_decreases": self.num_decreases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.mu, self.loss = state["mu"], state["loss"]
        self.num_decreases = state["num_decreases"]


class ProximalOfSentWeight(ClientPart):
    """Adds the gradient of a proximal term whose weight came with the model."""

    keeps_example_level = False  # the weight follows losses that no noise hides

    def adjust(self, client: Client, gradients: list[torch.Tensor]) -> None:
        """Add ``mu (w - x)``."""
        add_proximal_gradient(client, gradients, float(client.sent_along[MU]))

"""FedNova: normalized averaging of users who take different numbers of steps.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020 (arXiv:2007.07481), equation 8 and section 4.
"""

import torch

from fedsim.arrays import Arrays
from fedsim.client_part import Client, ClientPart
from fedsim.parameters import number
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting
from fedsim_strategies.effective_steps import effective_steps

STEPS = "fednova.steps"
"""Under this name the users' effective steps come back."""


class FedNova(SumStrategy):
    """Average updates per step, then go as many steps as users do in the mean.

    FedAvg adds up whole updates, so users with more steps pull the model to their own optimum.
    Here user i sends ``u_i / a_i``, where ``a_i`` is its number of effective steps (the number of
    steps, or more with local momentum: ``effective_steps``), and the server

        ``x <- x + server_learning_rate * tau_eff * sum_i p_i u_i / a_i``

    with weights ``p_i`` that add up to 1. By default ``tau_eff = sum_i p_i a_i``. If all users take
    the same number of steps this is FedAvg.

    Under central DP ``a_i`` is part of the vector that is clipped, and much its longest part: give
    ``tau_eff`` there, and no ``a_i`` travels.

    Args:
        weighting: ``p_i`` by examples (the paper's) or the same for all users.
        server_learning_rate: Step size of the server, above 0, or a schedule; 1 in the paper.
        tau_eff: A number of steps above 0 in place of the users' mean, which the paper leaves
            free.
    """

    def __init__(
        self,
        *,
        weighting: Weighting = "examples",
        server_learning_rate: LearningRate = 1.0,
        tau_eff: float | None = None,
    ) -> None:
        super().__init__(weighting=weighting)
        self.server_learning_rate = learning_rate(server_learning_rate)
        self.tau_eff = None if tau_eff is None else number("strategy.tau_eff", tau_eff, above=0)

    def client_part(self) -> ClientPart:
        """Return what divides updates by their steps."""
        return Normalizing()

    def sent_along(self, arrays: Arrays) -> Arrays:
        """Return a zero, in whose place the users' effective steps come back."""
        if self.tau_eff is not None:
            return {}
        return {STEPS: torch.zeros(1, dtype=next(iter(arrays.values())).dtype)}

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Add the mean update per step, ``tau_eff`` times."""
        steps = float(update[STEPS]) if self.tau_eff is None else self.tau_eff
        rate = self.server_learning_rate(round_num) * steps
        return {name: a.add(update[name], alpha=rate) for name, a in arrays.items()}


class Normalizing(ClientPart):
    """Divides a user's update by its effective steps, and sends them along."""

    keeps_example_level = True

    def finish(self, client: Client) -> Arrays:
        """Replace w by ``x + (w - x) / a``; return a."""
        steps = effective_steps(client.num_steps, client.momentum)
        for name, w in client.parameters.items():
            x = client.received[name]
            w.copy_(x + (w - x) / steps)
        return {name: torch.full_like(sent, steps) for name, sent in client.sent_along.items()}

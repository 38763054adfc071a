"""Krum and Multi-Krum: the updates that lie closest to their neighbours.

Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent, NeurIPS 2017 (arXiv:1703.02757), sections 4 and 6.
"""

import torch

from fedsim.arrays import Arrays, coordinate_runs, zeros_like
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import SumMechanism
from fedsim.combine_strategy import CombineStrategy
from fedsim.errors import ConfigError
from fedsim.parameters import whole_number


class Krum(CombineStrategy):
    """Move the global arrays by the mean of the users' updates with the lowest scores.

    A user's score is the sum of the squared distances between their update and the n - f - 2
    others that are closest to it, of n users with f malicious ones. Ties go to the user who comes
    first in the cohort. Users count the same, however many images they hold.

    Args:
        num_malicious: f, at least 0; the paper's guarantee asks for 2 f + 2 < n.
        num_selected: How many updates are averaged (the paper's m), at least 1: 1 is Krum, more is
            Multi-Krum.
    """

    def __init__(self, *, num_malicious: int, num_selected: int = 1) -> None:
        super().__init__()
        self.num_malicious = whole_number("strategy.num_malicious", num_malicious, at_least=0)
        self.num_selected = whole_number("strategy.num_selected", num_selected, at_least=1)

    def compose(self, cohort: CohortSampler, mechanism: SumMechanism | None = None) -> None:
        """Set the sampler.

        Raises:
            ConfigError: Its cohorts are too small; a single round's may still be, by chance.
        """
        self._check_number(cohort.cohort_size)
        super().compose(cohort, mechanism)

    def combine(self, updates: list[Arrays], num_examples: list[int]) -> Arrays:
        """Return the mean of the selected updates."""
        self._check_number(len(updates))
        scores = krum_scores(squared_distances(updates), self.num_malicious)
        selected = [updates[i] for i in scores.argsort(stable=True)[: self.num_selected].tolist()]
        mean = zeros_like(selected[0])
        for name, run, values in coordinate_runs(selected):
            mean[name].view(-1)[run] = values.mean(dim=1, dtype=torch.float64)
        return mean

    def _check_number(self, num_users: int) -> None:
        least = max(2 * self.num_malicious + 3, self.num_selected)
        if num_users < least:
            raise ConfigError(
                f"strategy: expected at least {least} users in a round for num_malicious "
                f"{self.num_malicious} and num_selected {self.num_selected}, found {num_users}; "
                "lower them or raise federated.cohort_size"
            )


def krum_scores(distances: torch.Tensor, num_malicious: int) -> torch.Tensor:
    """Return each user's sum of squared distances to the n - f - 2 closest others.

    Args:
        distances: Squared, shape (n, n).
        num_malicious: f.
    """
    num_users = len(distances)
    others = distances[~torch.eye(num_users, dtype=torch.bool)].view(num_users, num_users - 1)
    return others.sort(dim=1).values[:, : num_users - num_malicious - 2].sum(dim=1)


def squared_distances(updates: list[Arrays]) -> torch.Tensor:
    """Return the squared L2 distances of all pairs: shape (n, n), float64.

    They come from inner products, ``|x|^2 + |y|^2 - 2 xy``, which in float32 would lose every digit
    of users who agree; in float64 they are good to 1e-15 of the squared norms.
    """
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for _, _, values in coordinate_runs(updates):
        exact = values.double()
        products.addmm_(exact.T, exact)
    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp_(min=0)

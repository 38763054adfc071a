"""What liars can do to the model: nothing much to robust strategies, anything to a mean."""

import pytest
import torch
from made_up_updates import constant, flat, honest, ours

from fedsim.arrays import Arrays
from fedsim.combine_strategy import CombineStrategy
from fedsim_strategies.coordinate_median import CoordinateMedian
from fedsim_strategies.geometric_median import GeometricMedian
from fedsim_strategies.krum import Krum
from fedsim_strategies.trimmed_mean import TrimmedMean

NUM_USERS = 15


class Mean(CombineStrategy):
    """FedAvg, as a combination."""

    def combine(self, updates: list[Arrays], num_examples: list[int]) -> Arrays:
        return {name: torch.stack([u[name] for u in updates]).mean(0) for name in updates[0]}


def distance_from_the_honest(strategy: CombineStrategy, liars: list[Arrays]) -> float:
    """In units of the honest users' own distance from their mean."""
    updates = honest(NUM_USERS - len(liars))
    vectors = torch.stack([flat(update) for update in updates])
    spread = (vectors - vectors.mean(dim=0)).norm(dim=1).mean()
    found = ours(strategy, [*updates, *liars], [1] * NUM_USERS)
    return float((flat(found) - vectors.mean(dim=0)).norm() / spread)


ROBUST = {
    "coordinate_median": (CoordinateMedian(), 7),
    "trimmed_mean": (TrimmedMean(trim=0.4), 6),
    "krum": (Krum(num_malicious=6), 6),
    "multi_krum": (Krum(num_malicious=6, num_selected=5), 6),
    "geometric_median": (GeometricMedian(weighting="uniform", iterations=30), 7),
}
"""Each with the liars that it says to stand."""


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("value", [100.0, 1e20, 3e38, -1e20])
def test_fewer_liars_than_the_tolerated_share_move_it_little(name: str, value: float) -> None:
    strategy, num_liars = ROBUST[name]
    assert distance_from_the_honest(strategy, [constant(value)] * num_liars) < 3
    assert distance_from_the_honest(Mean(), [constant(value)]) > 6


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean", "geometric_median"])
def test_one_more_than_that_moves_it_anywhere(name: str) -> None:
    strategy, num_liars = ROBUST[name]
    more = [constant(1e20)] * (num_liars + 1)
    assert distance_from_the_honest(strategy, more) > 50  # 1e19 but for Weiszfeld's 30 steps


def test_liars_who_disagree_are_no_better_off() -> None:
    for strategy, num_liars in ROBUST.values():
        liars = [constant((-1) ** i * 10.0 ** (i + 2)) for i in range(num_liars)]
        assert distance_from_the_honest(strategy, liars) < 3

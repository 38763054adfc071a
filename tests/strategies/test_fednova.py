"""FedNova against its paper's rule in NumPy, and in its limits."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from logistic_users import INITIAL, Federation, by_hand, with_settings

from fedsim.errors import ConfigError
from fedsim_strategies.effective_steps import effective_steps
from fedsim_strategies.fedavg import FedAvg
from fedsim_strategies.fednova import FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_effective_steps_are_the_gradients_weights_in_the_update(momentum: float) -> None:
    """SGD with gradients that are 1 moves by the sum of their weights."""
    w, buffer = 0.0, 0.0
    for tau in range(1, 20):
        buffer = momentum * buffer + 1
        w += buffer
        assert effective_steps(tau, momentum) == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("tau_eff", [None, 2.5])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_papers_rule(weighting: str, momentum: float, tau_eff: float | None) -> None:
    """Users of 1 to 9 images take 2 to 6 steps each."""
    make = functools.partial(
        FedNova, weighting=weighting, server_learning_rate=0.8, tau_eff=tau_eff
    )
    federation = with_settings(Federation(make), momentum=momentum)
    hand, x, numbers = by_hand(federation), INITIAL, set()
    for round_num in (1, 2, 3):
        cohort = hand.cohort(round_num)
        p = np.array([hand.num_examples(user) for user in cohort], dtype=float)
        p = p / p.sum() if weighting == "examples" else np.full(len(cohort), 1 / len(cohort))
        directions, norms = [], []
        for user in cohort:
            y, tau = hand.train(x, user, round_num)
            a = sum(momentum**i for j in range(1, tau + 1) for i in range(j))
            directions.append((x - y) / (0.1 * a))
            norms.append(a)
            numbers.add(tau)
        steps = p @ norms if tau_eff is None else tau_eff
        x = x - 0.8 * steps * 0.1 * (p @ directions)
    assert len(numbers) > 1
    np.testing.assert_allclose(federation.run(3), x, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_equal_steps_are_fedavg(momentum: float) -> None:
    ours = with_settings(Federation(FedNova), batch_size=100, epochs=3, momentum=momentum)
    theirs = replace(ours, make=FedAvg)
    np.testing.assert_allclose(ours.run(3), theirs.run(3), rtol=1e-12, atol=1e-14)
    unequal = with_settings(ours, batch_size=2)
    assert not np.allclose(unequal.run(3), replace(unequal, make=FedAvg).run(3), atol=1e-3)


def test_an_empty_cohort_moves_nothing() -> None:
    federation = Federation(FedNova, cohort_size=1, sampling="poisson")
    cohort = federation.cohort()
    empty = next(number for number in range(1, 50) if not len(cohort.draw(number)))
    with federation.grid() as grid:
        after = federation.rounds(federation.strategy(), grid, range(empty, empty + 1))
    assert np.array_equal(after, INITIAL)


def test_a_fixed_number_of_steps_lets_nothing_travel_beside_the_model() -> None:
    assert FedNova(tau_eff=3).sent_along({}) == {}
    with pytest.raises(ConfigError, match=r"strategy\.tau_eff: expected .* above 0, found 0"):
        FedNova(tau_eff=0)

"""q-FedAvg against its paper's rule in NumPy, against Flower's, and in its limits."""

import functools
import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flower
from logistic_users import INITIAL, Federation, arrays_of, by_hand, with_settings

from fedsim.errors import ConfigError, EngineError
from fedsim.foreign import ForeignStrategy
from fedsim_strategies.fedavg import FedAvg
from fedsim_strategies.qfedavg import H, QFedAvg


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_the_papers_algorithm(q: float) -> None:
    """Algorithm 2, with the loss at the received parameters over all images of a user."""
    federation = Federation(functools.partial(QFedAvg, q=q))
    hand, x, lipschitz = by_hand(federation), INITIAL, 1 / 0.1
    for round_num in (1, 2, 3):
        numerator, denominator = np.zeros_like(x), 0.0
        for user in hand.cohort(round_num):
            loss = hand.loss(x, user) + 1e-10
            gradient = lipschitz * (x - hand.train(x, user, round_num)[0])
            numerator += loss**q * gradient
            denominator += q * loss ** (q - 1) * gradient @ gradient + lipschitz * loss**q
        x = x - numerator / denominator
    np.testing.assert_allclose(federation.run(3), x, rtol=1e-10, atol=1e-13)


def test_q_zero_is_fedavg_over_users() -> None:
    fedavg = Federation(functools.partial(FedAvg, weighting="uniform"))
    ours = Federation(functools.partial(QFedAvg, q=0))
    np.testing.assert_allclose(ours.run(3), fedavg.run(3), rtol=1e-12, atol=1e-14)


@pytest.fixture
def frozen_garbage():
    """Flower collects garbage for every reply that it reads: let it find little."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen_garbage")
@pytest.mark.parametrize("q", [0.1, 1.0, 3.0])
def test_flowers_twin(q: float) -> None:
    """After one full-batch step the loss that a client reports is that at what it received."""
    ours = Federation(functools.partial(QFedAvg, q=q))
    ours = with_settings(ours, epochs=1, batch_size=100, learning_rate=0.5)
    plain = replace(ours, make=FedAvg)
    theirs = ForeignStrategy(flower.QFedAvg(0.5, q), plain.cohort(), seed=0)
    with plain.grid() as grid:
        expected = plain.rounds(theirs, grid, range(1, 4))
    np.testing.assert_allclose(ours.run(3), expected, rtol=1e-6, atol=1e-8)
    assert not np.allclose(expected, plain.run(3), atol=1e-3)


def test_a_large_q_lowers_the_largest_loss_by_more() -> None:
    """Beside the model's step length, q shifts weight to users with a large loss."""
    gains = []
    for q in (0.0, 5.0):
        federation = Federation(functools.partial(QFedAvg, q=q), cohort_size=24)
        federation = with_settings(federation, epochs=1, batch_size=100)
        hand = by_hand(federation)
        worst = max(range(24), key=lambda user, hand=hand: hand.loss(INITIAL, user))
        step = federation.run(1) - INITIAL
        step = 1e-3 * step / np.linalg.norm(step)  # a direction; the lengths differ
        gains.append(hand.loss(INITIAL, worst) - hand.loss(INITIAL + step, worst))
    assert gains[1] > gains[0]


def test_an_empty_cohort_moves_nothing() -> None:
    federation = Federation(QFedAvg, cohort_size=1, sampling="poisson")
    cohort = federation.cohort()
    empty = next(number for number in range(1, 50) if not len(cohort.draw(number)))
    with federation.grid() as grid:
        after = federation.rounds(federation.strategy(), grid, range(empty, empty + 1))
    assert np.array_equal(after, INITIAL)


def test_noise_that_swamps_h_is_named() -> None:
    arrays = arrays_of(INITIAL)
    update = {**arrays, H: torch.tensor([-0.5], dtype=torch.float64)}
    with pytest.raises(EngineError, match=r"round 3: expected a positive sum of h, found -0\.5"):
        QFedAvg().server_step(3, arrays, update)


def test_example_level_dp_is_not_kept_and_q_has_a_range() -> None:
    assert not QFedAvg().client_part().keeps_example_level
    with pytest.raises(ConfigError, match=r"strategy\.q: expected .* at least 0, found -1"):
        QFedAvg(q=-1)

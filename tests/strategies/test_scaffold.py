"""SCAFFOLD against algorithm 1 of its paper in NumPy, against pfl, and in its limits."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import NUM_LABELS
from logistic_users import INITIAL, Federation, by_hand, vector_of, with_settings

from fedsim.client_states import ClientStates
from fedsim.cohort import CohortSampler
from fedsim.errors import ConfigError
from fedsim.privacy.central import CentralGaussian
from fedsim_strategies.fedavg import FedAvg
from fedsim_strategies.scaffold import Scaffold


def scaffold(tmp_path: Path, option: str = "II", **parameters: object) -> Federation:
    return Federation(functools.partial(Scaffold, option=option, **parameters), states=tmp_path)


def algorithm_1(federation: Federation, option: str, num_rounds: int) -> np.ndarray:
    """The paper's algorithm 1, with a global step size of 0.8."""
    hand, num_users = by_hand(federation), federation.num_users
    x, c, own = INITIAL, np.zeros_like(INITIAL), np.zeros((num_users, len(INITIAL)))
    for round_num in range(1, num_rounds + 1):
        cohort, moved, changed = hand.cohort(round_num), [], np.zeros_like(x)
        for user in cohort:
            y, steps = hand.train(x, user, round_num, c - own[user])
            renewed = own[user] - c + (x - y) / (steps * hand.settings.learning_rate)
            if option == "I":
                renewed = hand.gradient(x, user)
            moved.append(y - x)
            changed += renewed - own[user]
            own[user] = renewed
        if cohort:
            x = x + 0.8 * np.mean(moved, axis=0)
            c = c + changed / num_users
    np.testing.assert_allclose(c, own.mean(axis=0), atol=1e-14)  # the paper's invariant
    return x


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("sampling", ["fixed_size", "poisson"])
def test_the_papers_algorithm(tmp_path, option: str, sampling: str) -> None:
    """Under Poisson cohorts the number of users differs from round to round."""
    federation = scaffold(tmp_path, option, server_learning_rate=0.8)
    federation.sampling = sampling
    expected = algorithm_1(federation, option, 5)
    np.testing.assert_allclose(federation.run(5), expected, rtol=1e-10, atol=1e-12)
    assert not np.allclose(expected, Federation(FedAvg, sampling=sampling).run(5), atol=1e-3)


@pytest.mark.parametrize("option", ["I", "II"])
def test_one_full_batch_step_of_everybody_is_gradient_descent(tmp_path, option: str) -> None:
    """The mean of g_i(x) - c_i + c is the mean gradient, since c is the mean of the c_i."""
    federation = scaffold(tmp_path, option)
    federation.cohort_size = federation.num_users
    federation = with_settings(federation, epochs=1, batch_size=100)
    hand, x = by_hand(federation), INITIAL
    for _ in range(3):
        x = x - 0.1 * np.mean([hand.gradient(x, user) for user in range(24)], axis=0)
    np.testing.assert_allclose(federation.run(3), x, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_with_local_momentum_the_variate_is_still_a_mean_of_gradients(tmp_path, momentum) -> None:
    """All steps see nearly the same gradient g at a small step size: c_i is g, not g / (1 - m)."""
    federation = with_settings(
        scaffold(tmp_path), epochs=3, batch_size=100, learning_rate=1e-7, momentum=momentum
    )
    federation.run(1)
    hand = by_hand(federation)
    for user in hand.cohort(1):
        state = ClientStates(tmp_path, 1).read(user, 2)
        np.testing.assert_allclose(vector_of(state), hand.gradient(INITIAL, user), rtol=1e-4)


@dataclass(frozen=True)
class GivenCohorts(CohortSampler):
    cohorts: tuple[tuple[int, ...], ...] = ()

    def draw(self, round_num: int) -> np.ndarray:
        return np.array(self.cohorts[round_num - 1])


PFL = {  # benchmarks/scaffold_pfl.py, signs turned around: bias and norm after each round
    "I": [
        ([0.0385518, 0.0203311, 0.0254742], 0.3011671),
        ([0.0788457, 0.0498038, 0.0822322], 0.5543911),
        ([0.1048521, 0.0621812, 0.1165623], 0.7700656),
    ],
    "II": [
        ([0.0385518, 0.0203311, 0.0254742], 0.3011671),
        ([0.0771285, 0.0485471, 0.0827522], 0.5530929),
        ([0.1044763, 0.0619321, 0.1180431], 0.7726424),
    ],
}


@pytest.mark.parametrize("option", ["I", "II"])
def test_pfls_scaffold_with_its_signs_turned_around(tmp_path, option: str) -> None:
    """pfl 0.6.0's control variates are negative gradients, and are then used as gradients.

    Its users correct their steps in the wrong direction. With the difference in
    ``get_model_difference`` turned around it takes the paper's steps, and ours.
    """
    federation = scaffold(tmp_path, option)
    federation.num_users, federation.cohort_size = 3, 2
    federation = with_settings(federation, epochs=2, batch_size=100, learning_rate=0.5)
    users = federation.cohort().users
    strategy = federation.make()
    strategy.compose(GivenCohorts(users, 2, "fixed_size", 0, ((0, 1), (1, 2), (0, 2))))
    x = np.zeros_like(INITIAL)
    with federation.grid() as grid:
        for number, (bias, norm) in enumerate(PFL[option], start=1):
            x = federation.rounds(strategy, grid, range(number, number + 1), start=x)
            np.testing.assert_allclose(x[-NUM_LABELS:], bias, atol=5e-7)
            assert np.linalg.norm(x) == pytest.approx(norm, abs=5e-7)


def test_under_central_dp_the_denominator_is_public(tmp_path) -> None:
    """No noise, no clipping, Poisson cohorts: the sum is divided by the expected size."""
    federation = scaffold(tmp_path)
    federation.sampling = "poisson"
    sizes = [len(federation.cohort().draw(round_num)) for round_num in range(1, 4)]
    assert any(size != 8 for size in sizes)
    private = CentralGaussian(1e30, 0.0, cohort_size=8, noise_cohort_size=8, seed=0)
    strategy = federation.make()
    strategy.compose(federation.cohort(), private)
    with federation.grid() as grid:
        federation.rounds(strategy, grid, range(1, 4))
    own = np.zeros((24, len(INITIAL)))
    for user in range(24):
        state = ClientStates(tmp_path, 1).read(user, 4)
        if state:
            own[user] = vector_of(state)
    np.testing.assert_allclose(vector_of(strategy.c), own.mean(axis=0), atol=1e-14)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_goes_on_after_a_kill_has_the_same_bits(tmp_path, workers: int) -> None:
    """It is killed in round 3, when users have written already, and starts again from round 2."""
    expected = scaffold(tmp_path / "whole").run(4)
    federation = scaffold(tmp_path / "killed")
    federation.workers = workers
    with federation.grid() as grid:
        strategy = federation.strategy()
        x = federation.rounds(strategy, grid, range(1, 3))
        torch.save(strategy.state_dict(), tmp_path / "state.pt")
        federation.rounds(strategy, grid, range(3, 4), start=x)
    ClientStates(tmp_path / "killed", 2).forget_after(2)
    again = federation.strategy()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    with federation.grid() as grid:
        assert np.array_equal(federation.rounds(again, grid, range(3, 5), start=x), expected)


def test_a_round_leaves_the_one_before_s_state_as_it_was(tmp_path) -> None:
    """An interrupted run saves it."""
    federation = scaffold(tmp_path)
    strategy = federation.strategy()
    with federation.grid() as grid:
        x = federation.rounds(strategy, grid, range(1, 2))
        before = strategy.state_dict()
        copy = vector_of(before["c"]).copy()
        federation.rounds(strategy, grid, range(2, 3), start=x)
    assert np.array_equal(vector_of(before["c"]), copy)
    assert not np.array_equal(vector_of(strategy.c), copy)


def test_only_option_ii_keeps_example_level_dp() -> None:
    assert Scaffold(option="II").client_part().keeps_example_level
    assert not Scaffold(option="I").client_part().keeps_example_level


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.option: expected one of I, II, found 2"):
        Scaffold(option=2)

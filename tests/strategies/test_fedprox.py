"""FedProx with a fixed mu and with one that follows the loss."""

import functools
import math

import numpy as np
import pytest
import torch
from logistic_users import INITIAL, Federation, by_hand, with_settings

from fedsim.client_part import Client
from fedsim.errors import ConfigError
from fedsim.privacy.central import CentralGaussian
from fedsim_strategies.fedavg import FedAvg
from fedsim_strategies.fedprox import FedProx, Proximal
from fedsim_strategies.fedprox_adaptive import MU, FedProxAdaptive


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_papers_objective(weighting: str, momentum: float) -> None:
    """Every step's gradient is that of F(w) + mu / 2 |w - x|^2."""
    make = functools.partial(FedProx, mu=0.7, weighting=weighting, server_learning_rate=0.8)
    federation = with_settings(Federation(make), momentum=momentum)
    hand, x = by_hand(federation), INITIAL
    for round_num in (1, 2):
        cohort = hand.cohort(round_num)
        trained = [
            hand.train(x, user, round_num, lambda w, x=x: 0.7 * (w - x))[0] for user in cohort
        ]
        sizes = [hand.num_examples(user) for user in cohort]
        weights = sizes if weighting == "examples" else None
        x = x + 0.8 * (np.average(trained, axis=0, weights=weights) - x)
    np.testing.assert_allclose(federation.run(2), x, rtol=1e-11, atol=1e-13)


def test_the_term_s_gradient_is_autograds() -> None:
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, dtype=torch.float64)
    (expected,) = torch.autograd.grad(0.3 / 2 * (w - x).square().sum(), w)
    client = Client("u", 1, 1, 0.1, 0.0, {"w": w.detach()}, {"w": x}, {}, {}, float, list)
    gradient = torch.ones(4, dtype=torch.float64)
    Proximal(0.3).adjust(client, [gradient])
    torch.testing.assert_close(gradient, expected + 1, rtol=1e-13, atol=0)


@pytest.mark.parametrize("make", [functools.partial(FedProx, mu=0), FedProxAdaptive])
def test_mu_zero_is_fedavg_to_the_bit(make) -> None:
    """The adaptive one starts at 0, and stays there in the first round."""
    num_rounds = 1 if make is FedProxAdaptive else 3
    assert np.array_equal(Federation(make).run(num_rounds), Federation(FedAvg).run(num_rounds))


def test_a_large_mu_keeps_users_near() -> None:
    moved = [
        np.linalg.norm(Federation(functools.partial(FedProx, mu=mu)).run(1) - INITIAL)
        for mu in (0.0, 1.0, 5.0)
    ]
    assert moved[0] > moved[1] > moved[2]


def path_of_mu(strategy: FedProxAdaptive, losses: list[float]) -> list[float]:
    path = []
    for round_num, loss in enumerate(losses, start=1):
        strategy.after_round(round_num, {"train_loss": loss})
        path.append(round(strategy.mu, 6))
    return path


LOSSES = [1.0, 0.9, 0.8, 0.85, 0.85, 0.7, 0.6, 0.5, 0.4, 0.9, 1.0, 1.1]


@pytest.mark.parametrize(
    ("initial_mu", "decrease_after", "adapt_every", "expected"),
    [  # what AdaptMuOnMetricCallback of pfl-research 0.6.0 gives for the same losses
        (1.0, 1, 1, [0.9, 0.8, 0.7, 0.8, 0.9, 0.8, 0.7, 0.6, 0.5, 0.6, 0.7, 0.8]),
        (0.0, 3, 1, [0.0, 0.0, 0.0, 0.1, 0.2, 0.2, 0.2, 0.1, 0.0, 0.1, 0.2, 0.3]),
        (0.5, 2, 2, [0.5, 0.5, 0.4, 0.4, 0.5, 0.5, 0.5, 0.5, 0.4, 0.4, 0.5, 0.5]),
    ],
)
def test_mu_follows_the_loss_as_in_pfl(initial_mu, decrease_after, adapt_every, expected) -> None:
    strategy = FedProxAdaptive(
        initial_mu=initial_mu, decrease_after=decrease_after, adapt_every=adapt_every
    )
    assert path_of_mu(strategy, LOSSES) == expected


def test_mu_stays_in_its_range_and_an_empty_round_says_nothing() -> None:
    strategy = FedProxAdaptive(initial_mu=0.95, decrease_after=1)
    assert path_of_mu(strategy, [1.0, 2.0, 3.0, 4.0]) == [0.85, 0.95, 1.0, 1.0]
    assert path_of_mu(strategy, [0.5 - t / 100 for t in range(15)])[-1] == 0.0
    strategy.after_round(16, {"num-clients": 0})
    assert strategy.mu == 0.0


def test_the_mu_of_a_round_is_the_one_that_users_train_with() -> None:
    """The cohort's loss, found by hand, moves mu; the next round's users take it."""
    make = functools.partial(FedProxAdaptive, initial_mu=0.5, step_size=0.5, decrease_after=1)
    federation = with_settings(Federation(make), epochs=1, batch_size=100, learning_rate=0.5)
    hand, x, mu, before = by_hand(federation), INITIAL, 0.5, math.inf
    for round_num in (1, 2, 3):
        cohort = hand.cohort(round_num)
        sizes = np.array([hand.num_examples(user) for user in cohort])
        loss = np.average([hand.loss(x, user) for user in cohort], weights=sizes)
        trained = [
            hand.train(x, u, round_num, lambda w, x=x, mu=mu: mu * (w - x))[0] for u in cohort
        ]
        x = np.average(trained, axis=0, weights=sizes)
        mu, before = (max(0, mu - 0.5) if loss < before else min(1, mu + 0.5)), loss
    np.testing.assert_allclose(federation.run(3), x, rtol=1e-6)


def test_adaptive_mu_survives_a_checkpoint(tmp_path) -> None:
    whole, first, second = (FedProxAdaptive(initial_mu=0.5, decrease_after=2) for _ in range(3))
    expected = path_of_mu(whole, LOSSES)
    path_of_mu(first, LOSSES[:4])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert path_of_mu(second, LOSSES[4:]) == expected[4:]
    like = {"w": torch.zeros(1, dtype=torch.float64)}
    assert second.sent_along(like)[MU].item() == second.mu


def test_adaptive_mu_is_refused_under_central_dp() -> None:
    private = CentralGaussian(1.0, 1.0, cohort_size=8, noise_cohort_size=8, seed=0)
    strategy = FedProxAdaptive(weighting="uniform")
    with pytest.raises(ConfigError, match=r"privacy\.central: expected .* sees the cohort's loss"):
        strategy.compose(Federation(FedProxAdaptive).cohort(), private)


@pytest.mark.parametrize(
    ("make", "parameters", "message"),
    [
        (FedProx, {"mu": -1}, r"strategy\.mu: expected a finite number at least 0, found -1"),
        (FedProxAdaptive, {"initial_mu": 1.5}, r"strategy\.initial_mu: .* at most 1, found 1\.5"),
        (FedProxAdaptive, {"step_size": 0}, r"strategy\.step_size: expected"),
        (FedProxAdaptive, {"adapt_every": 0}, r"strategy\.adapt_every: .* at least 1, found 0"),
        (FedProxAdaptive, {"decrease_after": 1.5}, r"strategy\.decrease_after: .* whole number"),
    ],
)
def test_parameters_out_of_range_are_refused(make, parameters, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**parameters)

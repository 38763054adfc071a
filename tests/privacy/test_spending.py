"""Both epsilons of a run, from its settings."""

import numpy as np
import pytest
import torch

from fedsim.build_privacy import federated_privacy as build_privacy
from fedsim.config import RunConfig
from fedsim.data.dataset import UserTable
from fedsim.errors import ConfigError, PrivacyError
from fedsim.privacy.accounting import GaussianRounds, epsilon


def users(num_users: int) -> UserTable:
    ids = tuple(f"{i:06d}" for i in range(num_users))
    return UserTable(ids, np.random.default_rng(0).integers(1, 40, num_users))


def config(
    central: dict | None = None, example_level: dict | None = None, **federated
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "x",
            "federated": federated,
            "strategy": {"name": "fedavg", "weighting": "uniform"},
            "privacy": {"central": central, "example_level": example_level},
        }
    )


def test_the_small_cohort_stands_for_the_large_one_at_flairs_scale() -> None:
    """Anchors of Song et al.'s setting: sigma 17.36 for 5,000, and what 200 really spend."""
    run = config(
        {"clipping_norm": 0.1, "epsilon": 2.0, "noise_cohort_size": 5000},
        num_rounds=5000,
        cohort_size=200,
    )
    mechanism, spending = build_privacy(run, users(41_131))
    card = spending.card(5000, 0)["central"]
    assert mechanism is not None
    assert card["delta_as_run"] == pytest.approx(8.4026e-6, rel=1e-4)
    assert card["noise_multiplier"] == pytest.approx(17.36, rel=0.01)
    assert mechanism.noise_stddev_mean == pytest.approx(3.472e-4, rel=0.01)
    assert mechanism.noise_stddev_sum == pytest.approx(200 * 3.472e-4, rel=0.01)
    assert card["epsilon_as_run"] == pytest.approx(4.69, rel=0.02)
    assert 1.99 < card["epsilon_at_noise_cohort"] <= 2.0
    assert spending.spent(0) == {"epsilon_as_run": 0.0, "epsilon_at_noise_cohort": 0.0}
    assert spending.spent(5000)["epsilon_as_run"] == card["epsilon_as_run"]


def test_a_deployment_is_printed_as_an_assumption_and_never_changes_epsilon_as_run() -> None:
    central = {"clipping_norm": 0.2, "noise_multiplier": 1.0}
    alone = build_privacy(config(central, num_rounds=20, cohort_size=20), users(285))[1]
    deployed = {**central, "deployment": {"population_size": 100_000, "cohort_size": 1000}}
    predicted = build_privacy(config(deployed, num_rounds=20, cohort_size=20), users(285))[1]
    a, b = alone.card(20, 20)["central"], predicted.card(20, 20)["central"]
    assert a["epsilon_as_run"] == a["epsilon_at_noise_cohort"]
    # As run the noise is 1/50 of what the deployment's cohort would get: computed here anew.
    as_run = GaussianRounds(1.0 * 20 / 1000, 20, 20, 285)
    assert b["epsilon_as_run"] == epsilon(as_run, 285**-1.1)
    at_deployment = GaussianRounds(1.0, 20, 1000, 100_000)
    assert b["epsilon_at_noise_cohort"] == epsilon(at_deployment, 100_000**-1.1)
    assert any("supposes a deployment with 100000 users" in text for text in b["assumptions"])
    assert b["population_size"] == 285


def test_cohorts_of_fixed_size_are_replace_one_with_twice_the_sensitivity() -> None:
    central = {"clipping_norm": 0.5, "noise_multiplier": 2.0, "accountant": "rdp"}
    run = config(central, num_rounds=3, cohort_size=20, sampling="fixed_size")
    mechanism, spending = build_privacy(run, users(285))
    assert mechanism is not None
    assert mechanism.sensitivity == 1.0
    assert mechanism.noise_stddev_sum == 2.0
    assert spending.card(3, 0)["central"]["neighboring"] == "replace_one"
    with pytest.raises(PrivacyError, match="expected rdp for fixed-size cohorts"):
        build_privacy(
            config({**central, "accountant": "pld"}, cohort_size=20, sampling="fixed_size"),
            users(285),
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_cohort_size": 10}, r"expected 20 \(the cohort\) to 285"),
        ({"noise_cohort_size": 286}, r"expected 20 \(the cohort\) to 285"),
        (
            {"noise_cohort_size": 99, "deployment": {"population_size": 50, "cohort_size": 30}},
            r"to 50 \(the population of the deployment\)",
        ),
    ],
)
def test_noise_cohorts_out_of_range(settings: dict, message: str) -> None:
    central = {"clipping_norm": 1.0, "noise_multiplier": 1.0, **settings}
    with pytest.raises(ConfigError, match=message):
        build_privacy(config(central, cohort_size=20), users(285))


def test_the_ledger_survives_a_checkpoint(tmp_path) -> None:
    example_level = {"max_grad_norm": 1.0, "noise_multiplier": 1.0}
    run = config(None, example_level, cohort_size=20)
    mechanism, spending = build_privacy(run, users(50))
    assert mechanism is None
    for cohort in ([1, 2, 3], [2], [2, 7]):
        spending.observe(cohort)
    torch.save(spending.state_dict(), tmp_path / "ledger.pt")
    _, resumed = build_privacy(run, users(50))
    resumed.load_state_dict(torch.load(tmp_path / "ledger.pt", weights_only=True))
    assert resumed.spent(3) == spending.spent(3)
    assert resumed.card(10, 3) == spending.card(10, 3)
    card = spending.card(10, 3)["example_level"]
    assert card["num_users_never_drawn"] == 46
    assert card["epsilon_max"] == spending.spent(3)["example_epsilon_max"] > 0


def test_without_noise_the_card_says_so() -> None:
    _, spending = build_privacy(config(num_rounds=3, cohort_size=20), users(50))
    assert spending.spent(3) == {}
    assert "no privacy guarantee" in spending.card(3, 3)["note"]
    assert spending.state_dict() == {}


def test_a_budget_guards_a_given_noise() -> None:
    central = {"clipping_norm": 1.0, "noise_multiplier": 1.0}
    rounds = GaussianRounds(1.0, 50, 20, 285)
    spent = epsilon(rounds, 285**-1.1)
    enough = config({**central, "epsilon": spent * 1.001}, num_rounds=50, cohort_size=20)
    mechanism, _ = build_privacy(enough, users(285))
    assert mechanism is not None
    assert mechanism.noise_multiplier == 1.0
    short = config({**central, "epsilon": spent * 0.999}, num_rounds=50, cohort_size=20)
    with pytest.raises(PrivacyError, match=f"expected a budget of {spent:.4g} or more"):
        build_privacy(short, users(285))


def test_the_rounds_that_a_budget_affords() -> None:
    """A run that was calibrated for 30 rounds and is asked for 90 keeps its noise."""
    first = config({"clipping_norm": 1.0, "epsilon": 4.0}, num_rounds=30, cohort_size=20)
    mechanism, spending = build_privacy(first, users(285))
    assert mechanism is not None
    assert spending.affordable_rounds(30) == 30
    longer = config({"clipping_norm": 1.0, "epsilon": 4.0}, num_rounds=90, cohort_size=20)
    resumed, more = build_privacy(longer, users(285), spending.state_dict())
    assert resumed is not None
    assert resumed.noise_multiplier == mechanism.noise_multiplier
    affordable = more.affordable_rounds(90)
    assert 29 <= affordable <= 30
    assert more.spent(affordable)["epsilon_at_noise_cohort"] <= 4.0
    assert more.spent(affordable + 1)["epsilon_at_noise_cohort"] > 4.0


@pytest.mark.parametrize("delta", [1 / 285, 0.1])
def test_a_delta_of_one_over_n_is_refused(delta: float) -> None:
    central = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": delta}
    with pytest.raises(PrivacyError, match=r"expected less than 1/N = 0.00351 for 285 users"):
        build_privacy(config(central, cohort_size=20), users(285))


def test_a_delta_that_is_too_large_for_the_deployment_is_refused() -> None:
    central = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-4}
    build_privacy(config(central, cohort_size=20), users(285))
    deployed = {**central, "deployment": {"population_size": 100_000, "cohort_size": 1000}}
    with pytest.raises(PrivacyError, match="for 100000 users"):
        build_privacy(config(deployed, cohort_size=20), users(285))


def test_a_large_delta_is_said() -> None:
    for num_users, said in ((8, True), (300, False)):
        run = config({"clipping_norm": 1.0, "noise_multiplier": 1.0}, num_rounds=3, cohort_size=4)
        _, spending = build_privacy(run, users(num_users))
        found = spending.card(3, 0)["central"]["assumptions"]
        assert any("the chance that nothing is promised" in text for text in found) is said

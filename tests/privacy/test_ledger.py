"""The ledger of example-level DP-SGD against the composition of every user's own steps."""

import math
import time

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import CheckpointError, PrivacyError
from fedsim.privacy.accounting import Accountant, GaussianRounds, epsilon
from fedsim.privacy.ledger import ExampleLedger

SETTINGS = {
    "batch_size": 10,
    "local_epochs": 2,
    "noise_multiplier": 1.2,
    "max_grad_norm": 0.5,
    "delta": 1e-5,
}


def ledger(num_images: list[int], **changes: object) -> ExampleLedger:
    return ExampleLedger(np.array(num_images), **(SETTINGS | changes))  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(
    num_images=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    cohorts=st.lists(st.lists(st.integers(0, 5), max_size=6, unique=True), max_size=6),
)
def test_every_user_composes_all_their_steps(
    num_images: list[int], cohorts: list[list[int]]
) -> None:
    found = ledger(num_images)
    counts = [0] * len(num_images)
    for cohort in cohorts:
        members = [user for user in cohort if user < len(num_images)]
        found.observe(members)
        for user in members:
            counts[user] += 1
    expected = []
    for n, times in zip(num_images, counts, strict=True):
        steps = times * 2 * math.ceil(n / 10)
        expected.append(epsilon(GaussianRounds(1.2, steps, min(10, n), n), 1e-5, "rdp"))
    assert found.epsilons().tolist() == pytest.approx(expected, rel=1e-12)
    assert found.largest_epsilon() == max(expected) == found.card()["epsilon_max"]


def test_a_user_is_what_dp_accounting_says() -> None:
    # 40 examples in batches of 10 twice over: 8 steps at q = 1/4, and three participations.
    found = ledger([40])
    for _ in range(3):
        found.observe([0])
    accountant = RdpAccountant()
    accountant.compose(
        SelfComposedDpEvent(PoissonSampledDpEvent(0.25, GaussianDpEvent(1.2)), 3 * 2 * 4)
    )
    assert found.largest_epsilon() == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_accountant_is_a_setting(accountant: Accountant) -> None:
    found = ledger([25, 7], accountant=accountant)
    found.observe([0, 1])
    # The grid of losses is made for the next power of two of steps.
    for user, (n, steps) in enumerate([(25, 6), (7, 2)]):
        expected = epsilon(GaussianRounds(1.2, steps, min(10, n), n), 1e-5, accountant)
        assert found.epsilons()[user] == pytest.approx(expected, rel=5e-3)
    assert found.card()["accountant"] == accountant


def test_the_card_tells_who_was_never_drawn_and_how_epsilon_is_spread() -> None:
    found = ledger([5] * 98 + [50, 20])
    found.observe(list(range(60, 100)))
    found.observe([98])
    card = found.card()
    epsilons = found.epsilons()
    assert card["num_users"] == 100
    assert card["num_users_never_drawn"] == 60
    assert (epsilons[:60] == 0).all()
    assert card["epsilon_quantile_0.5"] == 0
    assert card["epsilon_quantile_0.9"] == np.sort(epsilons)[89] > 0
    assert card["epsilon_mean"] == pytest.approx(epsilons.mean())
    busiest = int(np.argmax(epsilons))
    assert card["epsilon_max_num_images"] == ([5] * 98 + [50, 20])[busiest]
    assert card["epsilon_max_participations"] == found.participations[busiest]
    assert card["epsilon_max"] == epsilons[busiest]
    assert card["neighboring"] == "add_or_remove_one"
    assert {name: card[name] for name in SETTINGS} == SETTINGS


def test_no_noise_is_infinite_for_who_took_part() -> None:
    found = ledger([5, 5, 30], noise_multiplier=0.0)
    found.observe([0])
    assert found.epsilons().tolist() == [math.inf, 0, 0]
    card = found.card()
    assert card["epsilon_quantile_0.5"] == 0
    assert card["epsilon_max"] == math.inf


def test_a_resumed_ledger_goes_on_as_if_nothing_had_happened() -> None:
    whole, first, second = (ledger([5, 12, 70], accountant="pld") for _ in range(3))
    for cohort in ([0, 2], [2]):
        whole.observe(cohort)
        first.observe(cohort)
    state = first.state_dict()
    first.observe([1])  # the state is a copy
    second.load_state_dict(state)
    assert second.largest_epsilon() == second.epsilons().max() > 0
    assert second.participations.dtype == np.int32
    whole.observe([1, 2])
    second.observe([1, 2])
    assert second.epsilons().tolist() == whole.epsilons().tolist()
    assert second.largest_epsilon() == whole.largest_epsilon()


def test_a_state_of_other_users_or_settings_is_refused() -> None:
    state = ledger([5, 12]).state_dict()
    with pytest.raises(CheckpointError, match="resume with the settings"):
        ledger([5, 12], noise_multiplier=2.0).load_state_dict(state)
    with pytest.raises(CheckpointError, match="counts of 3 users"):
        ledger([5, 12, 1]).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"accountant": "prv"}, "accountant"),
    ],
)
def test_faulty_settings_are_refused_at_once(change: dict[str, object], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        ledger([5], **change)


def test_an_unknown_user_is_refused() -> None:
    for cohort in ([2], [-1]):
        with pytest.raises(PrivacyError, match="users from 0 to 1"):
            ledger([5, 5]).observe(cohort)


def test_a_round_of_flair_costs_milliseconds() -> None:
    rng = np.random.default_rng(0)
    sizes = np.clip(np.round(rng.lognormal(1.1, 1.4, 41131)), 1, 512).astype(np.int64)
    found = ledger(sizes.tolist(), batch_size=16)
    start = time.thread_time()
    for _ in range(50):
        found.observe(rng.choice(41131, 200, replace=False).tolist())
        found.largest_epsilon()
    assert (time.thread_time() - start) / 50 < 0.05

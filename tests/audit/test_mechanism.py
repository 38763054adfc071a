"""The audit passes on fedsim's own parts, and sees every fault that is planted in them."""

from functools import partial

import faults
import numpy as np
import pytest
from scipy.stats import beta
from subjects import ADAPTIVE, SendsAlong, failed, pooled_subject, subject

from fedsim.audit import game
from fedsim.audit.adaptive import check_adaptive_clipping
from fedsim.audit.cohorts import check_cohorts
from fedsim.audit.findings import Finding, chi_square_bounds, collected
from fedsim.audit.game import check_epsilon, epsilon_lower_bound, largest_chance
from fedsim.audit.mechanism import audit_mechanism
from fedsim.audit.noise import check_noise
from fedsim.audit.sums import (
    check_clipping,
    check_denominator,
    check_sensitivity,
    check_weights,
)
from fedsim.errors import PrivacyError
from fedsim_strategies.fedadam import FedAdam


@pytest.fixture
def short_game(monkeypatch) -> None:
    monkeypatch.setattr(game, "GAME_TRIALS", 60)


TRICK = {"noise_cohort_size": 80}
ADAPTS = {"adaptive": ADAPTIVE, "noise_multiplier": 0.8}


@pytest.mark.parametrize("adaptive", [{}, ADAPTS])
@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@pytest.mark.parametrize("noise_cohort", [{}, TRICK])
def test_fedsims_own_parts_pass(adaptive, sampling, noise_cohort, short_game) -> None:
    findings = audit_mechanism(subject(sampling=sampling, **adaptive, **noise_cohort))
    assert failed(findings) == set(), findings
    assert len(findings) > 12


@pytest.mark.parametrize(
    "audited",
    [
        subject(strategy=FedAdam, **ADAPTS),
        subject(strategy=SendsAlong, sampling="fixed_size"),
        subject(strategy=SendsAlong, **ADAPTS, **TRICK),
        pooled_subject(),
        pooled_subject(**ADAPTS, **TRICK),
    ],
    ids=["FedAdam", "beside, replaced", "beside, adaptive", "pooled", "pooled, adaptive"],
)
def test_other_parts_pass(audited, short_game) -> None:
    findings = audit_mechanism(audited)
    assert failed(findings) == set(), findings
    assert len(findings) > 12


@pytest.mark.parametrize("changed", [{"noise_multiplier": 0.0}, {"cohort_size": 1}])
def test_the_edges_pass(changed, short_game) -> None:
    changed = {**changed, "noise_cohort_size": changed.get("cohort_size", 20)}
    assert failed(audit_mechanism(subject(**changed))) == set()


STDDEV, ARRAYS = "noise: std on the sum, mean 0", "noise: on every array"
FRESH, FRESH_ARRAYS = "noise: fresh in every round and seed", "noise: fresh in every array"
PRINTED = "noise: printed std on the sum"
CLIPPING = "clipping: an update of 1000 S"
SENSITIVITY = "sensitivity: a user added or removed"
WEIGHTS = "weights: 1,000 examples for 1"
TWICE, SIZES = "cohorts: no user twice", "cohorts: sizes"
OFTEN = "cohorts: every user as often"
ASKED = "cohorts: the users drawn are those asked"
ADAPTS_DOWN = "adaptive clipping: all updates unclipped"
ADAPTS_UP = "adaptive clipping: all updates clipped"
COUNT = "adaptive clipping: std of the count's noise"
GAME = "epsilon: a distinguishing game"

PLANTED = [
    ("inverted sign", check_adaptive_clipping, {"mechanism": faults.InvertedSign}, ADAPTS,
     {ADAPTS_DOWN, ADAPTS_UP, COUNT}),
    ("drawn denominator", check_denominator, {"mechanism": faults.DrawnDenominator}, {},
     {"denominator"}),
    ("drawn denominator, fixed size", check_denominator, {"mechanism": faults.DrawnDenominator},
     {"sampling": "fixed_size"}, {"denominator"}),
    ("example weights", check_weights, {"strategy": faults.CountsExamples}, {}, {WEIGHTS}),
    ("example weights", check_sensitivity, {"strategy": faults.CountsExamples}, {}, {SENSITIVITY}),
    ("no clipping", check_clipping, {"strategy": faults.Unclipped}, {}, {CLIPPING}),
    ("no clipping", check_sensitivity, {"strategy": faults.Unclipped}, {}, {SENSITIVITY}),
    ("no clipping by the engine", check_clipping, {"strategy": faults.UnclippedByTheEngine}, {},
     {CLIPPING}),
    ("a user twice", check_cohorts, {"sampler": faults.DrawsTwice}, {}, {TWICE, SIZES}),
    ("a user twice", check_sensitivity, {"sampler": faults.DrawsTwice}, {}, {SENSITIVITY}),
    ("a favoured user", check_cohorts, {"sampler": faults.Favours}, {}, {OFTEN}),
    ("one cohort for all", check_cohorts, {"sampler": faults.SameCohort}, {}, {OFTEN, SIZES}),
    ("reused noise", check_noise, {"mechanism": faults.ReusedNoise}, {}, {FRESH}),
    ("noise 10 % too small", check_noise, {"mechanism": faults.WeakNoise}, {}, {STDDEV, ARRAYS}),
    ("C / C~ twice", check_noise, {"mechanism": faults.ScaledTwice}, TRICK, {STDDEV, ARRAYS}),
    ("no C / C~", check_noise, {"mechanism": faults.UnscaledAndPrinted}, TRICK,
     {PRINTED, STDDEV, ARRAYS}),
    ("the next norm's noise", check_noise, {"mechanism": faults.NextNorm}, ADAPTS,
     {STDDEV, ARRAYS}),
    ("scalars without noise", check_noise, {"mechanism": faults.MatricesOnly}, {}, {ARRAYS}),
    ("one noise for all arrays", check_noise, {"mechanism": faults.SameNoiseInEveryArray}, {},
     {FRESH_ARRAYS}),
    ("a quiet count", check_adaptive_clipping, {"mechanism": faults.QuietCount}, ADAPTS, {COUNT}),
    ("hardly any noise", check_epsilon, {"mechanism": faults.TinyNoise}, {}, {GAME}),
    ("no clipping", check_epsilon, {"strategy": faults.Unclipped}, {}, {GAME}),
]  # fmt: skip


PLANTED_BESIDE = [
    ("no noise beside", check_noise, {"mechanism": faults.ModelOnly}, {}, {STDDEV, ARRAYS}),
    ("no clipping beside", check_clipping, {"strategy": faults.BesideUnclipped}, {}, {CLIPPING}),
    ("no clipping beside", check_sensitivity, {"strategy": faults.BesideUnclipped}, {},
     {SENSITIVITY}),
]  # fmt: skip

PLANTED_POOLED = [
    ("no clipping", check_clipping, {"steps": faults.UnclippedSteps}, {}, {CLIPPING}),
    ("no clipping", check_sensitivity, {"steps": faults.UnclippedSteps}, {}, {SENSITIVITY}),
    ("no clipping", check_epsilon, {"steps": faults.UnclippedSteps}, {}, {GAME}),
    ("image weights", check_weights, {"steps": faults.CountsImages}, {}, {WEIGHTS}),
    ("image weights", check_sensitivity, {"steps": faults.CountsImages}, {}, {SENSITIVITY}),
    ("drawn denominator", check_denominator, {"mechanism": faults.DrawnDenominator}, {},
     {"denominator"}),
    ("other users", check_cohorts, {"steps": faults.AsksTheNextCohort}, {}, {ASKED}),
    ("a user twice", check_sensitivity, {"sampler": faults.DrawsTwice}, {}, {SENSITIVITY}),
    ("noise 10 % too small", check_noise, {"mechanism": faults.WeakNoise}, {}, {STDDEV, ARRAYS}),
    ("reused noise", check_noise, {"mechanism": faults.ReusedNoise}, {}, {FRESH}),
    ("inverted sign", check_adaptive_clipping, {"mechanism": faults.InvertedSign}, ADAPTS,
     {ADAPTS_DOWN, ADAPTS_UP, COUNT}),
]  # fmt: skip

FAULTS = [
    *((f"{name}: {check.__name__}", subject, check, *rest) for name, check, *rest in PLANTED),
    *(
        (f"{name}: {check.__name__}", partial(subject, strategy=SendsAlong), check, *rest)
        for name, check, *rest in PLANTED_BESIDE
    ),
    *(
        (f"pooled, {name}: {check.__name__}", pooled_subject, check, *rest)
        for name, check, *rest in PLANTED_POOLED
    ),
]


@pytest.fixture(scope="module")
def honest():
    """What a check finds where nothing is planted; some faults share it."""
    done = {}

    def check_honest(make, check, claimed) -> set[str]:
        key = repr((make, check, sorted(claimed.items())))
        if key not in done:
            done[key] = failed(check(on_arrays_to_compare(make(**claimed))))
        return done[key]

    return check_honest


def on_arrays_to_compare(audited):
    """Two arrays of a size that allows to compare their noise."""
    return audited.on({**audited.arrays, "again": audited.arrays["matrix"].clone()})


@pytest.mark.parametrize(
    ("make", "check", "planted", "claimed", "expected"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
def test_a_planted_fault_is_seen_and_nothing_without_it(
    make, check, planted, claimed, expected, honest, monkeypatch
) -> None:
    monkeypatch.setattr(game, "GAME_TRIALS", 500)
    assert honest(make, check, claimed) == set()
    findings = check(on_arrays_to_compare(make(**planted, **claimed)))
    assert failed(findings) == expected, findings
    assert all(finding.explanation for finding in findings if finding.verdict == "FAIL")


def test_a_check_that_the_parts_refuse_has_failed() -> None:
    def refuse() -> list[Finding]:
        raise PrivacyError("release: expected a budget, found none; stop")

    (finding,) = collected([("noise", refuse)])
    assert finding.verdict == "FAIL"
    assert finding.explanation == "release: expected a budget, found none; stop"


def test_the_game_is_passed_by_an_honest_mechanism_and_finds_a_real_bound(monkeypatch) -> None:
    """Noise of half of S in cohorts of everybody: epsilon is large, and so is the bound."""
    monkeypatch.setattr(game, "GAME_TRIALS", 1000)
    claimed = {"noise_multiplier": 0.5, "cohort_size": 200, "noise_cohort_size": 200}
    (finding,) = check_epsilon(subject(**claimed))
    assert finding.verdict == "pass", finding
    measured = float(finding.measured.split()[2])
    claimed_epsilon = float(finding.claimed.split()[2])
    assert 2.5 < measured < claimed_epsilon


def test_a_bound_of_the_game_holds_for_the_laplace_mechanism() -> None:
    """Scores with a known epsilon: the bound comes near it from below, and never above."""
    rng, found = np.random.default_rng(0), []
    for _ in range(20):
        scores = [rng.laplace(shift, 1.0, 4000) for shift in (0.0, 1.0)]
        found.append(epsilon_lower_bound(*scores, delta=0.0))
    assert max(found) <= 1.0
    assert np.mean(found) > 0.6


@pytest.mark.parametrize(("events", "trials"), [(0, 10), (3, 10), (10, 10), (40, 1000)])
def test_clopper_pearson_is_scipys(events, trials) -> None:
    expected = beta.ppf(1 - 0.001, events + 1, trials - events) if events < trials else 1.0
    assert largest_chance(events, trials, 0.001) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("degrees", [1, 5, 100, 200_000])
def test_chi_squares_stay_within_their_bounds(degrees) -> None:
    from scipy.stats import chi2

    low, high = chi_square_bounds(degrees)
    assert chi2.sf(high, degrees) <= np.exp(-18)
    assert chi2.cdf(low, degrees) <= np.exp(-18)

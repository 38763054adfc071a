"""What every installed strategy keeps, and every example of the documentation.

A strategy joins by its entry point. One that needs parameters, or for which a law does not hold,
adds a line below.
"""

import inspect
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from fakes import tiny_arrays
from flwr.app import ConfigRecord
from tiny_federation import (
    CHECKPOINT_EVERY,
    USERS,
    FakeGrid,
    Federation,
    Grids,
    Updates,
    equal,
    random_update,
    replies,
    settings,
    strategy_of,
    what_travels,
)

from fedsim.arrays import Arrays
from fedsim.audit.build import audit_strategy
from fedsim.audit.conduct import StrategyUnderTest, audit_conduct
from fedsim.audit.strategy_rounds import keep_released
from fedsim.client_states import ClientStates
from fedsim.cohort import CohortSampler
from fedsim.combine_strategy import CombineStrategy
from fedsim.config import RunConfig
from fedsim.errors import ConfigError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.plugins import registered, resolve
from fedsim.privacy.central import CentralGaussian
from fedsim.strategy import SumStrategy
from fedsim.streams import numpy_stream, torch_stream

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = [
    *sorted(name for name, at in registered("fedsim.strategies").items() if "fedsim_" in at),
    f"{EXAMPLES}/without_the_largest.py:WithoutTheLargest",
    f"{EXAMPLES}/sign_step.py:SignStep",
    f"{EXAMPLES}/part_of_the_way.py:PartOfTheWay",
    f"{EXAMPLES}/shrinking.py:Shrinking",
    f"{EXAMPLES}/remembered_drift.py:RememberedDrift",
]
PARAMETERS = {"krum": {"num_malicious": 1, "num_selected": 3}}
"""Where the defaults are not enough."""

NOT_LINEAR = {
    "fedadagrad": "each coordinate is divided by what it was before",
    "fedadam": "each coordinate is divided by what it was before",
    "fedyogi": "each coordinate is divided by what it was before",
    "SignStep": "only signs count",
}
NOT_SCALED = {"geometric_median": "epsilon is in the unit of the updates, and steps are few"}
NO_CENTRAL_DP = {"fedprox_adaptive": "sees the cohort's loss"}
AT_LEAST = {"krum": 5}
"""Users without whom a strategy refuses a round."""


def short(name: str) -> str:
    return name.rpartition(":")[2]


every = pytest.mark.parametrize("name", NAMES, ids=short)


def config_of(name: str, **parameters: object) -> RunConfig:
    return settings(name, **{**PARAMETERS.get(name, {}), **parameters})


def signature_of(name: str) -> Mapping[str, inspect.Parameter]:
    factory = resolve(name, registered("fedsim.strategies"), "strategy.name")
    return inspect.signature(factory).parameters


def private_config(name: str) -> RunConfig:
    weighted = "weighting" in signature_of(name)
    return config_of(name, **({"weighting": "uniform"} if weighted else {}))


def moved(
    config: RunConfig, updates: Updates, change: Callable[[list], list] = list, **kwargs
) -> Arrays:
    """How far a first round of made-up replies moves the model."""
    strategy, start = strategy_of(config, **kwargs), tiny_arrays()
    messages = strategy.configure_train(1, to_record(start), ConfigRecord(), FakeGrid())
    arrays, _ = strategy.aggregate_train(1, change(replies(messages, updates)))
    return {name: tensor - start[name] for name, tensor in to_arrays(arrays).items()}


def assert_close(a: Arrays, b: Arrays) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


def added(first: Updates, second: Updates) -> Updates:
    return lambda user: {name: t + second(user)[name] for name, t in first(user).items()}


@every
def test_updates_add_up(name: str) -> None:
    """A strategy that combines: twice the updates are twice the step."""
    config, first, second = config_of(name), random_update(1), random_update(2)
    if short(name) in NOT_LINEAR | NOT_SCALED:
        pytest.skip((NOT_LINEAR | NOT_SCALED)[short(name)])
    if isinstance(strategy_of(config), CombineStrategy):
        second = first
    apart = moved(config, first), moved(config, second)
    expected = {key: apart[0][key] + apart[1][key] for key in apart[0]}
    assert_close(moved(config, added(first, second)), expected)


@every
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_what_a_server_step_is_given_adds_up(name: str, weighting: str) -> None:
    """Of every sum, also where the step is not linear: the mean, over what travels beside too."""
    config = config_of(name)
    if not isinstance(strategy_of(config), SumStrategy):
        pytest.skip("its aggregation is no sum")
    if "weighting" in signature_of(name):
        config = config_of(name, weighting=weighting)
    first, second = random_update_of_all(config, 1), random_update_of_all(config, 2)
    one, other, both = (given(config, u) for u in (first, second, added(first, second)))
    assert one.keys() == what_travels(config).keys()
    assert_close(both, {key: one[key] + other[key] for key in one})


def given(config: RunConfig, updates: Updates) -> Arrays:
    """What a first round of made-up replies gives to the server's step."""
    strategy = strategy_of(config)
    assert isinstance(strategy, SumStrategy)
    kept = keep_released(strategy)
    record = to_record(tiny_arrays())
    messages = strategy.configure_train(1, record, ConfigRecord(), FakeGrid())
    strategy.aggregate_train(1, replies(messages, updates))
    return kept[0]


def random_update_of_all(config: RunConfig, seed: int) -> Updates:
    like = what_travels(config)
    return lambda user: {
        name: torch.randn(tensor.shape, generator=torch_stream(seed, user, name))
        for name, tensor in like.items()
    }


@every
def test_no_order_of_replies_matters(name: str) -> None:
    def shuffled(items: list) -> list:
        return [items[i] for i in numpy_stream(0, "order").permutation(len(items))]

    config, updates = config_of(name), random_update(1)
    assert_close(moved(config, updates, shuffled), moved(config, updates))


@every
def test_users_who_learned_nothing_do_not_move_the_model(name: str) -> None:
    def nothing(user: str) -> Arrays:
        return {key: torch.zeros_like(tensor) for key, tensor in tiny_arrays().items()}

    for tensor in moved(config_of(name), nothing).values():
        assert float(tensor.abs().max()) < 1e-6


@every
def test_a_cohort_of_one(name: str) -> None:
    config, updates = config_of(name), random_update(1)
    if name in AT_LEAST:
        with pytest.raises(ConfigError, match=f"at least {AT_LEAST[name]} users"):
            moved(config, updates, cohort_size=AT_LEAST[name] - 1)
        moved(config, updates, cohort_size=AT_LEAST[name])
    else:
        assert any(tensor.any() for tensor in moved(config, updates, cohort_size=1).values())


@pytest.fixture(scope="module")
def grids():
    made = Grids()
    yield made
    made.close()


def federation(grids: Grids, name: str, states: Path, workers: int = 1) -> Federation:
    return Federation(config_of(name), grids.of(config_of(name), workers), states)


@dataclass(frozen=True)
class Run:
    """Four rounds of real training; ``state`` is a checkpoint of the second, on disk.

    ``arrays`` and ``kept`` are the model and what users keep after the fourth.
    """

    state: Path
    states: Path
    arrays: Arrays
    kept: dict[str, bytes]


@pytest.fixture(scope="module")
def undisturbed(grids: Grids, tmp_path_factory) -> Callable[[str], Run]:
    done: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in done:
            folder = tmp_path_factory.mktemp("undisturbed")
            state, states = folder / "state.pt", folder / "states"
            played, strategy = federation(grids, name, states), strategy_of(config_of(name))
            arrays = played.play(strategy, range(1, 3))
            torch.save([strategy.state_dict(), arrays], state)
            arrays = played.play(strategy, range(3, 5), arrays)
            done[name] = Run(state, states, arrays, newest_states(states))
        return done[name]

    return run


def newest_states(folder: Path) -> dict[str, bytes]:
    states = ClientStates(folder, CHECKPOINT_EVERY)
    kept = {USERS.ids[i]: states.read(i, 99) for i in range(len(USERS))}
    return {
        f"{user} {key}": tensor.numpy().tobytes()
        for user, state in kept.items()
        for key, tensor in state.items()
    }


@every
def test_a_resumed_run_ends_with_the_same_bits(
    name: str, grids: Grids, undisturbed, tmp_path: Path
) -> None:
    """Killed after the fourth round, which no checkpoint holds yet: two rounds are done again."""
    before, states = undisturbed(name), tmp_path / "states"
    if before.states.exists():
        shutil.copytree(before.states, states)
    ClientStates(states, CHECKPOINT_EVERY).forget_after(2)
    state, arrays = torch.load(before.state, weights_only=True)
    again = strategy_of(config_of(name))
    again.load_state_dict(state)
    arrays = federation(grids, name, states).play(again, range(3, 5), arrays)
    assert equal(arrays, before.arrays)
    assert newest_states(states) == before.kept


@every
def test_a_state_that_is_taken_back_is_given_back(name: str, undisturbed) -> None:
    state, _ = torch.load(undisturbed(name).state, weights_only=True)
    again = strategy_of(config_of(name))
    again.load_state_dict(state)
    assert repr(again.state_dict()) == repr(state)


@every
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_bits_do_not_depend_on_workers(
    name: str, workers: int, grids: Grids, undisturbed, tmp_path: Path
) -> None:
    run = federation(grids, name, tmp_path, workers)
    assert equal(run.play(strategy_of(config_of(name)), range(1, 5)), undisturbed(name).arrays)
    assert newest_states(tmp_path) == undisturbed(name).kept


def mechanism(noise_multiplier: float, clipping_norm: float) -> CentralGaussian:
    return CentralGaussian(
        clipping_norm, noise_multiplier, cohort_size=10, noise_cohort_size=10, seed=5
    )


@every
def test_central_dp_where_it_is_allowed(name: str, grids: Grids, tmp_path: Path) -> None:
    """Without noise and with a huge bound, the bits are those of the plain run."""
    config = private_config(name)
    if short(name) in NO_CENTRAL_DP or not isinstance(strategy_of(config), SumStrategy):
        with pytest.raises(ConfigError, match=r"privacy\.central: expected"):
            strategy_of(config, mechanism=mechanism(1.0, 1.0))
        return
    results = []
    for number, private in enumerate((None, mechanism(0.0, 1e30), mechanism(0.1, 1.0))):
        run = Federation(config, grids.of(config, 1), tmp_path / str(number))
        results.append(run.play(strategy_of(config, mechanism=private), range(1, 3)))
    assert equal(results[0], results[1])
    assert not equal(results[0], results[2])


@every
def test_odd_replies_are_taken_or_refused_in_words(name: str) -> None:
    """In any order, zero, huge, NaN, missing: what ``fedsim audit strategy`` tries."""
    config = config_of(name)
    tested = StrategyUnderTest(partial(strategy_of, config), CohortSampler(USERS, 10, "poisson", 1))
    findings = audit_conduct(tested)
    assert [f"{f.name}: {f.measured}" for f in findings if f.verdict == "FAIL"] == []


@pytest.mark.slow
def test_the_audit_takes_what_travels_beside_the_model() -> None:
    findings = audit_strategy(NAMES[-1], {})
    assert {f.name for f in findings if f.verdict != "pass"} == {"adaptive clipping"}  # fixed

"""A strategy's faults are told with strategy, round and, where there is one, the user."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fakes import tiny_arrays
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, FedMedian
from tiny_federation import (
    USERS,
    FakeGrid,
    Federation,
    Grids,
    random_update,
    replies,
    settings,
    strategy_of,
)

from fedsim.arrays import Arrays
from fedsim.cohort import CohortSampler
from fedsim.errors import ConfigError, EngineError, FedsimError
from fedsim.flower_seam import to_record
from fedsim.foreign import ForeignStrategy

SHAPE = r"expected '3.bias' of shape \(3,\), found \(7,\)"


@pytest.fixture(scope="module")
def grids():
    made = Grids()
    yield made
    made.close()


def two_rounds(name: str, what: str, grids: Grids, states: Path) -> None:
    config = settings(f"faulty_strategies:{name}", what=what)
    Federation(config, grids.of(config, 1), states).play(strategy_of(config), range(1, 3))


@pytest.mark.parametrize(
    ("name", "what", "message"),
    [
        ("Step", "nothing", "expected a dict of tensors, found NoneType"),
        ("Step", "numbers", "expected a dict of tensors, found float for '0.weight'"),
        ("Step", "lacks", r"found a difference in \['3.bias'\]"),
        ("Step", "shape", SHAPE),
        ("Step", "nan", "found NaN or infinity in '3.bias'"),
        ("Step", "raises", "failed with KeyError: 'no such array'"),
        ("Step", "writes", "found that it wrote into them"),
        ("Step", "after_round", "failed with ValueError: afterwards"),
        ("Step", "state_dict", "failed with ValueError: no state today"),
        ("Step", "infinite", r"a state of finite numbers, found NaN or infinity in 'm.0'"),
        ("Combines", "nothing", "combine: expected a dict of tensors, found NoneType"),
        ("Combines", "lacks", r"combine: expected '3.bias' of shape \(3,\), found none"),
        ("Combines", "shape", f"combine: {SHAPE}"),
        ("Combines", "nan", "found NaN or infinity in '3.bias'"),
        ("Combines", "raises", "failed with IndexError"),
    ],
)
def test_faults_of_the_server_s_step(
    name: str, what: str, message: str, grids: Grids, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=rf"^strategy {name}, round 1: .*{message}"):
        two_rounds(name, what, grids, tmp_path)


@pytest.mark.parametrize(
    ("what", "round_num", "message"),
    [
        ("nothing", 1, "sent_along: expected a dict of tensors, found NoneType"),
        ("clash", 1, r"sent_along: expected names that the model lacks, found \['3.bias'\]"),
        ("dtype", 1, r"sent_along: expected 'extra' in the model's torch.float32, found torch.flo"),
        ("nan", 1, "sent_along: expected finite numbers, found NaN or infinity in 'extra'"),
        ("raises", 1, "failed with ValueError: nothing to send"),
        ("names", 2, r"the same names and shapes in every round, .* for \['extra1', 'extra2'\]"),
        ("shapes", 2, r"the same names and shapes in every round, .* for \['extra'\]"),
    ],
)
def test_faults_of_what_is_sent_along(what: str, round_num: int, message: str) -> None:
    strategy = strategy_of(settings("faulty_strategies:Beside", what=what))
    record = to_record(tiny_arrays())
    for number in range(1, round_num):
        strategy.configure_train(number, record, ConfigRecord(), FakeGrid())
    with pytest.raises(EngineError, match=rf"^strategy Beside, round {round_num}: .*{message}"):
        strategy.configure_train(round_num, record, ConfigRecord(), FakeGrid())


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("start", "Part.start: failed with KeyError: 'in start'"),
        ("adjust", "Part.adjust: failed with KeyError: 'in adjust'"),
        ("finish", "Part.finish: failed with KeyError: 'in finish'"),
        ("nothing", "Part.finish: expected a dict of tensors, found NoneType"),
        ("unknown", r"increments for what was sent along \(extra\), found 'other'"),
        ("shape", r"expected 'extra' of torch.float32 \(3,\), found torch.float32 \(4,\)"),
        ("dtype", r"expected 'extra' of torch.float32 \(3,\), found torch.float64 \(3,\)"),
        ("writes", "found that the part wrote into them"),
        ("list", "client.state: expected a dict of tensors, found list"),
        ("numbers", "client.state: expected a dict of tensors, found int for 'seen'"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_faults_of_the_part_on_the_user_s_side(
    what: str, message: str, workers: int, grids: Grids, tmp_path: Path
) -> None:
    config = settings("faulty_strategies:WithPart", what=what)
    run = Federation(config, grids.of(config, workers), tmp_path)
    who = r"^round 1, user 'user\d{5}': strategy WithPart, "
    with pytest.raises(EngineError, match=f"{who}.*{message}"):
        run.play(strategy_of(config), range(1, 2))


def test_increments_that_are_not_finite_name_the_user(grids: Grids, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"round 1, user 'user\d{5}': .*NaN.*'extra'"):
        two_rounds("WithPart", "nan", grids, tmp_path)


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("no part", ConfigError, "strategy WithPart: expected client_part to return a ClientPart"),
        ("making", EngineError, "strategy WithPart, client_part: failed with ValueError: no part"),
    ],
)
def test_faults_in_making_the_part(
    what: str, error: type[FedsimError], message: str, grids: Grids, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        two_rounds("WithPart", what, grids, tmp_path)


LIAR = USERS.ids[int(CohortSampler(USERS, 10, "fixed_size", seed=1).draw(1)[4])]


def odd(value: float):
    def update(user: str) -> Arrays:
        fitting = random_update(1)(user)
        if user == LIAR:
            fitting["3.bias"][1] = value
        return fitting

    return update


def aggregate(strategy, updates) -> None:
    messages = strategy.configure_train(1, to_record(tiny_arrays()), ConfigRecord(), FakeGrid())
    strategy.aggregate_train(1, replies(messages, updates))


def composed(name: str):
    return strategy_of(settings(name))


def flowers():
    return ForeignStrategy(FedMedian(), CohortSampler(USERS, 10, "fixed_size", seed=1), seed=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "make",
    [lambda: composed("fedavg"), lambda: composed("coordinate_median"), flowers],
    ids=["folds itself", "combines", "foreign"],
)
def test_an_update_that_is_not_finite_is_refused_and_names_its_user(make, value: float) -> None:
    with pytest.raises(EngineError, match=rf"round 1, user '{LIAR}': .*NaN or infinity in .*3.bi"):
        aggregate(make(), odd(value))


@pytest.mark.parametrize("name", ["fedavg", "coordinate_median"])
def test_a_client_that_failed_elsewhere_is_named(name: str) -> None:
    strategy = composed(name)
    messages = strategy.configure_train(1, to_record(tiny_arrays()), ConfigRecord(), FakeGrid())
    answers = replies(messages, random_update(1))
    answers[4] = Message(Error(1, "out of memory"), reply_to=messages[4])
    user = next(iter(messages[4].content.config_records.values()))["user"]
    with pytest.raises(EngineError, match=f"round 1, user '{user}': the client failed: out of mem"):
        strategy.aggregate_train(1, answers)


def test_fedadam_does_not_stand_still_for_good_after_a_huge_update() -> None:
    """The square of 1e20 is infinite in float32: every later step would be 0."""
    with pytest.raises(EngineError, match=r"strategy FedAdam, round 1: .* state of finite numbers"):
        aggregate(composed("fedadam"), odd(1e23))


class Returns(FedAvg):
    def __init__(self, returns: object) -> None:
        super().__init__()
        self.returns = returns

    def aggregate_train(self, server_round, replies):
        if isinstance(self.returns, Exception):
            raise self.returns
        return self.returns


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (None, "found NoneType"),
        ((None, None), "expected arrays, found None"),
        (({}, MetricRecord()), "expected an ArrayRecord and a MetricRecord, found dict and"),
        ((ArrayRecord(), {"loss": 1.0}), "expected an ArrayRecord and a MetricRecord, .* and dict"),
        ((ArrayRecord(), None), "found a difference in"),
        (ValueError("today not"), "failed with ValueError: today not"),
    ],
)
def test_faults_of_a_foreign_strategy(returns, message: str) -> None:
    cohort = CohortSampler(USERS, 10, "fixed_size", seed=1)
    foreign = ForeignStrategy(Returns(returns), cohort, seed=0)
    with pytest.raises(EngineError, match=rf"^strategy Returns, round 1: .*{message}"):
        aggregate(foreign, random_update(1))


class Forgetful(FedAvg):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.stream, self.rule = 0, object(), sorted
        self.span, self.pair = Span(1, 2), (3, 4)


class Span(NamedTuple):
    low: int
    high: int


def test_a_resumed_foreign_strategy_says_what_did_not_come_back() -> None:
    cohort = CohortSampler(USERS, 10, "fixed_size", seed=1)
    first = Forgetful()
    first.seen = 7
    again = ForeignStrategy(Forgetful(), cohort, seed=0)
    assert again.on_resume == ""
    again.load_state_dict(ForeignStrategy(first, cohort, seed=0).state_dict())
    assert again.on_resume == (
        "strategy Forgetful has no state_dict and load_state_dict: its attributes were taken back "
        "from the checkpoint, but not stream, span, which can't be stored: as they were built"
    )
    kept = again._strategy
    assert (kept.seen, kept.span, kept.pair) == (7, Span(1, 2), (3, 4))

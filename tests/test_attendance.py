"""Drop-out and stragglers: the laws that they are drawn from, and what a round makes of them."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import TinyDataset, tiny_app, tiny_arrays, tiny_trainer
from flwr.serverapp import strategy as flower
from scipy import stats

from fedsim.arrays import l2_norm
from fedsim.attendance import Attendance
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import UserTable
from fedsim.engines.in_process import InProcessGrid
from fedsim.flower_seam import to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim.loop import Federation, train
from fedsim.privacy.central import CentralGaussian
from fedsim.state import RunState
from fedsim_strategies.fedavg import FedAvg

USERS = TinyDataset().table
MANY = UserTable(tuple(f"u{i:04d}" for i in range(2000)), np.full(2000, 10))


def test_the_share_that_fails_is_the_share_asked_for() -> None:
    attendance = Attendance(MANY, seed=3, share=0.1)
    absent = [attendance.absent(r, range(2000)) for r in range(1, 21)]
    failed = np.array([a.dropped_out for a in absent])
    assert not any(a.late.any() for a in absent)
    n = failed.size
    assert abs(failed.sum() - 0.1 * n) < 6 * math.sqrt(n * 0.1 * 0.9)
    # Independent from round to round: a user's number of failures is binomial.
    spread = failed.sum(axis=0).var()
    assert spread == pytest.approx(20 * 0.1 * 0.9, rel=6 * math.sqrt(2 / 2000))


def test_who_fails_does_not_depend_on_who_else_is_asked() -> None:
    attendance = Attendance(MANY, seed=0, share=0.5, deadline=10, spread=1.0)
    everybody = attendance.absent(4, range(2000))
    some = [5, 1999, 0, 77]
    few = attendance.absent(4, some)
    np.testing.assert_array_equal(few.answers, everybody.answers[some])
    np.testing.assert_array_equal(few.late, everybody.late[some])
    other_round, other_seed = (
        attendance.absent(5, range(2000)),
        Attendance(MANY, seed=1, share=0.5).absent(4, range(2000)),
    )
    for other in (other_round, other_seed):
        agreeing = (other.dropped_out == everybody.dropped_out).mean()
        assert abs(agreeing - 0.5) < 6 * math.sqrt(0.25 / 2000)


def test_slowness_is_log_normal_with_median_one() -> None:
    attendance = Attendance(MANY, seed=0, spread=0.7, epochs=3)
    slowness = np.array([attendance.time_of(p) for p in range(2000)]) / (3 * 10)
    assert stats.kstest(np.log(slowness) / 0.7, "norm").pvalue > 1e-6
    share = float((slowness > 2.0).mean())
    expected = stats.norm.sf(math.log(2.0) / 0.7)
    assert abs(share - expected) < 6 * math.sqrt(expected * (1 - expected) / 2000)
    assert (
        Attendance(MANY, 0, deadline=60, spread=0.7, epochs=3).num_never_in_time()
        == (slowness > 2.0).sum()
    )


def test_devices_that_are_alike_are_late_by_their_images_alone() -> None:
    attendance = Attendance(USERS, seed=0, deadline=8, epochs=2)
    late = attendance.absent(1, range(24)).late
    np.testing.assert_array_equal(late, USERS.num_images > 4)  # 2 * 4 is in time
    assert attendance.num_never_in_time() == late.sum()
    assert Attendance(USERS, seed=0, share=0.5).num_never_in_time() == 0


def test_a_slow_device_is_slow_in_every_round_and_who_failed_is_not_late() -> None:
    attendance = Attendance(MANY, seed=0, share=0.3, deadline=10, spread=1.0)
    slow = np.array([attendance.time_of(p) > 10 for p in range(2000)])
    for round_num in (1, 2):
        absent = attendance.absent(round_num, range(2000))
        np.testing.assert_array_equal(absent.late, slow & ~absent.dropped_out)
        assert absent.figures() == {
            "diagnostic-num-dropped-out": absent.dropped_out.sum(),
            "diagnostic-num-late": absent.late.sum(),
        }


class Book:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.training: list[dict[str, Any]] = []

    def begin_round(self, state: RunState, ledger: dict[str, Any]) -> None: ...

    def close_round(self, state: RunState, training: Any, spent: Any) -> RunState:
        if training is not None:
            self.training.append({k: v for k, v in training.items() if k != "seconds"})
        return state


class Ledger(SimpleNamespace):
    def observe(self, cohort: list[int]) -> None:
        self.seen.append(cohort)

    def spent(self, round_num: int) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}


def run(
    strategy: Any, attendance: Attendance | None, num_rounds: int = 1, workers: int = 1
) -> SimpleNamespace:
    book, ledger = Book(), Ledger(seen=[])
    with InProcessGrid(tiny_app, tiny_arrays(), num_users=24, num_workers=workers) as grid:
        federation = Federation(strategy, grid, ledger, book, num_rounds, attendance)  # type: ignore[arg-type]
        state = train(federation, RunState(to_record(tiny_arrays()), round_num=0))
    return SimpleNamespace(
        arrays=to_arrays(state.arrays), training=book.training, asked=ledger.seen
    )


def fedavg(mechanism: CentralGaussian | None = None, size: int = 10) -> FedAvg:
    strategy = FedAvg(weighting="uniform")
    strategy.compose(CohortSampler(USERS, size, "fixed_size", seed=1), mechanism)
    return strategy


def updates_of(positions: list[int], clipping_norm: float = math.inf) -> list[dict[str, Any]]:
    """Each user's update in round 1, clipped, by training one after another."""
    start, updates = tiny_arrays(), []
    for position in positions:
        trainer = tiny_trainer()
        trainer.train(USERS.ids[position], 1)
        update = {k: trainer.arrays[k].detach() - start[k] for k in start}
        scale = min(1.0, clipping_norm / l2_norm(update.values()))
        updates.append({k: scale * u for k, u in update.items()})
    return updates


HALF = Attendance(USERS, seed=5, share=0.5)


def answering(asked: list[int]) -> list[int]:
    answers = HALF.absent(1, asked).answers
    assert 1 < answers.sum() < len(asked) - 1
    return [p for p, a in zip(asked, answers, strict=True) if a]


def test_the_mean_is_over_those_who_answered() -> None:
    found = run(fedavg(), HALF)
    [asked] = found.asked
    assert len(asked) == 10  # the ledger counts everybody who was asked
    updates = updates_of(answering(asked))
    for name, start in tiny_arrays().items():
        expected = start + sum(u[name] for u in updates) / len(updates)
        torch.testing.assert_close(found.arrays[name], expected, rtol=1e-4, atol=1e-6)
    [line] = found.training
    assert line["num-clients"] == len(updates)
    assert line["num-clients"] + line["diagnostic-num-dropped-out"] == 10
    assert line["diagnostic-num-late"] == 0


def central(noise_multiplier: float) -> CentralGaussian:
    return CentralGaussian(0.05, noise_multiplier, cohort_size=10, noise_cohort_size=10, seed=5)


def test_under_central_dp_the_denominator_and_the_noise_stay() -> None:
    found = run(fedavg(central(0.0)), HALF)
    updates = updates_of(answering(found.asked[0]), clipping_norm=0.05)
    noised = run(fedavg(central(1.0)), HALF)
    whole, whole_noised = run(fedavg(central(0.0)), None), run(fedavg(central(1.0)), None)
    for name, start in tiny_arrays().items():
        expected = start + sum(u[name] for u in updates) / 10
        torch.testing.assert_close(found.arrays[name], expected, rtol=1e-4, atol=1e-6)
        noise = noised.arrays[name] - found.arrays[name]
        expected = whole_noised.arrays[name] - whole.arrays[name]
        torch.testing.assert_close(noise, expected, rtol=1e-4, atol=1e-6)


def test_nobody_absent_is_the_run_without_the_setting() -> None:
    # Fewer users than the share rounds to, so nobody fails: the bits must be the plain run's.
    never = Attendance(USERS, seed=0, share=1e-12, deadline=1e9, spread=0.5)
    with_setting, without = run(fedavg(), never, 2), run(fedavg(), None, 2)
    assert all(torch.equal(a, without.arrays[k]) for k, a in with_setting.arrays.items())
    assert "diagnostic-num-late" not in without.training[0]


def test_the_same_bits_for_any_number_of_workers() -> None:
    attendance = Attendance(USERS, seed=5, share=0.3, deadline=12, spread=0.5, epochs=2)
    one, two = (run(fedavg(size=20), attendance, 3, workers) for workers in (1, 2))
    assert all(torch.equal(a, two.arrays[k]) for k, a in one.arrays.items())
    assert one.training == two.training
    assert sum(line["diagnostic-num-late"] for line in one.training) > 0


@pytest.mark.parametrize("name", ["FedAvg", "FedMedian", "FedTrimmedAvg", "FedAdam", "Krum"])
def test_flowers_strategies_get_the_replies_that_there_are(name: str) -> None:
    cohort = CohortSampler(USERS, 10, "fixed_size", seed=1)
    foreign = ForeignStrategy(getattr(flower, name)(), cohort, seed=0)
    found = run(foreign, HALF)
    assert len(found.asked[0]) == 10
    assert any(not torch.equal(a, tiny_arrays()[k]) for k, a in found.arrays.items())
    if name == "FedAvg":
        ours = FedAvg(weighting="examples")
        ours.compose(cohort)
        for key, array in run(ours, HALF).arrays.items():
            torch.testing.assert_close(found.arrays[key], array, rtol=1e-5, atol=1e-6)


NOBODY = Attendance(USERS, seed=0, deadline=0.5)


@pytest.mark.parametrize("name", ["ours", "FedAvg", "FedMedian", "FedAdam", "Krum"])
def test_a_round_that_nobody_answers_changes_nothing(name: str) -> None:
    cohort = CohortSampler(USERS, 10, "fixed_size", seed=1)
    strategy = (
        fedavg()
        if name == "ours"
        else ForeignStrategy(getattr(flower, name)(), cohort, seed=0)
    )  # fmt: skip
    found = run(strategy, NOBODY)
    assert all(torch.equal(a, tiny_arrays()[k]) for k, a in found.arrays.items())
    assert found.training[0]["diagnostic-num-late"] == 10


def test_a_round_that_nobody_answers_is_noise_under_central_dp() -> None:
    found = run(fedavg(central(1.0)), NOBODY)
    moved = torch.cat([(a - tiny_arrays()[k]).ravel() for k, a in found.arrays.items()])
    stddev = 0.05 / 10  # noise multiplier 1 times the clipping norm, over the cohort
    assert float(moved.std()) == pytest.approx(stddev, rel=6 / math.sqrt(2 * len(moved)))

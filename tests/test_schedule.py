"""Learning rates over rounds, against values worked out by hand and against torch's schedules."""

import math

import numpy as np
import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.schedule import learning_rate

WARM = {"peak": 0.1, "last": 0.02, "warmup_rounds": 30, "num_rounds": 5000}


def test_a_number_is_constant() -> None:
    rate = learning_rate(0.3)
    assert {rate(round_num) for round_num in (1, 2, 100, 10**6)} == {0.3}


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_warm_up_starts_above_zero_and_reaches_the_peak(schedule: str) -> None:
    rate = learning_rate({"schedule": schedule, **WARM})
    assert rate(1) == pytest.approx(0.1 / 30)
    assert rate(15) == pytest.approx(0.05)
    assert rate(30) == pytest.approx(0.1)
    assert rate(5000) == rate(5001) == rate(10**6) == 0.02
    assert all(rate(t) > rate(t + 1) for t in range(30, 5000, 71))


def test_halfway_down() -> None:
    halfway = (30 + 5000) // 2
    for schedule in ("linear", "cosine"):
        assert learning_rate({"schedule": schedule, **WARM})(halfway) == pytest.approx(0.06)
    quarter = 30 + (5000 - 30) * 0.25
    linear, cosine = (learning_rate({"schedule": s, **WARM}) for s in ("linear", "cosine"))
    assert linear(round(quarter)) == pytest.approx(0.08, abs=1e-4)
    assert cosine(round(quarter)) == pytest.approx(0.06 + 0.04 * math.sqrt(0.5), abs=1e-4)


def test_without_warm_up_they_are_torchs_schedules() -> None:
    ours = {
        shape: learning_rate({"schedule": shape, "peak": 0.1, "last": 0.02, "num_rounds": 20})
        for shape in ("linear", "cosine")
    }
    for shape, make in {
        "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=20),
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.02),
    }.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler, theirs = make(optimizer), []
        for _ in range(20):
            optimizer.step()
            scheduler.step()
            theirs.append(scheduler.get_last_lr()[0])
        found = [ours[shape](round_num) for round_num in range(1, 21)]
        np.testing.assert_allclose(found, theirs, rtol=1e-12)


def test_last_and_warm_up_are_zero_if_left_out() -> None:
    rate = learning_rate({"schedule": "linear", "peak": 1, "num_rounds": 4})
    assert [rate(t) for t in (1, 2, 3, 4, 5)] == [0.75, 0.5, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "s: expected a finite number above 0, found 0"),
        (-0.1, "s: expected a finite number above 0, found -0.1"),
        (float("nan"), "s: expected a finite number above 0, found nan"),
        (True, "s: expected a finite number above 0, found True"),
        ("fast", "s: expected a finite number above 0, found 'fast'"),
        ({"peak": 1, "num_rounds": 2}, "s: expected 'schedule' in a schedule, found none"),
        ({"schedule": "step", "peak": 1, "num_rounds": 2}, "s.schedule: expected one of linear"),
        ({"schedule": "linear", "peak": 1}, "s: expected 'num_rounds' in a schedule"),
        (
            {"schedule": "linear", "peak": 1, "num_rounds": 2, "warmup": 1},
            "s.warmup: expected a part of a schedule, found 'warmup'; did you mean 'warmup_rounds'",
        ),
        ({"schedule": "linear", "peak": 0, "num_rounds": 2}, "s.peak: expected a finite number"),
        ({"schedule": "linear", "peak": 1, "last": -1, "num_rounds": 2}, "s.last: expected"),
        (
            {"schedule": "linear", "peak": 1, "num_rounds": 5, "warmup_rounds": 5},
            "s.num_rounds: expected a whole number of at least 6, found 5",
        ),
        ({"schedule": "linear", "peak": 1, "num_rounds": 1.5}, "s.num_rounds: expected a whole"),
    ],
)
def test_faults_are_named(value, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        learning_rate(value, "s")
    assert str(raised.value).startswith(message)

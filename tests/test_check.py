"""Every fault of a run's settings is told at once, before any work."""

from pathlib import Path

import pytest

from fedsim.build import build_dataset
from fedsim.check import faults_of, settings_faults
from fedsim.config import RunConfig
from fedsim.errors import ConfigError, DataError, PrivacyError, noted, raise_together


def config(**sections) -> RunConfig:
    return RunConfig.model_validate({"name": "x", **sections})


MODEL = """
from torch import nn

def make(num_labels):
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 900, num_labels)]
    return nn.Sequential(*layers)
"""


def test_the_bad_settings_of_central_dp_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    run = config(
        federated={"cohort_size": 400, "sampling": "fixed_size"},
        strategy={"name": "fedavg", "weighting": "examples"},
        model={"name": f"{tmp_path}/mine.py:make"},
        privacy={
            "central": {
                "clipping_norm": 1.0,
                "noise_multiplier": 1.0,
                "noise_cohort_size": 300,
                "delta": 0.01,
            }
        },
    )
    faults = [str(fault) for fault in faults_of(run, None, build_dataset(run))]
    for expected in (
        "federated.cohort_size: expected 1 to 285",
        "privacy.central.noise_cohort_size: expected 400 (the cohort) to 285",
        "privacy.central.delta: expected less than 1/N = 0.00351",
        "privacy.central.accountant: expected rdp for fixed-size cohorts",
        "strategy.weighting: expected 'uniform' under privacy.central",
        "model.name: expected no running statistics under privacy",
    ):
        assert any(fault.startswith(expected) for fault in faults), (expected, faults)
    assert len(faults) == 6
    assert all(";" in fault for fault in faults), "each has its remedy"


def test_a_cohort_that_is_too_small_for_krum_is_told_before_any_work() -> None:
    krum = {"name": "krum", "num_malicious": 2}
    (fault,) = settings_faults(config(federated={"cohort_size": 6}, strategy=krum), 285)
    assert str(fault).startswith("strategy: expected at least 7 users in a round for num_malicious")
    assert settings_faults(config(federated={"cohort_size": 7}, strategy=krum), 285) == []


def test_a_strategy_s_own_compose_does_not_get_past_the_check(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
from fedsim_strategies.fedavg import FedAvg

class Mine(FedAvg):
    def compose(self, cohort, mechanism=None):
        self._cohort, self._mechanism = cohort, mechanism
""")
    central = {"clipping_norm": 1, "noise_multiplier": 1}
    run = config(
        strategy={"name": f"{tmp_path}/mine.py:Mine", "weighting": "uniform"},
        privacy={"central": central},
    )
    (fault,) = settings_faults(run, 285)
    assert "found Mine, which overrides compose" in str(fault)


def test_a_noise_cohort_over_the_population() -> None:
    run = config(
        federated={"cohort_size": 20},
        privacy={"central": {"clipping_norm": 1, "noise_multiplier": 1, "noise_cohort_size": 286}},
        strategy={"name": "fedavg", "weighting": "uniform"},
    )
    assert len(settings_faults(run, 285)) == 1
    assert settings_faults(run, 286) == []


def test_one_fault_is_raised_as_it_is_and_several_as_one() -> None:
    faults: list = []
    with noted(faults):
        raise PrivacyError("first; mend it")
    with pytest.raises(PrivacyError, match=r"^first; mend it$"):
        raise_together(faults)
    with noted(faults):
        raise PrivacyError("second")
    with pytest.raises(PrivacyError, match=r"2 faults:\n  - first; mend it\n  - second"):
        raise_together([*faults, PrivacyError("second")])
    with pytest.raises(ConfigError):
        raise_together([*faults, DataError("third")])
    raise_together([])

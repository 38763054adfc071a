"""Every file in experiments/ is one that runs: its settings fit together."""

from pathlib import Path

import pytest

from fedsim import experiment
from fedsim.check import settings_faults
from fedsim.config import RunConfig
from fedsim.config_file import load_runs
from fedsim.experiment import processes_for
from fedsim.jobs import Job

FOLDER = Path(__file__).parents[1] / "experiments"
OPENCLIPART_USERS, FLAIR_USERS = 285, 41_131


@pytest.mark.parametrize(
    "path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: str(path.relative_to(FOLDER))
)
def test_settings_fit_together(path: Path) -> None:
    runs = load_runs(path)
    num_users = FLAIR_USERS if path.parent.name == "flair" else OPENCLIPART_USERS
    for run_id, config in runs.items():
        assert settings_faults(config, num_users) == [], run_id


def test_runs_on_a_gpu_go_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "num_cores", lambda: 8)

    def placed(device: str, **engine: int) -> tuple[int, int]:
        settings = {"name": "x", "model": {"device": device}, "engine": engine}
        return processes_for(
            [Job(f"seed{n}", RunConfig.model_validate(settings)) for n in range(3)]
        )

    assert placed("cpu") == (3, 2)
    assert placed("cuda") == (1, 1)
    assert placed("cuda:1", workers=4) == (1, 4)

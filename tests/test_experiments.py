"""Every file in experiments/ is one that runs: its settings fit together."""

from pathlib import Path

import pytest

from fedsim.check import settings_faults
from fedsim.config_file import load_runs

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

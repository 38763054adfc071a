import json
import math
from pathlib import Path

import pytest
from recorded_runs import epsilons, write_run, write_trial

from fedsim.errors import CheckpointError, ConfigError
from fedsim.loading import find_runs
from fedsim.record import RunFolder
from fedsim.report.gather import gather


def test_settings_stand_in_reading_order_with_the_reference_first(tmp_path: Path) -> None:
    (group,) = gather([write_trial(tmp_path)]).groups
    assert [entry.name for entry in group.entries] == [
        "plain", "mild", "<|script><b>x & $y$", "strong", "centralized"
    ]  # fmt: skip
    assert group.reference.differences == {}
    assert [entry.name for entry in group.private] == ["strong", "<|script><b>x & $y$", "mild"]
    assert [run.summary["seed"] for run in group.entries[1].runs] == [0, 1, 2]
    assert group.entries[3].noise_multiplier == 4.0
    assert group.users_reason is None


def test_a_setting_is_private_if_an_epsilon_is_finite(tmp_path: Path) -> None:
    write_run(tmp_path, "bare", 0)
    write_run(tmp_path, "unnoised", 0, private=epsilons(0.0, math.inf, math.inf))
    write_run(tmp_path, "images", 0, example=3.0)
    (group,) = gather([tmp_path]).groups
    assert {entry.name: entry.is_private for entry in group.entries} == {
        "bare": False, "unnoised": False, "images": True
    }  # fmt: skip
    assert group.entries[-1].epsilon == 3.0


def test_without_a_setting_free_of_noise_the_first_is_the_reference(tmp_path: Path) -> None:
    write_run(tmp_path, "b", 0, private=epsilons(1.0, 2.0, 20.0))
    write_run(tmp_path, "a", 0, private=epsilons(2.0, 1.0, 10.0))
    write_run(tmp_path, "c", 0, kind="centralized")
    (group,) = gather([tmp_path]).groups
    assert group.reference.name == "a"


def test_settings_stand_as_in_their_file_where_runs_know_their_place(tmp_path: Path) -> None:
    for place, setting in enumerate(("z", "b", "a")):
        for seed in (0, 1):
            folder = RunFolder(write_run(tmp_path, setting, seed))
            folder.note_origin(2 * place + seed)
    write_run(tmp_path, "0", 0)  # of an old fedsim
    (group,) = gather([tmp_path]).groups
    assert [entry.name for entry in group.entries] == ["z", "b", "a", "0"]
    assert [folder.path.name for folder in find_runs([tmp_path])] == [
        *(f"{setting}-seed{seed}" for setting in "zba" for seed in (0, 1)), "0-seed0"
    ]  # fmt: skip


def test_runs_that_have_not_finished_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "done", 0)
    failed, broken = (write_run(tmp_path, name, 0) for name in ("failed", "broken"))
    for folder in (failed, broken):
        (folder / "summary.json").unlink()
    RunFolder(failed).mark_failed({"message": "no memory"})
    gathered = gather([tmp_path, tmp_path / "trial"])  # the same runs twice are read once
    reasons = {skipped.folder.name: skipped.reason for skipped in gathered.skipped}
    assert reasons == {
        "failed-seed0": "failed: no memory",
        "broken-seed0": "unfinished, after 4 rounds",
    }
    (done,) = gathered.groups[0].entries
    assert len(done.runs) == 1
    for folder in tmp_path.glob("*/*/summary.json"):
        folder.unlink()
    with pytest.raises(CheckpointError, match="expected a finished run, found 3"):
        gather([tmp_path])


def test_other_test_splits_are_other_groups(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0)
    write_run(tmp_path, "b", 0, name="other", labels=("cat", "dog", "cow"))
    write_run(tmp_path, "c", 0, name="third")
    two, one = gather([tmp_path]).groups  # in the order of their paths
    assert {entry.name for entry in one.entries} == {"trial/a", "third/c"}
    assert [entry.name for entry in two.entries] == ["b"]


def test_scores_of_other_users_leave_only_intervals_over_seeds(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "a", seed)
        folder = write_run(tmp_path, "b", seed)
    (folder / "test_scores.npz").write_bytes(b"no scores")
    (group,) = gather([tmp_path]).groups
    assert "test_scores.npz: expected a run's test scores" in str(group.users_reason)
    difference = group.others[0].differences["macro_ap"]
    assert difference is not None
    assert difference.over_users is None
    assert difference.over_seeds.interval is not None


def test_faults_have_their_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a", 0)
    write_run(tmp_path / "again", "a", 0)
    with pytest.raises(ConfigError, match="found two of seed 0"):
        gather([tmp_path / "trial", tmp_path / "again"])
    summary = json.loads((folder / "summary.json").read_text())
    del summary["setting"]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(CheckpointError, match=r"expected .setting. in summary\.json"):
        gather([tmp_path / "trial"])

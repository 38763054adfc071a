import errno
from pathlib import Path

import pytest
import torch

from fedsim import run_processes
from fedsim.config import RunConfig
from fedsim.errors import CheckpointError, unwritable
from fedsim.flower_seam import to_arrays, to_record
from fedsim.jobs import Job
from fedsim.record import RunFolder
from fedsim.reporter import Failure, Silence
from fedsim.state import Best, RunState, load_checkpoint, save_checkpoint


def state(round_num: int = 4) -> RunState:
    arrays = to_record({"w": torch.full((2, 2), float(round_num))})
    return RunState(
        arrays,
        round_num,
        strategy={"m": {"w": torch.ones(2)}, "step": 3},
        ledger={"counts": torch.tensor([1, 2], dtype=torch.int32)},
        best=Best(2, 0.25, to_record({"w": torch.zeros(2, 2)})),
    )


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint" / "state.pt"
    save_checkpoint(state(), path, {"seed": 0, "data": {"labels": "coarse"}})
    back = load_checkpoint(path, {"seed": 0, "data": {"labels": "coarse"}})
    assert back.round_num == 4
    assert torch.equal(to_arrays(back.arrays)["w"], torch.full((2, 2), 4.0))
    assert back.strategy["step"] == 3
    assert torch.equal(back.strategy["m"]["w"], torch.ones(2))
    assert back.best is not None
    assert (back.best.round_num, back.best.macro_ap) == (2, 0.25)
    assert list(path.parent.iterdir()) == [path]


def test_a_kill_while_writing_leaves_the_last_one(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "state.pt"
    save_checkpoint(state(4), path, {})

    def killed(content: object, file) -> None:
        file.write(b"half a check")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(state(5), path, {})
    monkeypatch.undo()
    assert load_checkpoint(path, {}).round_num == 4
    save_checkpoint(state(6), path, {})
    assert load_checkpoint(path, {}).round_num == 6


def test_other_settings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save_checkpoint(state(), path, {"seed": 0, "data": {"labels": "coarse", "image_size": 32}})
    with pytest.raises(
        CheckpointError,
        match=r"data\.labels \(began with 'coarse', now 'fine'\), seed \(began with 0, now 1\)",
    ):
        load_checkpoint(path, {"seed": 1, "data": {"labels": "fine", "image_size": 32}})


def test_unreadable_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="can't be read"):
        load_checkpoint(path, {})

    class Evil:
        def __reduce__(self):
            return (Path(tmp_path / "evil").touch, ())

    torch.save({"format": 1, "settings": Evil()}, path)
    with pytest.raises(CheckpointError, match="can't be read"):
        load_checkpoint(path, {})
    assert not (tmp_path / "evil").exists()


def test_a_state_does_not_follow_what_its_strategy_does_later() -> None:
    moments = {"m": {"w": torch.zeros(2)}, "list": [torch.zeros(1)]}
    after = state().advance(5, state().arrays, moments, {})
    moments["m"]["w"].add_(1)
    moments["list"][0].add_(1)
    assert not after.strategy["m"]["w"].any()
    assert not after.strategy["list"][0].any()


def test_the_best_round_is_the_first_of_equals() -> None:
    start = RunState(to_record({"w": torch.zeros(1)})).start()
    assert start.keep_best(None).best is None
    first = start.keep_best(0.2)
    again = first.advance(1, start.arrays, {}, {}).keep_best(0.2)
    assert again.best is not None
    assert again.best.round_num == 0
    better = again.keep_best(0.3)
    assert better.best is not None
    assert better.best.round_num == 1


def test_lines_are_truncated_to_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for round_num in range(4):
        folder.append(
            {"round": round_num, "split": "val", "macro_ap": 0.1, "epsilon": float("inf")}
        )
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "spl')
    folder.truncate_after(2)
    assert [line["round"] for line in folder.lines()] == [0, 1, 2]
    assert folder.lines()[0]["epsilon"] == "infinity"


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 0, "split": "val"}\nxx\n{"round": 1}\n')
    with pytest.raises(CheckpointError, match="line 2"):
        RunFolder(tmp_path).lines()


def test_nan_never_reaches_a_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="NaN"):
        RunFolder(tmp_path).append({"round": 0, "macro_ap": float("nan")})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_gives_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save_checkpoint(state(4), path, {})
    path.with_name(f"{path.name}.tmp").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match="found No space left on device; free some space"):
        save_checkpoint(state(5), path, {})
    assert load_checkpoint(path, {}).round_num == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_run_that_can_t_write_fails_with_one_sentence(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    (folder.path / "summary.json.tmp").symlink_to("/dev/full")
    (folder.path / "failed.json.tmp").symlink_to("/dev/full")

    def writes(job: object, folder: RunFolder, *rest: object) -> None:
        folder.write_json("summary.json", {})

    monkeypatch.setattr(run_processes, "run_job", writes)
    job = Job("seed0", RunConfig(name="x"))
    failure = run_processes.attempt(job, folder, Silence(), 1)
    assert isinstance(failure, Failure)
    assert failure.exit_code == 6
    assert failure.message.startswith(f"{folder.path}: expected to write, found No space left")
    assert not failure.traceback


def test_other_errors_of_the_system_are_not_a_full_disk() -> None:
    assert unwritable(OSError(errno.ENOENT, "no such file"), "x") is None
    told = unwritable(OSError(errno.EROFS, "Read-only file system", "a/b"), "x")
    assert str(told).startswith("a/b: expected to write, found Read-only file system; free")


def test_a_run_may_go_on_with_less_memory_for_images() -> None:
    def settings(cache_mb: int, baseline: str | None) -> object:
        given = {"name": "x", "data": {"cache_mb": cache_mb}, "centralized": {"epochs": 1}}
        return Job("seed0", RunConfig.model_validate(given), baseline).numbers_depend_on

    for baseline in (None, "plain"):
        assert settings(1, baseline) == settings(512, baseline)

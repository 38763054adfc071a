"""From a list of runs to their folders: train, resume, score on test, summarize."""

import dataclasses
import importlib.metadata
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from fedsim import __version__, build
from fedsim.arrays import one_thread
from fedsim.bookkeeping import Bookkeeper
from fedsim.centralized import train_centralized
from fedsim.config import RunConfig
from fedsim.data.dataset import FederatedDataset
from fedsim.engines.in_process import InProcessGrid
from fedsim.engines.workers import num_cores
from fedsim.errors import CheckpointError, ConfigError, DataError
from fedsim.evaluation.final import score_constant, score_test
from fedsim.evaluation.scoring import SplitScorer
from fedsim.flower_seam import to_record
from fedsim.loop import Federation, train
from fedsim.models.initialize import exchanged_tensors
from fedsim.privacy.spending import PrivacySpending
from fedsim.record import RunFolder
from fedsim.state import RunState, load_checkpoint

_PACKAGES = ("flwr", "torch", "torchvision", "opacus", "dp-accounting", "h5py", "numpy", "pillow")
CENTRALIZED = "centralized"


class Reporter(Protocol):
    """Told what happens, while it happens."""

    def started(self, run_id: str, num_rounds: int, done: int) -> None:
        """A run begins, or goes on after ``done`` rounds."""
        ...

    def recorded(self, line: dict[str, Any]) -> None:
        """A line was recorded."""
        ...

    def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
        """A run is done, or was already."""
        ...


@dataclass(frozen=True)
class Job:
    """One run: federated, or the centralized baseline of some settings.

    Attributes:
        run_id: Names its folder.
        config: Its settings.
        centralized: Which of the two.
    """

    run_id: str
    config: RunConfig
    centralized: bool

    @property
    def num_rounds(self) -> int:
        """Rounds or epochs."""
        if self.centralized and self.config.centralized is not None:
            return self.config.centralized.epochs
        return self.config.federated.num_rounds

    @property
    def numbers_depend_on(self) -> dict[str, Any]:
        """The settings that change the numbers."""
        unused = {"federated", "strategy", "privacy", "case"} if self.centralized else {CENTRALIZED}
        return self.config.model_dump(exclude=unused | {"engine"})


def jobs_of(runs: dict[str, RunConfig]) -> list[Job]:
    """Return the runs of a file, and after them the centralized baselines that they share."""
    jobs = [Job(run_id, config, centralized=False) for run_id, config in runs.items()]
    taken = [run_id for run_id in runs if run_id.startswith(f"{CENTRALIZED}-seed")]
    if taken and any(config.centralized for config in runs.values()):
        raise ConfigError(
            f"cases: expected names other than the baseline's, found a run called {taken[0]}; "
            f"rename the case {CENTRALIZED!r}"
        )
    baselines: list[Job] = []
    for config in runs.values():
        if config.centralized is None:
            continue
        same_seed = sum(other.config.seed == config.seed for other in baselines)
        suffix = f"-{same_seed + 1}" if same_seed else ""
        job = Job(f"{CENTRALIZED}-seed{config.seed}{suffix}", config, centralized=True)
        if all(job.numbers_depend_on != other.numbers_depend_on for other in baselines):
            baselines.append(job)
    return jobs + baselines


def run_jobs(
    jobs: list[Job], out: Path, reporter: Reporter, *, resume: bool
) -> list[dict[str, Any]]:
    """Run one job after another and return their summaries.

    Args:
        jobs: What to run.
        out: The folder of all experiments; a job writes to ``out/<name>/<run_id>``.
        reporter: Told what happens.
        resume: Go on where a checkpoint is, and skip finished runs; else a folder that holds a run
            already is an error.

    Raises:
        FedsimError: Whatever is wrong with settings or data, before any training.
    """
    jobs = [dataclasses.replace(job, config=build.with_defaults(job.config)) for job in jobs]
    folders = [RunFolder(out / job.config.name / job.run_id) for job in jobs]
    # Everything is built once before anything runs: a fault in the last run shows at once.
    for job, folder in zip(jobs, folders, strict=True):
        _check(job, folder, resume)
    for folder in folders:
        folder.prepare()
    return [_run(job, folder, reporter) for job, folder in zip(jobs, folders, strict=True)]


def _check(job: Job, folder: RunFolder, resume: bool) -> None:
    if folder.started and not resume:
        raise CheckpointError(
            f"{folder.path}: expected a new folder, found a run that was started before; add "
            "--resume to go on with it, or choose another --out"
        )
    config = job.config
    dataset = build.build_dataset(config)
    for split in ("train", "val", "test"):
        if not len(dataset.users(split)):
            raise DataError(
                f"data.source {config.data.source}: expected users in the splits train, val and "
                f"test, found none in {split}; split the data by user into all three"
            )
    _resumed(folder, job, dataset)
    model = build.build_model(config, len(dataset.label_names))
    exchanged_tensors(model)
    build.check_outputs(config, model, len(dataset.label_names))
    if not job.centralized:
        build.check_private_model(config, model)
        cohort = build.build_cohort(config, dataset.users("train"))
        mechanism, _ = build.build_privacy(config, cohort.users)
        build.build_strategy(config, cohort, mechanism)
        build.build_trainer(config)


@one_thread()
def _run(job: Job, folder: RunFolder, reporter: Reporter) -> dict[str, Any]:
    if folder.finished:
        summary = folder.read_json("summary.json")
        reporter.finished(job.run_id, summary, skipped=True)
        return summary
    started = time.perf_counter()
    config = job.config
    dataset = build.build_dataset(config)
    model = build.build_model(config, len(dataset.label_names))
    own = exchanged_tensors(model)
    initial = RunState(to_record({name: tensor.clone() for name, tensor in own.items()}))
    state = _resumed(folder, job, dataset) or initial
    folder.truncate_after(state.round_num)
    folder.write_config(config.model_dump())
    left_out = _write_left_out(folder, dataset)
    reporter.started(job.run_id, job.num_rounds, max(state.round_num, 0))
    workers = config.engine.workers or num_cores()
    with build.build_grid(config, model, len(dataset.users("train")), workers) as grid:
        parts = _Parts(job, folder, dataset, model, grid, reporter)
        state, spending = _centralize(parts, state) if job.centralized else _federate(parts, state)
        summary = _summarize(job, state, grid, dataset)
    scores = summary["test"]["scores"]
    spent = spending.spent(job.num_rounds)
    folder.append({"round": summary["best_round"], "split": "test", **scores, **spent})
    summary |= {
        "privacy": {} if job.centralized else spending.card(job.num_rounds, state.round_num),
        "num_images_left_out": left_out,
        "seconds": time.perf_counter() - started,
    }
    folder.write_json("summary.json", summary)
    reporter.finished(job.run_id, summary, skipped=False)
    return summary


@dataclass(frozen=True)
class _Parts:
    """What federated and centralized runs have in common."""

    job: Job
    folder: RunFolder
    dataset: FederatedDataset
    model: nn.Module
    grid: InProcessGrid
    reporter: Reporter

    def bookkeeper(
        self, before_save: Callable[[RunState], None] = lambda state: None
    ) -> Bookkeeper:
        evaluation = self.job.config.evaluation
        validation = SplitScorer(
            self.grid,
            self.dataset,
            "val",
            batch_size=evaluation.batch_size,
            num_images=evaluation.num_val_images,
            seed=self.job.config.seed,
        )
        return Bookkeeper(
            self.folder,
            _numbers_depend_on(self.job, self.dataset),
            validation,
            num_rounds=self.job.num_rounds,
            score_every=evaluation.every,
            checkpoint_every=self.job.config.engine.checkpoint_every,
            report=self.reporter.recorded,
            before_save=before_save,
        )


def _federate(parts: _Parts, state: RunState) -> tuple[RunState, PrivacySpending]:
    config, num_rounds = parts.job.config, parts.job.num_rounds
    cohort = build.build_cohort(config, parts.dataset.users("train"))
    mechanism, spending = build.build_privacy(config, cohort.users)
    strategy = build.build_strategy(config, cohort, mechanism)
    if state.round_num > 0:
        strategy.load_state_dict(state.strategy)
        spending.load_state_dict(state.ledger)
    book = parts.bookkeeper(
        lambda state: parts.folder.write_json(
            "privacy.json", spending.card(num_rounds, state.round_num)
        )
    )
    with _saved_on_interrupt(book):
        run = Federation(strategy, parts.grid, spending, book, num_rounds)
        return train(run, state), spending


def _centralize(parts: _Parts, state: RunState) -> tuple[RunState, PrivacySpending]:
    trainer = build.build_pooled_trainer(parts.job.config, parts.model, parts.dataset)
    book = parts.bookkeeper()
    with _saved_on_interrupt(book):
        state = train_centralized(trainer, book, parts.job.num_rounds, state)
        return state, PrivacySpending(None, None)


def _write_left_out(folder: RunFolder, dataset: FederatedDataset) -> int:
    """Name the images that data.max_images_per_user leaves out, if any."""
    left_out = list(getattr(dataset, "left_out", tuple)())
    if left_out:
        folder.write_json("left_out_images.json", {"image_ids": left_out})
    return len(left_out)


def _numbers_depend_on(job: Job, dataset: FederatedDataset) -> dict[str, Any]:
    """Return what a checkpoint must have been written under: settings and data."""
    info = getattr(dataset, "info", None)
    return {
        **job.numbers_depend_on,
        "label_names": list(dataset.label_names),
        "data_index": info().index_sha256 if info else None,
    }


def _resumed(folder: RunFolder, job: Job, dataset: FederatedDataset) -> RunState | None:
    if not folder.checkpoint.exists():
        return None
    return load_checkpoint(folder.checkpoint, _numbers_depend_on(job, dataset))


@contextmanager
def _saved_on_interrupt(book: Bookkeeper) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        book.save()
        raise


def _summarize(
    job: Job, state: RunState, grid: InProcessGrid, dataset: FederatedDataset
) -> dict[str, Any]:
    config = job.config
    best_round = state.best.round_num if state.best else state.round_num
    arrays = state.best.arrays if state.best else state.arrays
    scorer = SplitScorer(grid, dataset, "test", batch_size=config.evaluation.batch_size)
    started = time.perf_counter()
    test = score_test(
        scorer,
        arrays,
        dataset,
        resamples=config.evaluation.bootstrap_resamples,
        seed=config.seed,
    )
    test["scores"]["seconds"] = time.perf_counter() - started
    return {
        "name": config.name,
        "run_id": job.run_id,
        "case": config.case,
        "kind": CENTRALIZED if job.centralized else "federated",
        "seed": config.seed,
        "num_rounds": job.num_rounds,
        "best_round": best_round,
        "best_val_macro_ap": state.best.macro_ap if state.best else None,
        "num_parameters": sum(math.prod(array.shape) for array in arrays.values()),
        "test": test,
        "constant_predictor": {split: score_constant(dataset, split) for split in ("val", "test")},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return what the last bits of the numbers rest on."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        "fedsim": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **packages,
    }

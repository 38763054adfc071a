"""One run from its first round to its summary: train or go on, score on test, record."""

import functools
import hashlib
import importlib.metadata
import json
import math
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import nn

from fedsim import __version__, build
from fedsim.arrays import one_thread
from fedsim.bookkeeping import Bookkeeper
from fedsim.build_pooled import CENTRALIZED, Spending, build_pooled
from fedsim.build_privacy import federated_privacy
from fedsim.centralized import train_centralized
from fedsim.client_states import ClientStates
from fedsim.clients_file import ClientsFile
from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.engines.user_grid import UserGrid
from fedsim.errors import CheckpointError, PrivacyError
from fedsim.evaluation.final import score_constant, score_test
from fedsim.evaluation.scoring import SplitScorer
from fedsim.flower_seam import to_record
from fedsim.foreign import ForeignStrategy
from fedsim.jobs import Job
from fedsim.kept_scores import SCORES_FILE, KeptScores, keep_scores
from fedsim.loop import Federation, train
from fedsim.models.initialize import exchanged_tensors
from fedsim.peak_memory import peak_bytes
from fedsim.record import RunFolder
from fedsim.reporter import Reporter
from fedsim.run_few_shot import score_few_shot
from fedsim.run_users import Models, score_users
from fedsim.runtime import HERE, Place, Runtime
from fedsim.secret import Secret
from fedsim.state import RunState, load_checkpoint
from fedsim.strategy import SumStrategy
from fedsim.strategy_checks import named_faults
from fedsim.training.batched_head import NUM_BLOCKS

CLIENT_STATES = "client_states"
_PATHS: dict[build.TrainingPath, str] = {
    "features": "only the last layer trains: on stored features, one batch at a time",
    "batched_features": "only the last layer trains: on stored features, blocks of users at once",
}
_PACKAGES = ("flwr", "torch", "torchvision", "opacus", "dp-accounting", "h5py", "numpy", "pillow")


@one_thread()
def run_job(
    job: Job, folder: RunFolder, reporter: Reporter, workers: int, runtime: Runtime = HERE
) -> dict[str, Any]:
    """Train a run from where it is to its end, score it on test, and return its summary.

    Args:
        job: The run.
        folder: Where it writes, and goes on from a checkpoint if there is one.
        reporter: Told what happens.
        workers: Processes that train and score; no number depends on them.
        runtime: Where the users are.

    Raises:
        FedsimError: Whatever stops the run; its last checkpoint is kept.
        KeyboardInterrupt: After a checkpoint was saved.
    """
    started = time.perf_counter()
    config = job.config
    dataset = runtime.dataset(config)
    model = build.build_model(config, len(dataset.label_names))
    own = exchanged_tensors(model)
    secret = runtime.secret(config)
    arrays = to_record({name: tensor.clone() for name, tensor in own.items()})
    initial = RunState(arrays, secret=secret)
    state = resumed(folder, job, dataset) or initial
    _check_secret(folder, state, wanted=secret is not None)
    folder.truncate_after(state.round_num)
    folder.write_config(config.model_dump())
    left_out = _write_left_out(folder, dataset)
    reporter.started(job.run_id, job.num_rounds, max(state.round_num, 0))
    states = folder.path / CLIENT_STATES
    kept = ClientStates(states, config.engine.checkpoint_every)
    _forget_undone(kept, state, dataset.users("train"))
    tell = functools.partial(reporter.noted, job.run_id)
    place = Place(_numbers_named(job, dataset), states, workers, tell, state.unreceived)
    with runtime.grid(config, model, dataset, place) as grid:
        path = build.training_path(config, build.build_learner(config, model, dataset))
        parts = _Parts(job, folder, dataset, model, grid, reporter, path)
        if parts.trained_on != "images":
            reporter.noted(job.run_id, _PATHS[parts.trained_on])
        state, spending = _centralize(parts, state) if job.baseline else _federate(parts, state)
        summary = _summarize(parts, state, initial.arrays)
        if isinstance(grid, UserGrid):
            summary["num_workers_replaced"] = grid.num_workers_replaced
    scores = summary["test"]["scores"]
    spent = spending.spent(job.num_rounds)
    folder.append({"round": summary["best_round"], "split": "test", **scores, **spent})
    summary |= {
        "privacy": spending.card(job.num_rounds, state.round_num),
        "num_images_left_out": left_out,
        "seconds": time.perf_counter() - started,
        "peak_memory_mb": _peak_memory_mb(),
    }
    folder.write_json("summary.json", summary)
    return summary


@dataclass(frozen=True)
class _Parts:
    """What federated and centralized runs have in common."""

    job: Job
    folder: RunFolder
    dataset: FederatedDataset
    model: nn.Module
    grid: Grid
    reporter: Reporter
    path: build.TrainingPath

    @property
    def trained_on(self) -> build.TrainingPath:
        """The path, or one user at a time where blocks are not handed to an engine of ours."""
        at_once = self.job.baseline is None and isinstance(self.grid, UserGrid)
        return "features" if self.path == "batched_features" and not at_once else self.path

    def bookkeeper(
        self, spending: Spending, num_rounds: int, secret: Secret | None = None
    ) -> Bookkeeper:
        def write_card(state: RunState) -> None:
            card = spending.card(num_rounds, state.round_num)
            self.folder.write_json("privacy.json", card)

        evaluation = self.job.config.evaluation
        # A round that nodes have seen must not be done again: with the same noise, and without a
        # user who answered before, the two models would differ by that user's update.
        checkpoint_every = 1 if secret else self.job.config.engine.checkpoint_every
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
            num_rounds=num_rounds,
            score_every=evaluation.every,
            checkpoint_every=checkpoint_every,
            # Sites that are asked again draw other noise.
            save_begun=bool(secret) and self.job.config.privacy.example_level is not None,
            report=functools.partial(self.reporter.recorded, self.job.run_id),
            before_save=write_card,
        )


def _federate(parts: _Parts, state: RunState) -> tuple[RunState, Spending]:
    config, num_rounds = parts.job.config, parts.job.num_rounds
    secret = state.secret
    cohort = build.build_cohort(config, parts.dataset.users("train"), secret)
    mechanism, spending = federated_privacy(config, cohort.users, state.ledger, secret)
    strategy = build.build_strategy(config, cohort, mechanism)
    if parts.path == "batched_features" and isinstance(strategy, SumStrategy):
        strategy.num_blocks = NUM_BLOCKS
    affordable = _affordable(spending, state, num_rounds)
    book = parts.bookkeeper(spending, affordable, secret)
    if state.round_num > 0:
        with named_faults(config.strategy.name, state.round_num + 1):
            strategy.load_state_dict(state.strategy)
        if isinstance(strategy, ForeignStrategy) and strategy.on_resume:
            parts.reporter.noted(parts.job.run_id, strategy.on_resume)
            book.note(strategy.on_resume)
    attendance, clients = build.build_attendance(config, cohort.users), None
    if config.evaluation.record_clients:
        clients = ClientsFile(parts.folder.path, cohort.users, max(state.round_num, 0))
    with _saved_on_interrupt(book):
        run = Federation(strategy, parts.grid, spending, book, affordable, attendance, clients)
        state = train(run, state)
    _check_afforded(parts.job, state)
    return state, spending


def _centralize(parts: _Parts, state: RunState) -> tuple[RunState, Spending]:
    job = parts.job
    trainer, spending = build_pooled(
        job.config, job.baseline or "plain", parts.model, parts.dataset, state.ledger
    )
    affordable = _affordable(spending, state, job.num_rounds)
    book = parts.bookkeeper(spending, affordable)
    with _saved_on_interrupt(book):
        state = train_centralized(trainer, spending, book, affordable, state)
    _check_afforded(job, state)
    return state, spending


def _affordable(spending: Spending, state: RunState, num_rounds: int) -> int:
    """Return the rounds that the budget allows; those that are done are done."""
    return max(spending.affordable_rounds(num_rounds), state.round_num)


def _check_afforded(job: Job, state: RunState) -> None:
    if state.round_num < job.num_rounds:
        raise PrivacyError(
            f"{job.run_id}: expected a budget for {job.num_rounds} rounds, found it spent after "
            f"round {state.round_num}, whose checkpoint is kept; ask for {state.round_num} rounds, "
            "or raise epsilon"
        )


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


def _numbers_named(job: Job, dataset: FederatedDataset) -> str:
    """Return a digest of what the numbers depend on."""
    text = json.dumps(_numbers_depend_on(job, dataset), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def resumed(folder: RunFolder, job: Job, dataset: FederatedDataset) -> RunState | None:
    """Return the state that a run goes on from; None for a new one.

    Raises:
        CheckpointError: The checkpoint can't be read, or belongs to other settings or data.
    """
    if not folder.checkpoint.exists():
        return None
    state = load_checkpoint(folder.checkpoint, _numbers_depend_on(job, dataset))
    if state.round_num > job.num_rounds:
        raise CheckpointError(
            f"{folder.path}: expected a run of at most {job.num_rounds} rounds, found one with "
            f"{state.round_num} rounds done; ask for as many, or choose another --out"
        )
    return state


def _forget_undone(kept: ClientStates, state: RunState, users: UserTable) -> None:
    """Delete what users keep of rounds that are done again, or whose answers never came.

    Flower's nodes are told of the latter; but another engine may go on with the run.
    """
    kept.forget_after(state.round_num)
    for user, rounds in state.unreceived.items():
        index = users.find(user)
        if index is not None:
            kept.forget(index, rounds)


def _check_secret(folder: RunFolder, state: RunState, *, wanted: bool) -> None:
    """Raise CheckpointError for a run that was begun with noise that its nodes can take off."""
    if wanted and state.secret is None:
        raise CheckpointError(
            f"{folder.path}: expected a run whose noise nobody else can make, as in a "
            "deployment, found one whose noise is a function of its seed; delete the run's folder "
            "to start it anew, or choose another out"
        )


@contextmanager
def _saved_on_interrupt(book: Bookkeeper) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        book.save()
        raise


def _summarize(parts: _Parts, state: RunState, initial: ArrayRecord) -> dict[str, Any]:
    job, dataset, config = parts.job, parts.dataset, parts.job.config
    best_round = state.best.round_num if state.best else state.round_num
    arrays = state.best.arrays if state.best else state.arrays
    scorer = SplitScorer(parts.grid, dataset, "test", batch_size=config.evaluation.batch_size)
    started = time.perf_counter()
    logits = scorer.logits(arrays)
    test = score_test(
        scorer.targets,
        logits,
        dataset,
        resamples=config.evaluation.bootstrap_resamples,
        seed=config.seed,
    )
    test["scores"]["seconds"] = time.perf_counter() - started
    users = dataset.users("test")
    owner = np.repeat(np.arange(len(users), dtype=np.int32), users.num_images)
    kept = KeptScores(logits, scorer.targets, owner, users.ids, tuple(dataset.label_names))
    not_kept = keep_scores(parts.folder.path, kept)
    test["kept_scores"] = None if not_kept else SCORES_FILE
    if not_kept:
        test["kept_scores_reason"] = not_kept
    by_user = score_users(
        job,
        parts.folder,
        dataset,
        parts.grid,
        Models(arrays, initial),
        test=scorer,
        test_logits=logits,
        last_round=state.round_num,
    )
    return {
        "name": config.name,
        "run_id": job.run_id,
        "setting": job.setting,
        "case": config.case,
        "kind": CENTRALIZED if job.baseline else "federated",
        "seed": config.seed,
        "num_rounds": job.num_rounds,
        "best_round": best_round,
        "best_val_macro_ap": state.best.macro_ap if state.best else None,
        "trained_on": parts.trained_on,
        "num_parameters": sum(math.prod(array.shape) for array in arrays.values()),
        "test": test,
        **by_user,
        **score_few_shot(config, dataset, arrays, initial),
        "notes": [
            {"round": line["round"], "note": line["note"]}
            for line in parts.folder.lines()
            if "note" in line
        ],
        "constant_predictor": {split: score_constant(dataset, split) for split in ("val", "test")},
        "versions": versions(),
        "config": config.model_dump(mode="json"),
    }


def _peak_memory_mb() -> float:
    """Return the peak resident memory of this process, plus that of its largest ended child.

    It is of all that the process did, so of a run that shares one with others it is an upper
    bound; memory that both of them hold is counted twice.
    """
    return sum(map(peak_bytes, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))) / 1e6


def versions() -> dict[str, str]:
    """Return what the last bits of the numbers rest on."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        "fedsim": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **packages,
    }

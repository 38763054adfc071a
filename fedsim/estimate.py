"""About how long runs will take and what they will need, from a few steps that are timed."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim import build
from fedsim.arrays import one_thread
from fedsim.config import RunConfig
from fedsim.data.dataset import FederatedDataset
from fedsim.errors import FedsimError
from fedsim.jobs import Job
from fedsim.kept_by_users import client_states_mb
from fedsim.models.initialize import exchanged_tensors
from fedsim.peak_memory import peak_bytes

_SECONDS_TO_START = 4.0  # a process, its checks, the intervals on test
_LARGEST_USER = 16  # images of the user who is trained on for the measurement
_SCORED_IMAGES = 32
_PRIVATE_FACTOR = 2.0  # what per-example or per-user gradients cost beside plain ones
_ARRAYS_IN_A_CHECKPOINT = 4  # the model, the best one, and what a server optimizer keeps


@dataclass(frozen=True)
class Cost:
    """What a run costs.

    Attributes:
        seconds: On one core; NaN where it could not be measured.
        disk_mb: Of its folder, with all that users may come to keep there.
    """

    seconds: float
    disk_mb: float


@dataclass(frozen=True)
class _Pace:
    """Seconds on one core for an image: to train on it once, and to score it."""

    train: float
    score: float


def estimate_costs(jobs: list[Job]) -> dict[str, Cost]:
    """Return each run's cost by its id; runs that train alike are measured once."""
    paces: dict[str, _Pace] = {}
    sizes: dict[str, int] = {}
    costs = {}
    for job in jobs:
        config = build.with_defaults(job.config)
        dataset = build.build_dataset(config)
        parts = (config.data, config.model, config.federated.local)
        private = config.privacy.example_level is not None
        alike = json.dumps([*(part.model_dump() for part in parts), private], default=str)
        if alike not in paces:
            try:
                paces[alike] = _measure(config, dataset)
            except FedsimError:  # the run itself will say what is wrong
                paces[alike] = _Pace(math.nan, math.nan)
            arrays = exchanged_tensors(build.build_model(config, len(dataset.label_names)))
            sizes[alike] = sum(tensor.numel() * tensor.element_size() for tensor in arrays.values())
        seconds = _seconds(job, config, dataset, paces[alike])
        model_mb, num_users = sizes[alike] / 1e6, len(dataset.users("train"))
        states_mb = 0.0 if job.baseline else client_states_mb(config, num_users, model_mb)
        costs[job.run_id] = Cost(seconds, _ARRAYS_IN_A_CHECKPOINT * model_mb + states_mb)
    return costs


def memory_mb() -> float:
    """Return the most memory that this process has held so far, in 1e6 bytes.

    It has built every part of a run, so a process that trains one needs about as much.
    """
    return peak_bytes() / 1e6


def _seconds(job: Job, config: RunConfig, dataset: FederatedDataset, pace: _Pace) -> float:
    sizes = {
        split: int(dataset.users(split).num_images.sum()) for split in ("train", "val", "test")
    }
    scored = min(config.evaluation.num_val_images or sizes["val"], sizes["val"])
    if job.baseline is None:
        federated = config.federated
        images = federated.cohort_size * sizes["train"] / len(dataset.users("train"))
        trained = federated.num_rounds * images * federated.local.epochs
        times_scored = federated.num_rounds / config.evaluation.every + 1
    else:
        trained = job.num_rounds * sizes["train"]
        trained *= 1.0 if job.baseline == "plain" else _PRIVATE_FACTOR
        times_scored = job.num_rounds / config.evaluation.every + 1
    return (
        _SECONDS_TO_START
        + trained * pace.train
        + (times_scored * scored + sizes["test"]) * pace.score
    )


@one_thread()
def _measure(config: RunConfig, dataset: FederatedDataset) -> _Pace:
    trainer, users = build.build_trainer(config), dataset.users("train")
    typical = min(users.num_images.mean(), _LARGEST_USER)
    index = int(np.abs(users.num_images - typical).argmin())
    trained = int(users.num_images[index]) * config.federated.local.epochs
    scored = list(range(min(_SCORED_IMAGES, int(dataset.users("val").num_images.sum()))))
    return _Pace(
        _second_time(lambda: trainer.train(users.ids[index], 0)) / trained,
        _second_time(lambda: trainer.logits("val", scored)) / len(scored),
    )


def _second_time(work: Callable[[], Any]) -> float:
    """Time work that was done once before: the first time decodes images and sets kernels up."""
    work()
    started = time.perf_counter()
    work()
    return max(time.perf_counter() - started, math.ulp(1.0))

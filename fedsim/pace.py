"""How long an image takes on this machine: a few steps are timed."""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedsim import build
from fedsim.arrays import one_thread, zeros_like
from fedsim.cohort import deal
from fedsim.config import RunConfig
from fedsim.data.dataset import Examples, FederatedDataset, UserTable
from fedsim.training.batched_head import NUM_BLOCKS, BatchedHeadTrainer
from fedsim.training.learner import FeatureDataset
from fedsim.training.trainer import Trainer
from fedsim.update_sum import FoldRule

_LARGEST_USER = 16  # images of the user who is trained on for the measurement
_LARGEST_COHORT = 1000
_TIMED_IMAGES = 32
_ROWS = 1024  # made-up features


@dataclass(frozen=True)
class Pace:
    """Seconds on one core for an image; NaN where they could not be measured.

    Attributes:
        train: To train on it once, where users train.
        pooled: The same in a loop of optimizer steps, as baselines do.
        score: To score it.
        compute_features: To compute its features; 0 where training is on images.
        num_missing: By split, images whose features are not stored.
        shared_as: Names features that runs share.
    """

    train: float
    pooled: float
    score: float
    compute_features: float = 0.0
    num_missing: dict[str, int] = dataclasses.field(default_factory=dict)
    shared_as: str | None = None


UNKNOWN = Pace(math.nan, math.nan, math.nan)


@one_thread()
def measure(config: RunConfig, dataset: FederatedDataset) -> Pace:
    """Time training and scoring on a few images, and what they need before.

    Last layers are trained and scored on made-up features, so that none is computed or stored for
    the measurement.

    Raises:
        FedsimError: The run itself would raise it.
    """
    model = build.build_placed(config, build.build_model(config, len(dataset.label_names)))
    learner = build.build_learner(config, model, dataset)
    features = learner.dataset if isinstance(learner.dataset, FeatureDataset) else None
    if features is not None:
        made_up = _MadeUpFeatures(dataset, features.num_features)
        learner = dataclasses.replace(learner, dataset=made_up)
    trainer = build.build_trainer(config, learner=learner)
    scored = np.arange(min(_TIMED_IMAGES, int(dataset.users("val").num_images.sum())))
    pooled = train = _seconds_of_a_user(config, trainer, dataset.users("train"))
    if isinstance(trainer, BatchedHeadTrainer):
        train = _seconds_of_blocks(config, trainer, dataset.users("train"))
    pace = Pace(
        train, pooled, _second_time(lambda: trainer.logits("val", scored.tolist())) / len(scored)
    )
    if features is None:
        return pace
    return dataclasses.replace(
        pace,
        compute_features=_second_time(lambda: features.compute("val", scored)) / len(scored),
        num_missing={split: features.num_missing(split) for split in ("train", "val", "test")},
        shared_as=features.shared_as,
    )


def _seconds_of_a_user(config: RunConfig, trainer: Trainer, users: UserTable) -> float:
    typical = min(users.num_images.mean(), _LARGEST_USER)
    index = int(np.abs(users.num_images - typical).argmin())
    seconds = _second_time(lambda: trainer.train(users.ids[index], 0))
    return seconds / (int(users.num_images[index]) * config.federated.local.epochs)


def _seconds_of_blocks(config: RunConfig, trainer: BatchedHeadTrainer, users: UserTable) -> float:
    """Time blocks of users who stand for a cohort: all, since one may hold a single large user."""
    cohort_size = min(config.federated.cohort_size, _LARGEST_COHORT)
    cohort = np.linspace(0, len(users) - 1, cohort_size).astype(np.int64)
    cohort = cohort[np.argsort(-users.num_images[cohort], kind="stable")]
    blocks = [cohort[block] for block in deal(users.num_images[cohort], NUM_BLOCKS)]
    # Blocks train on the CPU, on what comes in messages, wherever the model is.
    sent = {name: torch.zeros(array.shape) for name, array in trainer.arrays.items()}
    rule, total = FoldRule("uniform"), zeros_like(sent)

    def train() -> None:
        for block in blocks:
            trainer.train_block([users.ids[index] for index in block], 0, sent, rule, total)

    images = int(users.num_images[cohort].sum()) * config.federated.local.epochs
    return _second_time(train) / images


def _second_time(work: Callable[[], Any]) -> float:
    """Time work that was done once before: the first time decodes images and sets kernels up."""
    work()
    started = time.perf_counter()
    work()
    return max(time.perf_counter() - started, math.ulp(1.0))


class _MadeUpFeatures:
    """A data set's users and labels, with noise for features."""

    def __init__(self, dataset: FederatedDataset, num_features: int) -> None:
        self._dataset = dataset
        generator = torch.Generator().manual_seed(0)
        self._rows = torch.rand(_ROWS, num_features, generator=generator)

    @property
    def label_names(self) -> tuple[str, ...]:
        return self._dataset.label_names

    def users(self, split: str) -> UserTable:
        return self._dataset.users(split)

    def labels(self, split: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self._dataset.labels(split, indices)

    def load(self, split: str, indices: npt.NDArray[np.int64]) -> Examples:
        labels = self._dataset.labels(split, indices).view(np.uint8)
        rows = torch.from_numpy(indices % _ROWS)
        return Examples(self._rows.index_select(0, rows), torch.from_numpy(labels))

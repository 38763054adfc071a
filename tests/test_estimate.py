"""What runs are expected to take: what is timed, and how it adds up."""

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim import build, pace
from fedsim.config import RunConfig
from fedsim.data.dataset import num_examples
from fedsim.data.feature_store import BLOCK
from fedsim.estimate import estimate_costs
from fedsim.jobs import Job
from fedsim.pace import Pace
from fedsim.training.batched_head import BatchedHeadTrainer
from fedsim.training.learner import FeatureDataset
from fedsim.training.trainer import Trainer


def config_of(tmp_path: Path, **changes: Any) -> RunConfig:
    settings = {
        "name": "x",
        "data": {"source": "openclipart", "image_size": 8},
        "model": {"name": "fakes:frozen_model"},
        "federated": {"num_rounds": 5, "cohort_size": 10, "local": {"epochs": 3}},
        "engine": {"feature_cache": str(tmp_path / "features")},
    }
    return RunConfig.model_validate(settings | changes)


def seconds(monkeypatch: pytest.MonkeyPatch, measured: Pace, jobs: list[Job]) -> list[float]:
    monkeypatch.setattr("fedsim.estimate.measure", lambda config, dataset: measured)
    return [cost.seconds for cost in estimate_costs(jobs).values()]


MISSING = {"train": 1000, "val": 100, "test": 10}


def test_features_that_runs_share_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path)
    jobs = [Job(name, config) for name in "abc"]
    none = Pace(0.0, 0.0, 0.0)
    (start, *_) = seconds(monkeypatch, none, jobs)
    shared = seconds(monkeypatch, Pace(0.0, 0.0, 0.0, 2.0, MISSING, "these"), jobs)
    assert shared == [start + 2 * 1110, start, start]
    own = seconds(monkeypatch, Pace(0.0, 0.0, 0.0, 2.0, MISSING, None), jobs)
    assert own == [start + 2 * 1110] * 3


def test_a_few_rounds_do_not_need_all_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's images are in blocks of 32, of which others' images are computed along."""
    config = config_of(tmp_path, federated={"num_rounds": 1, "cohort_size": 2})
    users = build.build_dataset(config).users("train")
    needed = 2 * users.num_images.mean() + 2 * (BLOCK - 1)
    jobs = [Job("a", config), Job("b", config, "plain")]
    none = seconds(monkeypatch, Pace(0.0, 0.0, 0.0), jobs)
    alone = [
        seconds(monkeypatch, Pace(0.0, 0.0, 0.0, 1.0, MISSING, None), [job])[0] for job in jobs
    ]
    assert alone == pytest.approx([none[0] + math.ceil(needed) + 110, none[1] + 1110])


def test_rounds_and_baselines_have_their_own_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, centralized={"epochs": 7}, evaluation={"every": 5})
    dataset = build.build_dataset(config)
    images = {split: num_examples(dataset, split) for split in ("train", "val", "test")}
    jobs = [Job("a", config), Job("b", config, "plain")]
    none = seconds(monkeypatch, Pace(0.0, 0.0, 0.0), jobs)
    found = seconds(monkeypatch, Pace(1.0, 100.0, 0.01), jobs)
    federated = 5 * 10 * 3 * images["train"] / len(dataset.users("train"))
    scored = [2 * images["val"], (7 / 5 + 1) * images["val"]]
    assert found == pytest.approx(
        [
            none[0] + federated + 0.01 * (scored[0] + images["test"]),
            none[1] + 700 * images["train"] + 0.01 * (scored[1] + images["test"]),
        ]
    )


def test_heads_are_timed_in_blocks_and_without_storing_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, computed = [], []
    train_block, compute = BatchedHeadTrainer.train_block, FeatureDataset.compute

    def trained(self: BatchedHeadTrainer, users: list[str], *args: Any) -> Any:
        blocks.append(users)
        return train_block(self, users, *args)

    def counted(self: FeatureDataset, split: str, numbers: Any) -> Any:
        computed.append(len(numbers))
        return compute(self, split, numbers)

    monkeypatch.setattr(BatchedHeadTrainer, "train_block", trained)
    monkeypatch.setattr(FeatureDataset, "compute", counted)
    config = config_of(tmp_path, federated={"num_rounds": 5, "cohort_size": 285})
    dataset = build.build_dataset(config)
    found = pace.measure(config, dataset)
    assert computed == [32, 32]
    assert len(blocks) == 16  # eight, twice
    assert blocks[:8] == blocks[8:]
    assert sorted(user for block in blocks[:8] for user in block) == list(
        dataset.users("train").ids
    )
    assert 0 < found.train < found.pooled
    assert found.compute_features > 0
    splits = ("train", "val", "test")
    assert found.num_missing == {split: num_examples(dataset, split) for split in splits}
    assert not (tmp_path / "features").exists()

    model = build.build_model(config, len(dataset.label_names))
    features = build.build_learner(config, model, dataset).dataset
    assert isinstance(features, FeatureDataset)
    features.load("train", np.array([0, 1, 40]))
    again = pace.measure(config, dataset)
    assert again.num_missing["train"] == found.num_missing["train"] - 2 * BLOCK
    assert again.shared_as == found.shared_as is not None


def test_what_trains_on_images_needs_no_features(tmp_path: Path) -> None:
    config = config_of(tmp_path, model={"name": "cnn", "channels": [4]})
    found = pace.measure(config, build.build_dataset(config))
    assert found.train == found.pooled > 0
    assert (found.compute_features, found.num_missing) == (0.0, {})


def test_users_who_train_one_at_a_time_are_timed_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchedHeadTrainer, "train_block", None)
    trained = []
    train = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda *args: trained.append(args[1]) or train(*args))
    config = config_of(tmp_path, strategy={"name": "coordinate_median"})
    found = pace.measure(config, build.build_dataset(config))
    assert len(trained) == 2
    assert found.train == found.pooled > 0


def test_blocks_are_timed_on_the_cpu_wherever_the_model_is(tmp_path: Path) -> None:
    class OnDevice:
        arrays: ClassVar = {"weight": torch.zeros(3, 4, device="meta")}
        seen: ClassVar[list[str]] = []

        def train_block(self, users: list[str], round_num: int, *given: Any) -> None:
            received, _, total = given
            self.seen += [str(array.device) for array in (*received.values(), *total.values())]

    config = config_of(tmp_path)
    users = build.build_dataset(config).users("train")
    assert pace._seconds_of_blocks(config, OnDevice(), users) > 0  # type: ignore[arg-type]
    assert OnDevice.seen == ["cpu"] * 2 * 2 * 8

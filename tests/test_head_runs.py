"""Runs that train a frozen backbone's head, from settings to records."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim import build
from fedsim.config import RunConfig
from fedsim.experiment import run
from fedsim.reporter import Silence


def settings(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "heads",
        "data": {"source": "openclipart", "image_size": 8},
        "model": {"name": "fakes:frozen_model"},
        "federated": {"num_rounds": 2, "cohort_size": 285, "local": {"learning_rate": 1.0}},
        "strategy": {"name": "fedavg", "weighting": "uniform"},
        "evaluation": {"bootstrap_resamples": 0},
        "engine": {"workers": 1, "feature_cache": str(tmp_path / "features")},
        **changes,
    }


CENTRAL = {"central": {"clipping_norm": 0.5, "epsilon": 50.0, "adaptive_quantile": 0.5}}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "batched_features"),
        ({"privacy": CENTRAL}, "batched_features"),
        ({"strategy": {"name": "fedadam"}}, "batched_features"),
        ({"strategy": {"name": "scaffold"}}, "features"),
        ({"strategy": {"name": "coordinate_median"}}, "features"),
        ({"strategy": {"name": "flwr.serverapp.strategy:FedMedian"}}, "features"),
        (
            {"privacy": {"example_level": {"max_grad_norm": 1.0, "noise_multiplier": 1.0}}},
            "features",
        ),
        (
            {"federated": {"local": {"max_grad_norm": 1.0, "clip_each_array": True}}},
            "features",
        ),
        ({"model": {"name": "cnn"}}, "images"),
        ({"data": {"image_size": 8, "augmentation": "flip"}}, "images"),
    ],
)
def test_which_path_trains(tmp_path: Path, changes: dict[str, Any], path: str) -> None:
    config = RunConfig(**settings(tmp_path, **changes))
    dataset = build.build_dataset(config)
    model = build.build_model(config, len(dataset.label_names))
    assert build.training_path(config, build.build_learner(config, model, dataset)) == path


@pytest.mark.parametrize("privacy", [{}, CENTRAL], ids=["plain", "adaptive"])
def test_records_do_not_depend_on_workers_or_breaks_or_on_where_features_are(
    tmp_path: Path, privacy: dict[str, Any]
) -> None:
    def lines(name: str, num_rounds: int = 2, **engine: Any) -> list[dict[str, Any]]:
        given = settings(tmp_path, privacy=privacy)
        given["engine"] |= engine
        given["federated"]["num_rounds"] = num_rounds
        (summary,) = run(given, tmp_path / name, Silence()).values()
        assert summary["trained_on"] == "batched_features"
        text = (tmp_path / name / "heads" / "seed0" / "metrics.jsonl").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in found]

    one = lines("one")
    assert one == lines("two", workers=2) == lines("memory", feature_cache=None)
    if not privacy:  # whose noise would be that of one round
        lines("broken off", num_rounds=1)
        assert one == lines("broken off", workers=2)
    losses = [line["loss"] for line in one if line["split"] == "train"]
    assert losses[1] < losses[0]


def test_features_of_images_that_another_release_decodes_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(**settings(tmp_path))
    dataset = build.build_dataset(config)
    model = build.build_model(config, len(dataset.label_names))
    version = importlib.metadata.version
    for number in (1, 2):
        learner = build.build_learner(config, model, dataset)
        learner.dataset.load("val", np.arange(2))
        assert len(list((tmp_path / "features").iterdir())) == number
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: "0" if name == "pillow" else version(name)
        )

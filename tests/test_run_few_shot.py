"""What a trained model is worth for classes of users that it has not seen."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim import build
from fedsim.check import faults_of
from fedsim.config import FewShotConfig, RunConfig
from fedsim.data.sources import open_dataset
from fedsim.experiment import run
from fedsim.flower_seam import to_record
from fedsim.models.initialize import exchanged_tensors
from fedsim.run_few_shot import few_shot_images, score_few_shot

SETTINGS: dict[str, Any] = {
    "name": "few",
    "data": {"image_size": 16},
    "model": {"name": "cnn", "channels": [8]},
    "federated": {"num_rounds": 1, "cohort_size": 4, "local": {"learning_rate": 0.1}},
    "evaluation": {
        "bootstrap_resamples": 0,
        "num_val_images": 50,
        "few_shot": {
            "num_ways": 3,
            "num_queries": 4,
            "num_episodes": 5,
            "num_runs": 2,
            "learners": ["nearest_centroid", "logistic_head", "fine_tuning", "constant"],
            "fine_tuning": {"num_steps": 2},
        },
    },
    "engine": {"workers": 1},
}


def settings(**few_shot: Any) -> RunConfig:
    evaluation = SETTINGS["evaluation"]
    changed = {**evaluation, "few_shot": {**evaluation["few_shot"], **few_shot}}
    return RunConfig.model_validate({**SETTINGS, "evaluation": changed})


def test_images_of_one_class_alone() -> None:
    config = settings()
    few_shot = config.evaluation.few_shot or FewShotConfig()
    images = few_shot_images(config, few_shot)
    dataset = build.build_dataset(config)
    labels = dataset.labels("test", np.arange(361))
    alone = {row: set(np.flatnonzero(of)) for row, of in enumerate(labels)}
    sizes = {k: sum(of == {k} for of in alone.values()) for k in range(17)}
    expected = [
        (row, next(iter(of)))
        for row, of in alone.items()
        if len(of) == 1 and sizes[next(iter(of))] >= 9
    ]
    assert list(zip(images.numbers, images.labels, strict=True)) == expected
    assert images.num_left_out == sum(0 < size < 9 for size in sizes.values())
    fine = few_shot_images(config, few_shot.model_copy(update={"labels": "fine", "num_queries": 1}))
    rows = open_dataset("openclipart", labels="fine", image_size=16).labels("test", fine.numbers)
    assert rows.sum(axis=1).tolist() == [1] * len(rows)  # labels that it was not trained on
    assert np.array_equal(rows.argmax(axis=1), fine.labels)
    assert len(fine.names) == 81


@pytest.mark.slow
def test_federated_central_and_private_models(tmp_path: Path) -> None:
    private = {"central": {"clipping_norm": 0.1, "noise_multiplier": 1.0}}
    centralized = {
        "epochs": 1,
        "example_level": {"epochs": 1, "max_grad_norm": 1.0, "noise_multiplier": 1.0},
    }
    strategy = {"name": "fedavg", "weighting": "uniform"}
    parts = {"strategy": strategy, "privacy": private, "centralized": centralized}
    found = run({**SETTINGS, **parts}, tmp_path)
    assert len(found) == 3
    for summary in found.values():
        few_shot = summary["few_shot"]
        assert few_shot["chance"] == 1 / 3
        assert few_shot["num_classes"] == len(few_shot["classes"]) == 9
        for learner, backbones in few_shot["learners"].items():
            for of in backbones.values():
                accuracies = [score["accuracy"] for score in of["runs"]]
                assert of["score"] == min(accuracies)
                assert len(accuracies) == 2
                assert all(score["num_queries"] == 60 for score in of["runs"])
                if learner == "constant":
                    assert accuracies == [1 / 3, 1 / 3]
    scores = [summary["few_shot"]["learners"] for summary in found.values()]
    initial = [of["logistic_head"]["initial"] for of in scores]
    assert initial[0] == initial[1] == initial[2]  # one seed, one initial model
    assert any(of["logistic_head"]["best"] != initial[0] for of in scores)


def test_training_shows_and_seeds_are_judged_on_the_same_episodes() -> None:
    config = settings(learners=["constant", "nearest_centroid"], num_episodes=40)
    dataset = build.build_dataset(config)
    models = [build.build_model(config, 17) for _ in range(2)]
    best, initial = (to_record(exchanged_tensors(model)) for model in models)
    for tensor in exchanged_tensors(models[0]).values():
        tensor.data.zero_()  # a backbone that has forgotten everything
    of = score_few_shot(config, dataset, best, initial)["few_shot"]["learners"]
    assert of["nearest_centroid"]["best"]["score"] == 1 / 3
    assert of["nearest_centroid"]["initial"]["score"] > 0.4
    again = config.model_copy(update={"seed": 5})
    other = score_few_shot(again, dataset, best, initial)["few_shot"]["learners"]
    assert other["nearest_centroid"]["initial"] == of["nearest_centroid"]["initial"]
    own = settings(learners=["nearest_centroid"], num_episodes=40, episode_seed="per_run")
    runs = score_few_shot(own, dataset, best, initial)["few_shot"]["learners"]
    assert (
        runs["nearest_centroid"]["initial"]["runs"][0]
        == (of["nearest_centroid"]["initial"]["runs"][0])
    )
    assert len({str(r) for r in runs["nearest_centroid"]["initial"]["runs"]}) == 2


@pytest.mark.parametrize(
    ("few_shot", "message"),
    [
        ({"num_ways": 5, "num_queries": 19}, "expected 5 classes with 24 test images.*found 4"),
        ({"learners": ["nearest_centriod"]}, "did you mean 'nearest_centroid'"),
        ({"learners": ["math:pi"]}, "something to call"),
    ],
)
def test_faults_are_told_before_any_training(few_shot: dict[str, Any], message: str) -> None:
    config = settings(**few_shot)
    faults = faults_of(config, None, build.build_dataset(config))
    assert len(faults) == 1
    with pytest.raises(type(faults[0]), match=message):
        raise faults[0]

"""The end of a run: its best model as a backbone for classes of users that it has not seen."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from torch import nn

from fedsim import build
from fedsim.arrays import one_thread
from fedsim.config import FewShotConfig, RunConfig
from fedsim.data.dataset import FederatedDataset, num_examples
from fedsim.errors import DataError
from fedsim.evaluation.backbone import FineTuning, Inputs, eval_inputs, features_of
from fedsim.evaluation.episodes import (
    Episodes,
    EpisodeShape,
    Int64s,
    class_sizes,
    episodes_of_runs,
)
from fedsim.evaluation.few_shot import score_runs, worst
from fedsim.evaluation.learners import find_learner
from fedsim.flower_seam import to_arrays
from fedsim.models.initialize import exchanged_tensors

FINE_TUNING = "fine_tuning"
_SPLIT = "test"
_WHERE = "evaluation.few_shot.learners"


@dataclass(frozen=True, eq=False)
class FewShotImages:
    """The test images that episodes are drawn from.

    Attributes:
        numbers: Of the examples: those with exactly one label, of a class that has enough of them.
        labels: The class of each, its column in ``names``.
        names: All labels of the label set.
        num_left_out: Classes with one such image or more, but too few for an episode.
    """

    numbers: Int64s
    labels: Int64s
    names: tuple[str, ...]
    num_left_out: int

    def summary(self) -> dict[str, Any]:
        """Return what was drawn from."""
        sizes = class_sizes(self.labels)
        return {
            "num_images": len(self.numbers),
            "num_classes": len(sizes),
            "num_classes_left_out": self.num_left_out,
            "classes": {self.names[label]: size for label, size in sizes.items()},
        }


def few_shot_images(config: RunConfig, settings: FewShotConfig) -> FewShotImages:
    """Return the images that belong to one class of the label set and no other.

    Classes with too few of them for an episode are left out.

    Args:
        config: The run's settings.
        settings: Its ``evaluation.few_shot``.

    Raises:
        DataError: Fewer classes are left than an episode has.
    """
    labels = settings.labels or config.data.labels
    data = config.data.model_copy(update={"labels": labels})
    dataset = build.build_dataset(config.model_copy(update={"data": data}))
    given = dataset.labels(_SPLIT, np.arange(num_examples(dataset, _SPLIT)))
    numbers = np.flatnonzero(np.count_nonzero(given, axis=1) == 1)
    classes = given[numbers].argmax(axis=1)
    sizes = class_sizes(classes)
    needed = _shape(settings).images_per_class
    kept = [label for label, size in sizes.items() if size >= needed]
    if len(kept) < settings.num_ways:
        most = sorted(sizes.values(), reverse=True)
        listed = ", ".join(map(str, most[: settings.num_ways]))
        raise DataError(
            f"evaluation.few_shot: expected {settings.num_ways} classes with {needed} test images "
            f"each that have this {labels} label alone, found {len(kept)} (the largest have "
            f"{listed}); lower num_queries, num_shots or num_ways"
        )
    large = np.isin(classes, kept)
    return FewShotImages(
        numbers[large], classes[large], dataset.label_names, len(sizes) - len(kept)
    )


def check_few_shot(config: RunConfig, model: nn.Module) -> None:
    """Raise for few-shot settings that can't be met, before anything is trained.

    Raises:
        ConfigError: A learner is unknown, or the model has no last linear layer.
        DataError: As for ``few_shot_images``.
    """
    settings = config.evaluation.few_shot
    if settings is None:
        return
    for name in settings.learners:
        if name != FINE_TUNING:
            find_learner(name, _WHERE)
    images = few_shot_images(config, settings)
    inputs = _inputs(config, build.build_dataset(config))
    features_of(model, inputs, images.numbers[:1], 1)


@one_thread()
def score_few_shot(
    config: RunConfig, dataset: FederatedDataset, best: ArrayRecord, initial: ArrayRecord
) -> dict[str, Any]:
    """Judge a run's best model by few-shot episodes on test users, and the initial one beside it.

    Args:
        config: The run's settings.
        dataset: Its data.
        best: The model of the best round.
        initial: What the run began with: its features are what the architecture gives untrained.

    Returns:
        ``few_shot`` if the settings ask for it: what was drawn from, ``chance``, and under
        ``learners``, by name and then ``best`` and ``initial``: the ``score``, the accuracy of the
        worst run, and every run's accuracy with its interval's half width.

    Raises:
        FedsimError: As for ``check_few_shot``, or a learner fails.
    """
    settings = config.evaluation.few_shot
    if settings is None:
        return {}
    images = few_shot_images(config, settings)
    runs = episodes_of_runs(
        images.labels,
        _shape(settings),
        settings.num_episodes,
        num_runs=settings.num_runs,
        episode_seed=settings.episode_seed,
        seed=settings.seed,
    )
    scored = {
        name: _scores(config, settings, dataset, arrays, images, runs)
        for name, arrays in (("best", best), ("initial", initial))
    }
    return {
        "few_shot": {
            **images.summary(),
            "labels": settings.labels or config.data.labels,
            "chance": 1 / settings.num_ways,
            "learners": {
                learner: {name: of[learner] for name, of in scored.items()}
                for learner in settings.learners
            },
        }
    }


def _scores(
    config: RunConfig,
    settings: FewShotConfig,
    dataset: FederatedDataset,
    arrays: ArrayRecord,
    images: FewShotImages,
    runs: list[Episodes],
) -> dict[str, Any]:
    """Return every learner's scores over one backbone."""
    model = build.build_model(config, len(dataset.label_names))
    backbone = build.build_learner(config, model, dataset)
    own = exchanged_tensors(backbone.model)
    for name, value in to_arrays(arrays).items():
        own[name].data.copy_(value)
    inputs = eval_inputs(backbone.dataset, _SPLIT, backbone.transform, backbone.channels_last)
    features = features_of(backbone.model, inputs, images.numbers, config.evaluation.batch_size)
    found: dict[str, Any] = {}
    for name in settings.learners:
        if name == FINE_TUNING:
            tuning = FineTuning(backbone.model, inputs, **settings.fine_tuning.model_dump())
            scored = score_runs(tuning, images.numbers, runs, seed=config.seed, name=name)
        else:
            learner = find_learner(name, _WHERE)
            scored = score_runs(learner, features, runs, seed=config.seed, name=name)
        found[name] = {
            "score": worst(scored).accuracy,
            "runs": [dataclasses.asdict(run) for run in scored],
        }
    return found


def _shape(settings: FewShotConfig) -> EpisodeShape:
    return EpisodeShape(settings.num_ways, settings.num_shots, settings.num_queries)


def _inputs(config: RunConfig, dataset: FederatedDataset) -> Inputs:
    channels_last = config.model.memory_format == "channels_last"
    return eval_inputs(dataset, _SPLIT, build.build_transform(config), channels_last)

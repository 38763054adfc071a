"""All that ``class-prior`` tells of some models: scores under priors, crossings, intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.class_bootstrap import ClassInterval, bootstrap_by_class
from fedsim.evaluation.class_prior import Counts, count_confusion, reweighted
from fedsim.evaluation.classifier_runs import ClassifierRun, ClassifierRuns
from fedsim.evaluation.pareto import Order, pareto_order
from fedsim.evaluation.prior_sweep import (
    RatioSweep,
    accuracy_crossings,
    crossings,
    sweep_ratios,
)

Floats = npt.NDArray[np.float64]

SCORES = (
    "accuracy",
    "macro_recall",
    "macro_precision",
    "macro_f1",
    "macro_specificity",
    "mcc",
    "kappa",
)
RATIOS = (1.0, 3.0, 10.0, 30.0, 100.0)
_CURVE_POINTS = 25
_RARE_CLASSES = 3


@dataclass(frozen=True)
class RunScores:
    """What one run scores on its images as they are; None where the file lacks the images.

    Attributes:
        model: What was trained.
        seed: Tells the model's runs apart.
        accuracy: On the test images.
        macro_recall: On the test images.
        training_prior_accuracy: On the test images under the classes' shares in training.
        validation_accuracy: On the validation images.
        validation_macro_recall: Over the classes that have validation images.
    """

    model: str
    seed: int
    accuracy: float
    macro_recall: float
    training_prior_accuracy: float | None
    validation_accuracy: float | None
    validation_macro_recall: float | None


@dataclass(frozen=True)
class Pair:
    """Two models beside each other.

    Attributes:
        first: A model.
        second: Another one.
        crossings: Ratios at which their mean accuracies change places, read off the curve.
        exact_crossings: The same, solved for.
        orders: For each seed that both have, how the first stands to the second.
        seed: The run of each that ``differences`` compares.
        differences: The second's recall minus the first's, by class; None without a common seed.
    """

    first: str
    second: str
    crossings: list[float]
    exact_crossings: list[float]
    orders: dict[int, Order]
    seed: int | None
    differences: list[ClassInterval] | None


@dataclass(frozen=True, eq=False)
class PriorStudy:
    """Models under geometric priors.

    Attributes:
        num_classes: Number of classes.
        num_images: Test images.
        runs: Scores of each run as they are.
        sweeps: By score, models at the ratios that were asked for.
        curve: Accuracy at 25 ratios, evenly spaced in log, up to the largest one asked for.
        recalls: Of each model, the classes' recalls, shape (seeds, classes).
        rare: Recall of the rarest classes of the first run on its validation images; None without.
        pairs: Each two models.
    """

    num_classes: int
    num_images: int
    runs: list[RunScores]
    sweeps: dict[str, RatioSweep]
    curve: RatioSweep
    recalls: dict[str, Floats]
    rare: list[ClassInterval] | None
    pairs: list[Pair]


def study_priors(
    runs: ClassifierRuns,
    ratios: Sequence[float] = RATIOS,
    *,
    bootstrap_seed: int = 0,
    num_resamples: int = 2000,
) -> PriorStudy:
    """Judge models under geometric priors, class 0 the most frequent.

    The bootstraps share one ``numpy.random.default_rng(bootstrap_seed)``: first the rare classes
    on validation images, then every pair of models, class by class.

    Args:
        runs: Models and their runs.
        ratios: At least 1 each, the largest above 1.
        bootstrap_seed: Of the generator.
        num_resamples: Of each class.

    Raises:
        ConfigError: A setting is out of range.
        DataError: A class without test images.
    """
    if not ratios or not all(np.isfinite(ratio) and ratio >= 1 for ratio in ratios):
        raise ConfigError(
            f"ratios: expected numbers of at least 1, found {list(ratios)}; 1, 10 and 100 will do"
        )
    if max(ratios) <= 1:
        raise ConfigError("ratios: expected one above 1, found only 1; add 100, say")
    if bootstrap_seed < 0:
        raise ConfigError(f"seed: expected a whole number from 0, found {bootstrap_seed}; raise it")
    _check_classes(runs)
    confusions = {
        model: [_confusion(run, runs.num_classes) for run in found]
        for model, found in runs.by_model.items()
    }
    sweeps = {score: sweep_ratios(confusions, sorted(set(ratios)), score) for score in SCORES}
    curve = sweep_ratios(confusions, np.geomspace(1, max(ratios), _CURVE_POINTS))
    recalls = {
        model: np.array([np.diag(matrix) / matrix.sum(axis=1) for matrix in matrices])
        for model, matrices in confusions.items()
    }
    generator = np.random.default_rng(bootstrap_seed)
    rare = _rare_recalls(runs, generator, num_resamples)
    pairs = []
    for first, second in combinations(runs.by_model, 2):
        orders = {
            one.seed: pareto_order(confusions[first][i], confusions[second][j])
            for i, one in enumerate(runs.by_model[first])
            for j, other in enumerate(runs.by_model[second])
            if one.seed == other.seed
        }
        seed = next(iter(orders), None)
        differences = None
        if seed is not None:
            differences = _differences(runs, first, second, seed, generator, num_resamples)
        pairs.append(
            Pair(
                first=first,
                second=second,
                crossings=crossings(curve.ratios, curve.mean(first), curve.mean(second)),
                exact_crossings=accuracy_crossings(
                    recalls[first].mean(axis=0), recalls[second].mean(axis=0), max(ratios)
                ),
                orders=orders,
                seed=seed,
                differences=differences,
            )
        )
    scores = [_scores(run, runs.num_classes) for found in runs.by_model.values() for run in found]
    return PriorStudy(
        num_classes=runs.num_classes,
        num_images=len(runs.targets),
        runs=scores,
        sweeps=sweeps,
        curve=curve,
        recalls=recalls,
        rare=rare,
        pairs=pairs,
    )


def _check_classes(runs: ClassifierRuns) -> None:
    """Raise DataError for a class without test images, before a large matrix is made for it."""
    present = np.unique(runs.targets)
    if len(present) < runs.num_classes:
        missing = int(np.flatnonzero(np.append(present, -1) != np.arange(len(present) + 1))[0])
        raise DataError(
            f"targets: expected test images of each of {runs.num_classes:,} classes, found none "
            f"of class {missing}; number the classes from 0, without gaps"
        )


def _confusion(run: ClassifierRun, num_classes: int) -> Counts:
    return count_confusion(run.targets, run.predictions, num_classes=num_classes)


def _scores(run: ClassifierRun, num_classes: int) -> RunScores:
    matrix = _confusion(run, num_classes)
    as_it_is = reweighted(matrix, matrix.sum(axis=1))
    in_training = validated = None
    if run.class_counts is not None:
        in_training = reweighted(matrix, run.class_counts).accuracy
    if run.validation is not None:
        other = count_confusion(*run.validation, num_classes=num_classes)
        validated = reweighted(other, other.sum(axis=1))
    return RunScores(
        model=run.model,
        seed=run.seed,
        accuracy=as_it_is.accuracy,
        macro_recall=as_it_is.average("recall"),
        training_prior_accuracy=in_training,
        validation_accuracy=None if validated is None else validated.accuracy,
        validation_macro_recall=None if validated is None else validated.average("recall"),
    )


def _rare_recalls(
    runs: ClassifierRuns, generator: np.random.Generator, num_resamples: int
) -> list[ClassInterval] | None:
    """Return the first run's intervals of those of the last classes with validation images."""
    validation = next(iter(runs.by_model.values()))[0].validation
    if validation is None:
        return None
    targets, predictions = validation
    last = range(max(runs.num_classes - _RARE_CLASSES, 0), runs.num_classes)
    return bootstrap_by_class(
        targets,
        targets == predictions,
        [label for label in last if (targets == label).any()],
        generator=generator,
        num_resamples=num_resamples,
    )


def _differences(
    runs: ClassifierRuns,
    first: str,
    second: str,
    seed: int,
    generator: np.random.Generator,
    num_resamples: int,
) -> list[ClassInterval]:
    right = [
        next(run for run in runs.by_model[model] if run.seed == seed).predictions == runs.targets
        for model in (first, second)
    ]
    return bootstrap_by_class(
        runs.targets,
        right[1].astype(float) - right[0].astype(float),
        range(runs.num_classes),
        generator=generator,
        num_resamples=num_resamples,
    )

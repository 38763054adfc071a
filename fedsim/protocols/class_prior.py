"""What ``fedsim evaluate class-prior`` shows and writes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedsim.chart import Chart
from fedsim.errors import ConfigError
from fedsim.evaluation.classifier_runs import ClassifierRuns
from fedsim.evaluation.prior_study import RATIOS, PriorStudy, RunScores, study_priors
from fedsim.figures import SERIES
from fedsim.protocols.class_prior_figure import accuracy_by_ratio
from fedsim.protocols.output import Findings
from fedsim.tables import Cell, Column, Table

_WARNING = (
    "An accuracy holds for the class shares of its test set. Say which they are; recall by class "
    "and macro recall are the same for all."
)

_HEADS = {
    "accuracy": "accuracy",
    "macro_recall": "macro recall",
    "macro_precision": "macro precision",
    "macro_f1": "macro F1",
    "macro_specificity": "macro specificity",
    "mcc": "MCC",
    "kappa": "kappa",
}


def prior_findings(
    runs: ClassifierRuns, ratios: Sequence[float] = RATIOS, *, seed: int = 0
) -> Findings:
    """Judge classifiers under geometric priors, and say what is shown of it.

    Args:
        runs: What ``read_runs`` read.
        ratios: Imbalance ratios of the tables; the largest is the curve's end.
        seed: Of the bootstrap.

    Raises:
        ConfigError: A ratio out of range.
        DataError: A class without test images.
    """
    study = study_priors(runs, ratios, bootstrap_seed=seed)
    tables = [_under_priors(study), _runs(study)]
    if study.pairs:
        tables += [_order(study), _differences(study)]
    if study.rare:
        tables.append(_rare(study))
    return Findings("class_prior", _facts(study), tables, (_WARNING,), lambda: (_chart(study),))


def parse_ratios(text: str) -> list[float]:
    """Return ratios that stand in a text with commas between.

    Raises:
        ConfigError: One is no number.

    Examples:
        >>> parse_ratios("1, 10,100")
        [1.0, 10.0, 100.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"ratios: expected numbers with commas between, found {text!r}; like 1,10,100"
        ) from error


def _facts(study: PriorStudy) -> dict[str, Any]:
    """Return all numbers, unrounded."""
    models = {
        model: {
            "seeds": [run.seed for run in study.runs if run.model == model],
            "recall_by_class": study.recalls[model].tolist(),
            "scores": {
                score: {"mean": sweep.mean(model).tolist(), "by_seed": sweep.values[model].tolist()}
                for score, sweep in study.sweeps.items()
            },
            "accuracy_curve": study.curve.mean(model).tolist(),
            "means": _means([run for run in study.runs if run.model == model]),
        }
        for model in study.recalls
    }
    return {
        "protocol": "class-prior",
        "num_classes": study.num_classes,
        "num_images": study.num_images,
        "ratios": study.sweeps["accuracy"].ratios.tolist(),
        "curve_ratios": study.curve.ratios.tolist(),
        "models": models,
        "runs": [asdict(run) for run in study.runs],
        "pairs": [asdict(pair) for pair in study.pairs],
        "validation_recall": None if study.rare is None else [asdict(row) for row in study.rare],
    }


def _means(runs: list[RunScores]) -> dict[str, float | None]:
    """Return means over seeds of the scores on the images as they are."""
    columns = {
        name: [run[name] for run in map(asdict, runs)]
        for name in asdict(runs[0])
        if name not in ("model", "seed")
    }
    return {
        name: None if None in values else float(np.mean(values)) for name, values in columns.items()
    }


def _under_priors(study: PriorStudy) -> Table:
    ratios = study.sweeps["accuracy"].ratios
    columns = (Column("model"), Column("score"), *(Column(f"{r:g}", 4) for r in ratios))
    rows = [
        (model, _HEADS[score], *_cells(sweep.mean(model).tolist()))
        for model in study.recalls
        for score, sweep in study.sweeps.items()
    ]
    return Table(
        "class_prior",
        "Scores by the imbalance ratio of the test set, means over seeds",
        columns,
        tuple(rows),
        "Class 0 is the largest; its share over the last one's is the ratio. Recall never moves. "
        "Precision of a class that is never predicted is left out of its mean.",
    )


def _runs(study: PriorStudy) -> Table:
    columns = [Column("model"), Column("seed"), *_fractions("accuracy", "macro recall")]
    names = ["accuracy", "macro_recall"]
    if any(run.training_prior_accuracy is not None for run in study.runs):
        columns += _fractions("accuracy at the training prior")
        names.append("training_prior_accuracy")
    if any(run.validation_accuracy is not None for run in study.runs):
        columns += _fractions("validation accuracy", "validation macro recall")
        names += ["validation_accuracy", "validation_macro_recall"]
    rows = [
        (run.model, str(run.seed), *_cells([getattr(run, name) for name in names]))
        for run in study.runs
    ]
    return Table(
        "class_prior_runs",
        f"Each run on its {study.num_images:,} test images",
        tuple(columns),
        tuple(rows),
    )


def _order(study: PriorStudy) -> Table:
    rows = []
    for pair in study.pairs:
        orders = sorted(set(pair.orders.values()))
        counted = [f"{order} ({list(pair.orders.values()).count(order)})" for order in orders]
        rows.append(
            (
                pair.first,
                pair.second,
                ", ".join(f"{ratio:.6f}" for ratio in pair.crossings) or "none",
                ", ".join(f"{ratio:.6f}" for ratio in pair.exact_crossings) or "none",
                ", ".join(counted) or "no common seed",
            )
        )
    heads = ("first", "second", "crossings", "solved for", "the first (seeds)")
    return Table(
        "class_prior_pairs",
        "Where mean accuracies change places, and the order over all classes",
        tuple(Column(head) for head in heads),
        tuple(rows),
        "Crossings are imbalance ratios, read off the curve by straight lines between its 25 "
        "points; then solved for. Two models are incomparable when each is better at something.",
    )


def _differences(study: PriorStudy) -> Table:
    columns = (
        *(Column("first"), Column("second"), Column("seed"), Column("class"), Column("images")),
        *_fractions("difference", "low", "high"),
        Column("differs"),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            *(pair.first, pair.second, str(pair.seed), str(row.label), row.num_images),
            *(row.mean, row.low, row.high, "yes" if row.differs else ""),
        )
        for pair in study.pairs
        for row in pair.differences or ()
    ]
    return Table(
        "class_prior_recalls",
        "Recall of the second model minus that of the first, with 95 % intervals",
        columns,
        tuple(rows),
        "A paired bootstrap: the images of a class are resampled, for both models the same.",
    )


def _rare(study: PriorStudy) -> Table:
    first = study.runs[0]
    columns = (Column("class"), Column("images"), *_fractions("recall", "low", "high"))
    rows = [
        (str(row.label), row.num_images, row.mean, row.low, row.high) for row in study.rare or ()
    ]
    return Table(
        "class_prior_validation",
        f"Recall of the last classes on the validation images of {first.model}, seed {first.seed}, "
        "with 95 % intervals",
        columns,
        tuple(rows),
        "A bootstrap of a handful of images says little: of one image it always gives that image.",
    )


def _fractions(*names: str) -> list[Column]:
    return [Column(name, 4) for name in names]


def _cells(values: list[float | None]) -> list[Cell]:
    return [None if value is None or np.isnan(value) else value for value in values]


def _chart(study: PriorStudy) -> Chart:
    models = study.curve.values
    drawn = f"{study.num_images:,} test images of {study.num_classes} classes, weighted so that "
    drawn += "the classes' shares fall geometrically. Lines are means over seeds"
    if any(len(values) > 1 for values in models.values()):
        drawn += ", bands reach from the lowest to the highest seed"
    drawn += ". Circles mark where two models change places."
    if len(models) > len(SERIES):
        drawn += f" {len(models) - len(SERIES)} more models are in the tables only."
    title = "Accuracy under other class priors"
    return Chart("accuracy_by_prior", title, drawn, accuracy_by_ratio(title, study))

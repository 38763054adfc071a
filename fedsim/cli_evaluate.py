"""The commands that judge predictions by public protocols. Heavy imports wait for their command."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path | None, typer.Option(help="Folder for JSON, CSV tables and the figure.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

evaluate_app = typer.Typer(no_args_is_help=True)


@evaluate_app.callback()
def _evaluate() -> None:
    """Judge prediction files by a public protocol.

    Example: fedsim evaluate flair targets.csv scores.csv
    """


@evaluate_app.command()
def flair(
    files: Annotated[
        list[Path],
        typer.Argument(help="Predictions and truth: one file, or two."),
    ],
    id_column: Annotated[str, typer.Option(help="Column of the images' ids in tables.")] = "id",
    user_column: Annotated[
        str, typer.Option(help="Column of the users' ids, where the labels' table has it.")
    ] = "user",
    resamples: Annotated[int, typer.Option(help="Of users, for intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score multi-label predictions as FLAIR does: AP, exact and as published, and F1.

    FILES are one NPZ file with the arrays targets and scores, and perhaps labels and users; a
    run's folder, or its test_scores.npz; or two tables (CSV or Parquet) with a row for each image
    and a column for each label: the labels, then the scores.

    Example: fedsim evaluate flair targets.csv scores.csv --out flair-scores
    """
    from fedsim.protocols.flair import flair_findings, read_predictions
    from fedsim.protocols.output import present

    predictions = read_predictions(files, id_column=id_column, user_column=user_column)
    present(flair_findings(predictions, num_resamples=resamples, seed=seed), out, as_json=as_json)


@evaluate_app.command("class-prior")
def class_prior(
    files: Annotated[list[Path], typer.Argument(help="Predictions of classes, or of labels.")],
    ratios: Annotated[
        str, typer.Option(help="Imbalance ratios of the tables, with commas.")
    ] = "1,3,10,30,100",
    classes: Annotated[
        int | None, typer.Option(help="Number of classes; read from the files by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    prevalence: Annotated[
        float | None,
        typer.Option(help="FILES hold multi-label scores: score every label at this prevalence."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score classifiers as if the classes of their test set had other shares.

    FILES are NPZ files with the arrays loss, seed, y_test, pred_test (and perhaps y_val, pred_val,
    class_counts), or tables with the columns target and prediction (and perhaps model, seed,
    image). With --prevalence they are what fedsim evaluate flair takes.

    Example: fedsim evaluate class-prior plain.csv adjusted.csv --out priors
    """
    from fedsim.protocols.output import present

    if prevalence is not None:
        from fedsim.protocols.flair import read_predictions
        from fedsim.protocols.prevalence import prevalence_findings

        present(prevalence_findings(read_predictions(files), prevalence), out, as_json=as_json)
        return
    from fedsim.evaluation.classifier_runs import read_runs
    from fedsim.protocols.class_prior import parse_ratios, prior_findings

    found = prior_findings(read_runs(files, classes), parse_ratios(ratios), seed=seed)
    present(found, out, as_json=as_json)


class Average(StrEnum):
    """What --average may be."""

    macro = "macro"
    micro = "micro"


class AveragedClasses(StrEnum):
    """What --classes may be."""

    all = "all"
    present = "present"


@evaluate_app.command("imagenet-multilabel")
def imagenet_multilabel(
    annotations: Annotated[Path, typer.Argument(help="Reviewed labels.")],
    predictions: Annotated[
        list[Path] | None, typer.Argument(help="A file for each model, or none.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="A model's column in tables, instead of prediction; may be repeated."),
    ] = None,
    originals: Annotated[
        Path | None,
        typer.Option(help="The images' own classes, which the published JSON does not hold."),
    ] = None,
    wnids: Annotated[
        Path | None, typer.Option(help="Text file with the wnid of every class, one a line.")
    ] = None,
    average: Annotated[
        Average, typer.Option(help="Mean over classes (macro), or all images pooled (micro).")
    ] = Average.macro,
    classes: Annotated[
        AveragedClasses, typer.Option(help="Which classes must have images: all, or none must.")
    ] = AveragedClasses.all,
    strict: Annotated[
        bool, typer.Option("--strict", help="Accept correct labels only, not unclear ones.")
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score ImageNet predictions by expert-reviewed labels, of which several may be right.

    ANNOTATIONS is the published JSON file, or a CSV, Parquet or JSON-lines table as TensorFlow
    Datasets exports it. PREDICTIONS are tables of file_name and prediction (a class's number or
    wnid) or a score for each class, or NPZ files; without any, columns of ANNOTATIONS.

    Example: fedsim evaluate imagenet-multilabel human_accuracy.json resnet.csv --originals
    validation_labels.txt
    """
    from fedsim.evaluation.imagenet_annotations import read_annotations
    from fedsim.evaluation.imagenet_classes import read_wnids
    from fedsim.protocols.imagenet_multilabel import multilabel_findings, read_models
    from fedsim.protocols.output import present

    named = None if wnids is None else read_wnids(wnids)
    truth = read_annotations(annotations, originals=originals, classes=named)
    models = read_models(predictions or [annotations], truth, column or [])
    findings = multilabel_findings(
        truth, models, average=average.value, classes=classes.value, strict=strict
    )
    present(findings, out, as_json=as_json)


class EpisodeSeeds(StrEnum):
    """What --episode-seed may be."""

    fixed = "fixed"
    per_run = "per_run"


@evaluate_app.command("few-shot")
def few_shot(
    files: Annotated[list[Path], typer.Argument(help="Each a data set: NPZ, or a run's folder.")],
    ways: Annotated[int, typer.Option(help="Classes of an episode.")] = 5,
    shots: Annotated[int, typer.Option(help="Images of each that a learner learns from.")] = 5,
    queries: Annotated[int, typer.Option(help="Images of each that it names.")] = 19,
    episodes: Annotated[int, typer.Option(help="Episodes of a run.")] = 600,
    runs: Annotated[int, typer.Option(help="Runs; the score is that of the worst.")] = 3,
    episode_seed: Annotated[
        EpisodeSeeds, typer.Option(help="Runs share their episodes, or draw their own.")
    ] = EpisodeSeeds.fixed,
    seed: Annotated[int, typer.Option(help="Of the episodes, and of learners that draw.")] = 0,
    learner: Annotated[
        list[str] | None,
        typer.Option(help="A known name, or package.module:function; may be repeated."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Use these stored episodes, of their own size.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Store the episodes in this NPZ file.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score learners that get a few images of each class, over stored features of images.

    FILES are NPZ files with the arrays features (a row per image) and classes (whole numbers or
    names), or folders of runs with evaluation.few_shot, whose recorded scores are shown.

    Example: fedsim evaluate few-shot birds.npz signs.npz --learner nearest_centroid --out few-shot
    """
    from fedsim.evaluation.episodes import EpisodeShape
    from fedsim.protocols.few_shot import SHOWN, Draw, few_shot_findings, score_files
    from fedsim.protocols.output import present

    draw = Draw(
        EpisodeShape(ways, shots, queries), episodes, runs, episode_seed.value, seed, replay, store
    )
    present(few_shot_findings(score_files(files, draw, learner or SHOWN)), out, as_json=as_json)


class TieRule(StrEnum):
    """What --ties may be."""

    average = "average"
    min = "min"
    dense = "dense"
    statistical = "statistical"


@evaluate_app.command()
def rank(
    table: Annotated[Path, typer.Argument(help="A table of scores, larger ones better.")],
    ties: Annotated[TieRule, typer.Option(help="What ties on a data set share.")] = TieRule.average,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(help="A column that is no data set; may be repeated."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Rank submissions by the average over data sets of their worst run's rank.

    TABLE has a row per submission, earlier ones first, and a column per data set; or a row per
    run, with the columns submission, data_set, score, and perhaps run and half_width. An empty
    cell is a run that failed.

    Example: fedsim evaluate rank few-shot/few_shot.csv --ties statistical --out ranking
    """
    from fedsim.evaluation.rank_table import read_scores
    from fedsim.protocols.output import present
    from fedsim.protocols.rank import rank_findings

    present(rank_findings(read_scores(table, leave_out or ()), ties.value), out, as_json=as_json)

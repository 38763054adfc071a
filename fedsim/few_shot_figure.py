"""The figure of few-shot accuracies with their intervals."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from fedsim.evaluation.few_shot import RunScore, worst
from fedsim.figures import SERIES, laid_out, new_figure, styled
from fedsim.printable import printable

_MARKERS = "osD^vPX*"


def accuracies(title: str, scores: Mapping[str, Mapping[str, Sequence[RunScore]]]) -> Figure:
    """Draw each learner's worst run on each data set, with its interval, and its other runs.

    Args:
        title: What the figure shows.
        scores: Runs by data set and learner; the first eight learners are drawn.
    """
    learners = list(dict.fromkeys(name for of in scores.values() for name in of))[: len(SERIES)]
    step = 0.7 / max(len(learners), 1)
    with styled():
        figure, axes = new_figure(
            title, 1.3 + 0.16 * len(learners) + len(scores) * (0.2 + 0.13 * len(learners))
        )
        for number, learner in enumerate(learners):
            shift = (number - (len(learners) - 1) / 2) * step
            rows = [row for row, of in enumerate(scores.values()) if learner in of]
            runs = [of[learner] for of in scores.values() if learner in of]
            lowest = [worst(of) for of in runs]
            others = [
                (100 * run.accuracy, row + shift)
                for row, of, low in zip(rows, runs, lowest, strict=True)
                for run in of
                if run is not low
            ]
            axes.scatter(
                [x for x, _ in others],
                [y for _, y in others],
                s=16,
                marker=_MARKERS[number],
                facecolors="none",
                edgecolors=SERIES[number],
                linewidths=0.8,
            )
            axes.errorbar(
                [100 * run.accuracy for run in lowest],
                [row + shift for row in rows],
                xerr=[100 * (run.half_width or 0.0) for run in lowest],
                color=SERIES[number],
                marker=_MARKERS[number],
                linestyle="none",
                markersize=4,
                elinewidth=1.2,
                capsize=3,
                label=printable(learner, 36),
            )
        axes.set_yticks(range(len(scores)), [printable(name, 28) for name in scores])
        axes.set_ylim(len(scores) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("accuracy, % of the queries")
        figure.legend(loc="outside lower left", ncols=2)
    return laid_out(figure)

"""The figure of ``class-prior``: accuracy against the imbalance of the test set."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.evaluation.prior_study import PriorStudy
from fedsim.figures import COLOURS, DASHES, SERIES, laid_out, new_figure, number_powers, styled
from fedsim.printable import printable


def accuracy_by_ratio(title: str, study: PriorStudy) -> Figure:
    """Draw the accuracy of up to eight models over the imbalance ratio, and where they cross.

    Lines are means over seeds, bands reach from the lowest to the highest seed.
    """
    models = list(study.curve.values)[: len(SERIES)]
    ratios = study.curve.ratios
    with styled():
        figure, axes = new_figure(title, 3.6)
        for model, colour, dashes in zip(models, SERIES, DASHES, strict=False):
            values, mean = study.curve.values[model], study.curve.mean(model)
            label = printable(model, 28)
            axes.plot(ratios, mean, color=colour, linestyle=dashes, label=label)
            if len(values) > 1:
                low, high = values.min(axis=0), values.max(axis=0)
                axes.fill_between(ratios, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.set_xscale("log")
        axes.set_xlim(ratios[0], ratios[-1])
        number_powers(axes.xaxis)
        _mark_crossings(axes, study, models)
        axes.set_xlabel("imbalance ratio of the test set (largest class over smallest)")
        axes.set_ylabel("accuracy")
        axes.legend(loc="best")
    return laid_out(figure)


def _mark_crossings(axes: Axes, study: PriorStudy, models: list[str]) -> None:
    """Put a circle on each crossing, and its ratio beside it while there are few."""
    marks = []
    for pair in study.pairs:
        if pair.first in models and pair.second in models:
            curve = study.curve.mean(pair.first)
            places = np.log(study.curve.ratios)
            marks += [
                (ratio, float(np.interp(np.log(ratio), places, curve))) for ratio in pair.crossings
            ]
    for ratio, height in marks:
        axes.plot(
            [ratio],
            [height],
            marker="o",
            markersize=7,
            markerfacecolor="none",
            markeredgecolor=COLOURS["ink"],
            linestyle="none",
        )
        if len(marks) <= 4:
            axes.annotate(
                f"{ratio:.3g}",
                (ratio, height),
                xytext=(0, -8),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=8,
            )

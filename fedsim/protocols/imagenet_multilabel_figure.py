"""Each class's accuracy by ImageNet's own labels and by reviewed ones."""

import numpy as np
from matplotlib.figure import Figure

from fedsim.evaluation.imagenet_multilabel import MultiLabelScores
from fedsim.figures import COLOURS, DASHES, SERIES, laid_out, new_figure, styled

_AREA = 14.0  # square points for one class
_LARGEST = 300.0
_SMALLEST = 5.0


def original_against_reviewed(title: str, scores: MultiLabelScores) -> Figure:
    """Draw reviewed accuracy over original accuracy, a dot for the classes that share a place.

    Args:
        title: What the figure shows.
        scores: Classes without images are left out.
    """
    present = scores.images > 0
    images = scores.images[present]
    places = np.column_stack([scores.right_original[present], scores.right[present]])
    shares, counts = np.unique(places / images[:, None], axis=0, return_counts=True)
    gain, loss = shares[:, 1] > shares[:, 0], shares[:, 1] < shares[:, 0]
    groups = (("more right", gain), ("equal", ~gain & ~loss), ("fewer right", loss))
    area = min(_AREA, _LARGEST / counts.max())
    with styled():
        figure, axes = new_figure(title, 5.0)
        axes.plot([0, 1], [0, 1], color=COLOURS["muted"], linestyle=DASHES[1], lw=1)
        for (words, which), colour, marker in zip(
            groups, (SERIES[2], SERIES[0], SERIES[1]), "^ov", strict=True
        ):
            number = int(counts[which].sum())
            axes.scatter(
                shares[which, 0],
                shares[which, 1],
                s=np.maximum(area * counts[which], _SMALLEST),
                color=colour,
                alpha=0.6,
                marker=marker,
                linewidth=0,
                label=f"{words}: {number:,} {'class' if number == 1 else 'classes'}",
            )
        axes.set_xlim(-0.04, 1.04)
        axes.set_ylim(-0.04, 1.04)
        axes.set_aspect("equal")
        axes.set_xlabel("accuracy of a class by ImageNet's own labels")
        axes.set_ylabel("by reviewed labels")
        legend = figure.legend(loc="outside lower left", ncols=3)
        for handle in legend.legend_handles:
            handle.set_sizes([30])  # type: ignore[union-attr]
    return laid_out(figure)

"""Accuracy on ImageNet with reviewed labels, several of which may be right for an image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.evaluation.imagenet_annotations import Annotations
from fedsim.evaluation.imagenet_classes import Classes
from fedsim.evaluation.imagenet_predictions import predicted_classes
from fedsim.metrics.inputs import Average, check_choice
from fedsim.printable import printable

AveragedClasses = Literal["all", "present"]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MultiLabelScores:
    """Counts by the class that images have in ImageNet; arrays have the shape (classes,).

    Attributes:
        classes: What their numbers mean.
        images: Images that are not problematic.
        right: Those with a prediction among the accepted labels.
        right_original: Those with ImageNet's own label predicted.
        num_problematic: Images that were left out.
        num_not_reviewed: Predictions, of the others, that nobody reviewed: they count as wrong.
            None if the annotations do not tell which labels were reviewed.
        imagenet_m_right: Images of ImageNet-M with a prediction among the accepted labels.
        imagenet_m_images: Of the published 68, those that are annotated.
    """

    classes: Classes
    images: Counts
    right: Counts
    right_original: Counts
    num_problematic: int
    num_not_reviewed: int | None
    imagenet_m_right: int
    imagenet_m_images: int

    @classmethod
    def of(
        cls,
        annotations: Annotations,
        predictions: Mapping[Any, Any],
        *,
        strict: bool = False,
    ) -> Self:
        """Count right predictions.

        Args:
            annotations: Reviewed labels.
            predictions: By file name, as ``predicted_classes`` reads them. Ones for other images
                are not looked at.
            strict: Accept correct labels only; otherwise unclear ones too.

        Raises:
            DataError: An image has no prediction, or one of no class; or, with ``strict``, the
                annotations do not tell unclear labels from correct ones.
        """
        if strict and annotations.unclear is None:
            raise DataError(
                f"{annotations.place}: expected unclear labels in a column of their own for strict "
                "accuracy, found one list of correct and unclear ones; use the full annotations"
            )
        found = predicted_classes(predictions, annotations.classes)
        judged = ~annotations.problematic
        guess = _guesses(annotations, found, judged | annotations.imagenet_m)
        accepted = annotations.correct
        if annotations.unclear is not None and not strict:
            pairs = zip(annotations.correct, annotations.unclear, strict=True)
            accepted = tuple(correct | unclear for correct, unclear in pairs)
        right = np.array([g in labels for g, labels in zip(guess, accepted, strict=True)])

        def by_class(which: npt.NDArray[np.bool_]) -> Counts:
            own = annotations.original[judged & which]
            return np.bincount(own, minlength=annotations.classes.number)

        return cls(
            annotations.classes,
            by_class(judged),
            by_class(right),
            by_class(guess == annotations.original),
            int(annotations.problematic.sum()),
            _num_not_reviewed(annotations, guess, judged),
            int((right & annotations.imagenet_m).sum()),
            int(annotations.imagenet_m.sum()),
        )

    def accuracy(self, average: Average = "macro", classes: AveragedClasses = "all") -> float:
        """Return the share of right predictions, as ``share`` does."""
        return self.share(self.right, average, classes)

    def original_accuracy(
        self, average: Average = "macro", classes: AveragedClasses = "all"
    ) -> float:
        """Return the share of predictions of ImageNet's own label, as ``share`` does."""
        return self.share(self.right_original, average, classes)

    def share(self, right: Counts, average: Average, classes: AveragedClasses) -> float:
        """Return the share of images that are counted in ``right``.

        Args:
            right: Images of each class.
            average: "macro" takes the share of each class and then the mean, since leaving out
                problematic images left classes of different sizes; "micro" pools all images.
            classes: "all" needs images of every class; "present" takes the mean over those that
                have any. "micro" does not look at it.

        Raises:
            ConfigError: An unknown setting.
            DataError: There are no images, or with "all" none of some class.
        """
        check_choice("average", average, Average)
        check_choice("classes", classes, AveragedClasses)
        present = self.images > 0
        if not present.any():
            raise DataError(
                "annotations: expected an image that is not problematic, found none; "
                "check the annotations"
            )
        if average == "micro":
            return float(right.sum() / self.images.sum())
        if classes == "all" and not present.all():
            empty = np.flatnonzero(~present)
            raise DataError(
                f"annotations: expected images of all {len(present)} classes, found none of "
                f"{len(empty)} of them, like {self.classes.name(int(empty[0]))}; judge the whole "
                "set, or take the mean over the others with classes: present"
            )
        return float((right[present] / self.images[present]).mean())


def _guesses(
    annotations: Annotations, found: Mapping[str, int], needed: npt.NDArray[np.bool_]
) -> Counts:
    """Return each image's predicted class; -1 where there is none and none is needed."""
    guess = np.array([found.get(name, -1) for name in annotations.file_names], dtype=np.int64)
    missing = np.flatnonzero(needed & (guess < 0))
    if missing.size:
        names = ", ".join(printable(annotations.file_names[row], 60) for row in missing[:3])
        raise DataError(
            f"predictions: expected one for each of {needed.sum():,} images, found none for "
            f"{missing.size:,}, like {names}; predict them too"
        )
    return guess


def _num_not_reviewed(
    annotations: Annotations, guess: Counts, judged: npt.NDArray[np.bool_]
) -> int | None:
    kinds = (annotations.correct, annotations.unclear, annotations.wrong)
    if annotations.wrong is None:
        return None
    known = [kind for kind in kinds if kind is not None]
    return sum(not any(guess[row] in kind[row] for kind in known) for row in np.flatnonzero(judged))

"""What a run gave each user: a row per user, and how these are spread.

Literature reports the distribution over users beside the mean, and its worst tenth: Caldas et al.
2018 (LEAF, arXiv:1812.01097), Li et al. 2020 (q-FedAvg, arXiv:1905.10497).
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedsim.data.dataset import UserTable
from fedsim.errors import CheckpointError
from fedsim.metrics.per_user import average_precision_by_user, loss_by_user
from fedsim.whole_file import whole_file

USERS_FILE = "users.csv"
Floats = npt.NDArray[np.float64]
_QUANTILES = {"q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9}


@dataclass(frozen=True, eq=False)
class UserResults:
    """What two models do on each of some users; arrays have the shape (users,).

    Attributes:
        users: Who, and how many of their images were scored.
        micro_ap: By ``average_precision_by_user``, of the model that is judged; NaN if undefined.
        loss: Its mean loss.
        reference_micro_ap: Of the model that it is held against.
        reference_loss: Likewise.
    """

    users: UserTable
    micro_ap: Floats
    loss: Floats
    reference_micro_ap: Floats
    reference_loss: Floats

    @classmethod
    def of(
        cls,
        users: UserTable,
        targets: npt.NDArray[np.bool_],
        logits: npt.NDArray[np.float32],
        reference: npt.NDArray[np.float32],
    ) -> Self:
        """Score two models on the users' images.

        Args:
            users: Whose images; the rows of what follows are theirs, user by user.
            targets: Labels, shape (images, labels).
            logits: Of the model that is judged, of the same shape.
            reference: Of the other model.
        """
        sizes = users.num_images
        return cls(
            users,
            average_precision_by_user(targets, logits, sizes),
            loss_by_user(targets, logits, sizes),
            average_precision_by_user(targets, reference, sizes),
            loss_by_user(targets, reference, sizes),
        )

    @property
    def gain(self) -> Floats:
        """Micro AP less the reference's."""
        return self.micro_ap - self.reference_micro_ap

    def summary(self, reference: str) -> dict[str, Any]:
        """Return how the users' results are spread.

        Args:
            reference: What the reference is called there.

        Returns:
            ``micro_ap``, ``loss``, ``<reference>_micro_ap``, ``<reference>_loss`` and ``gain``,
            each as ``spread`` describes; ``share_better`` and ``share_worse``, the shares of users
            with a gain above and below 0; ``by_num_images``, the means over users of like size.
        """
        columns = {
            "micro_ap": self.micro_ap,
            "loss": self.loss,
            f"{reference}_micro_ap": self.reference_micro_ap,
            f"{reference}_loss": self.reference_loss,
            "gain": self.gain,
        }
        spreads = {
            name: spread(values, worst="highest" if name.endswith("loss") else "lowest")
            for name, values in columns.items()
        }
        known = self.gain[~np.isnan(self.gain)]
        return {
            **spreads,
            "share_better": float((known > 0).mean()) if len(known) else None,
            "share_worse": float((known < 0).mean()) if len(known) else None,
            "by_num_images": by_num_images(self.users.num_images, columns),
        }


def spread(values: Floats, *, worst: str = "lowest") -> dict[str, Any]:
    """Return how one figure is spread over users.

    Args:
        values: One per user; NaN where it is undefined.
        worst: ``"lowest"``, or ``"highest"`` for a figure that should be small.

    Returns:
        ``num_users`` that have the figure, ``num_undefined`` that have not; over the former
        ``mean``, ``stddev`` (of the users as they are, not of a sample), ``q10``, ``q25``,
        ``median``, ``q75``, ``q90`` (linear between users) and ``worst_decile_mean``: the mean over
        the worst tenth of users, rounded up to whole users. Every user counts the same.

    Examples:
        >>> found = spread(np.array([0.2, 0.4, 0.9, np.nan]))
        >>> found["num_users"], found["median"], found["worst_decile_mean"]
        (3, 0.4, 0.2)
    """
    known = np.sort(values[~np.isnan(values)])
    figures: dict[str, Any] = {
        "num_users": len(known),
        "num_undefined": len(values) - len(known),
    }
    if not len(known):
        empty = ("mean", "stddev", *_QUANTILES, "worst_decile_mean")
        return figures | dict.fromkeys(empty) | {"reason": "no user has this figure"}
    decile = math.ceil(len(known) / 10)
    tail = known[:decile] if worst == "lowest" else known[-decile:]
    quantiles = {name: float(np.quantile(known, q)) for name, q in _QUANTILES.items()}
    return {
        **figures,
        "mean": float(known.mean()),
        "stddev": float(known.std()),
        **quantiles,
        "worst_decile_mean": float(tail.mean()),
    }


def by_num_images(
    num_images: npt.NDArray[np.int64], columns: Mapping[str, Floats]
) -> list[dict[str, Any]]:
    """Return means over users of like size: 1 image, 2 to 3, 4 to 7, and so on by doubling.

    Args:
        num_images: Of each user.
        columns: Figures of each user; NaN where undefined, and left out of the mean.

    Returns:
        For each size that some user has, the least first: ``num_images`` (from, to), ``num_users``
        and the means; None where no user of this size has the figure.

    Examples:
        >>> by_num_images(np.array([1, 3, 2]), {"loss": np.array([0.5, 1.0, 2.0])})
        [{'num_images': [1, 1], 'num_users': 1, 'loss': 0.5}, {'num_images': [2, 3], ...}]
    """
    doublings = np.array([int(number).bit_length() - 1 for number in num_images], dtype=np.int64)
    rows = []
    for doubling in np.unique(doublings):
        inside = doublings == doubling
        row: dict[str, Any] = {
            "num_images": [2 ** int(doubling), 2 ** (int(doubling) + 1) - 1],
            "num_users": int(inside.sum()),
        }
        for name, values in columns.items():
            known = values[inside & ~np.isnan(values)]
            row[name] = float(known.mean()) if len(known) else None
        rows.append(row)
    return rows


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, whole or not at all; an undefined number is an empty cell.

    Raises:
        CheckpointError: The disk refuses it.
    """
    try:
        with whole_file(path) as place, place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([_cell(value) for value in row] for row in rows)
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected to write a row per user, found {error.strerror}; free some space "
            "and run it again"
        ) from error


def write_users(folder: Path, results: Mapping[str, UserResults]) -> None:
    """Write ``users.csv``: a row per user and split.

    Args:
        folder: The run's.
        results: By split; the reference is the initial model.
    """
    columns = ("split", "user", "num_images", "micro_ap", "loss", "initial_micro_ap")
    rows = (
        (split, *row)
        for split, found in results.items()
        for row in zip(
            found.users.ids,
            found.users.num_images.tolist(),
            found.micro_ap.tolist(),
            found.loss.tolist(),
            found.reference_micro_ap.tolist(),
            found.reference_loss.tolist(),
            strict=True,
        )
    )
    write_table(folder / USERS_FILE, (*columns, "initial_loss"), rows)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.9g}"
    return value

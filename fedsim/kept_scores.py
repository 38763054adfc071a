"""A run's scores on the test images, kept so that runs can be compared user by user.

``test_scores.npz`` holds, n images in the order of their users: ``logits`` (float32, n x labels),
``targets`` (0/1 labels, packed eight to a byte along each row), ``owner`` (int32, the row of the
user that each image belongs to), ``user_ids`` and ``label_names`` (strings).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from fedsim.errors import CheckpointError, DataError
from fedsim.whole_file import whole_file

SCORES_FILE = "test_scores.npz"
_LARGEST_MB = 64


@dataclass(frozen=True, eq=False)
class KeptScores:
    """Scores of all test images, and the truth that they were scored against.

    Attributes:
        logits: float32 array of shape (images, labels).
        targets: Boolean array of the same shape.
        owner: Integer array of shape (images,): the position in ``user_ids`` of each image's user.
        user_ids: The test users.
        label_names: Names of the columns.
    """

    logits: npt.NDArray[np.float32]
    targets: npt.NDArray[np.bool_]
    owner: npt.NDArray[np.int32]
    user_ids: tuple[str, ...]
    label_names: tuple[str, ...]

    def check_comparable(self, other: "KeptScores", where: str) -> None:
        """Refuse scores of other users, images or labels; differences would not be the models'.

        Args:
            other: Scores to be compared with these.
            where: Whose they are, for the message.

        Raises:
            DataError: What differs first: labels, users, whose the images are, or their labels.
        """
        same = {
            "labels": self.label_names == other.label_names,
            "test users": self.user_ids == other.user_ids,
            "numbers of test images per user": np.array_equal(self.owner, other.owner),
            "labels of the test images": np.array_equal(self.targets, other.targets),
        }
        different = [what for what, equal in same.items() if not equal]
        if different:
            raise DataError(
                f"{where}: expected runs on the same test split, found other {different[0]}; "
                "compare runs of one data set, label set and split"
            )


def keep_scores(folder: Path, scores: KeptScores) -> str | None:
    """Write the scores to a run's folder, whole or not at all, unless they are too large.

    Returns:
        None, or the reason why nothing was written: more than 64 MB.

    Raises:
        CheckpointError: The file can't be written.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "logits": scores.logits,
        "targets": np.packbits(scores.targets, axis=1),
        "owner": scores.owner.astype(np.int32),
        "user_ids": np.array(scores.user_ids, dtype=np.str_),
        "label_names": np.array(scores.label_names, dtype=np.str_),
    }
    path = folder / SCORES_FILE
    megabytes = sum(array.nbytes for array in arrays.values()) / 1e6
    if megabytes > _LARGEST_MB:
        path.unlink(missing_ok=True)  # of an earlier end of this run
        return f"{megabytes:.0f} MB, and at most {_LARGEST_MB} MB are kept"
    try:
        with whole_file(path) as place, place.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected to write {megabytes:.1f} MB, found {error.strerror}; free some "
            "space and run it again"
        ) from error
    return None


def load_kept_scores(folder: Path) -> KeptScores:
    """Read what ``keep_scores`` wrote.

    Raises:
        DataError: There is no such file, or it does not hold what it should.
    """
    path = folder / SCORES_FILE
    if not path.exists():
        raise DataError(
            f"{path}: expected the run's test scores, found no such file; summary.json says why "
            "if they were too large to keep, else run it again"
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            names = tuple(stored["label_names"].tolist())
            targets = np.unpackbits(stored["targets"], axis=1, count=len(names)).astype(np.bool_)
            scores = KeptScores(
                stored["logits"],
                targets,
                stored["owner"],
                tuple(stored["user_ids"].tolist()),
                names,
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{path}: expected a run's test scores, found {error}; run it again"
        ) from error
    _check_shapes(path, scores)
    return scores


def _check_shapes(path: Path, scores: KeptScores) -> None:
    shape = (len(scores.owner), len(scores.label_names)) if scores.owner.ndim == 1 else None
    fits = (
        scores.logits.shape == scores.targets.shape == shape
        and scores.logits.dtype == np.float32
        and scores.owner.dtype == np.int32
        and bool(((scores.owner >= 0) & (scores.owner < len(scores.user_ids))).all())
    )
    if not fits:
        raise DataError(
            f"{path}: expected a score for every image and label, and a user for every image, "
            f"found logits {scores.logits.shape}, targets {scores.targets.shape}, owner "
            f"{scores.owner.shape} of {len(scores.user_ids)} users; run it again"
        )

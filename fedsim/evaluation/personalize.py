"""Models that users fit to their own images, beside the global model.

Every user of a held-out split with two images or more takes part. A seeded share of the user's
images trains a copy of the global model by a few steps of plain SGD; the rest is scored before and
after. This is what fine-tuning on a device would give (Wang et al. 2019, Federated Evaluation of
On-device Personalization, arXiv:1910.10252). The fitted models stay with their users: nothing is
sent back, added up or kept, so no privacy is spent and no noise is needed.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.engines.client_app import LOGITS
from fedsim.errors import EngineError
from fedsim.evaluation.per_user import UserResults, write_table
from fedsim.evaluation.scoring import score_logits
from fedsim.flower_seam import to_arrays
from fedsim.replies import drain
from fedsim.streams import numpy_stream
from fedsim.training.personal import PersonalTraining
from fedsim.update_sum import ARRAYS, CONFIG

PERSONALIZED_FILE = "personalized_users.csv"


@dataclass(frozen=True)
class Fit:
    """How a user's images are split, and how the user trains on the first part.

    Attributes:
        share: Of the images that are trained on, in (0, 1): ``floor(share * n)`` of n, but at least
            one, and one at least is left.
        epochs: Passes over them; 0 leaves the global model as it is.
        batch_size: Images a step.
        learning_rate: Of SGD.
        seed: The run's seed.
    """

    share: float
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int

    def num_trained_on(self, num_images: int) -> int:
        """Return how many of a user's images are trained on.

        Examples:
            >>> fit = Fit(share=0.5, epochs=1, batch_size=8, learning_rate=0.1, seed=0)
            >>> [fit.num_trained_on(number) for number in (2, 3, 4, 9)]
            [1, 1, 2, 4]
        """
        return min(num_images - 1, max(1, int(self.share * num_images)))

    def order(self, user: str, num_images: int) -> npt.NDArray[np.int64]:
        """Return a user's images by position, those that are trained on first."""
        stream = numpy_stream(self.seed, "personalization split", user)
        cut = self.num_trained_on(num_images)
        drawn = stream.permutation(num_images)
        return np.concatenate([drawn[:cut], np.sort(drawn[cut:])]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Personalized:
    """Scores of the global model and of fitted ones, on the same images.

    Attributes:
        results: Per user; the reference is the global model.
        targets: Labels of the scored images, shape (images, labels), user by user.
        fitted: The fitted models' outputs, of the same shape.
        plain: The global model's.
        num_trained_on: Images that each user trained on.
        num_left_out: Users of one image.
    """

    results: UserResults
    targets: npt.NDArray[np.bool_]
    fitted: npt.NDArray[np.float32]
    plain: npt.NDArray[np.float32]
    num_trained_on: npt.NDArray[np.int64]
    num_left_out: int

    def summary(self) -> dict[str, Any]:
        """Return the scores over all users' scored images together, and their spread over users.

        Scores of different models are ranked together in the pooled figures of ``personalized``, as
        a service would see them; ``per_user`` ranks within one model.
        """
        return {
            "num_users": len(self.results.users),
            "num_users_left_out": self.num_left_out,
            "num_images_trained_on": int(self.num_trained_on.sum()),
            "global": score_logits(self.targets, self.plain),
            "personalized": score_logits(self.targets, self.fitted),
            "per_user": self.results.summary("global"),
        }


def personalize(
    grid: Grid, dataset: FederatedDataset, arrays: ArrayRecord, fit: Fit, split: str = "test"
) -> Personalized | None:
    """Fit and score every user of a split who has two images or more; None if nobody has.

    Args:
        grid: Where the users train.
        dataset: Whose labels are the truth.
        arrays: The global model's.
        fit: How.
        split: Of held-out users.

    Raises:
        EngineError: A fitted model's scores are not finite.
    """
    users = dataset.users(split)
    takes_part = np.flatnonzero(users.num_images > 1)
    if not len(takes_part):
        return None
    orders = _orders(users, takes_part, fit)
    cuts = [fit.num_trained_on(len(order)) for order in orders]
    rests = [order[cut:] for order, cut in zip(orders, cuts, strict=True)]
    targets = dataset.labels(split, np.concatenate(rests))
    plain, fitted = (np.empty(targets.shape, dtype=np.float32) for _ in range(2))
    ids = tuple(users.ids[index] for index in takes_part)
    row = 0
    replies = grid.send_and_receive(_messages(arrays, split, ids, orders, cuts, fit))
    for user, rest, reply in zip(ids, rests, drain(replies), strict=True):
        both = to_arrays(reply.content.array_records[ARRAYS])[LOGITS].numpy()
        if not np.isfinite(both).all():
            raise EngineError(
                f"evaluation.personalization, user {user!r}: expected finite scores, found NaN or "
                "infinity; lower evaluation.personalization.learning_rate and run it again"
            )
        after = row + len(rest)
        plain[row:after], fitted[row:after] = both
        row = after
    scored = UserTable(ids, np.array([len(rest) for rest in rests], dtype=np.int64))
    return Personalized(
        UserResults.of(scored, targets, fitted, plain),
        targets,
        fitted,
        plain,
        np.array(cuts, dtype=np.int64),
        len(users) - len(ids),
    )


def write_personalized(folder: Path, found: Personalized) -> None:
    """Write ``personalized_users.csv``: a row per user who took part.

    Args:
        folder: The run's.
        found: What ``personalize`` returned.
    """
    results = found.results
    columns = {
        "user": results.users.ids,
        "num_trained_on": found.num_trained_on.tolist(),
        "num_scored": results.users.num_images.tolist(),
        "micro_ap": results.micro_ap.tolist(),
        "loss": results.loss.tolist(),
        "global_micro_ap": results.reference_micro_ap.tolist(),
        "global_loss": results.reference_loss.tolist(),
    }
    write_table(folder / PERSONALIZED_FILE, tuple(columns), zip(*columns.values(), strict=True))


def _orders(
    users: UserTable, positions: npt.NDArray[np.int64], fit: Fit
) -> list[npt.NDArray[np.int64]]:
    """Return each user's images by number in the split, those that are trained on first."""
    offsets = np.concatenate([[0], np.cumsum(users.num_images)])
    return [
        offsets[index] + fit.order(users.ids[index], int(users.num_images[index]))
        for index in positions
    ]


def _messages(
    arrays: ArrayRecord,
    split: str,
    ids: tuple[str, ...],
    orders: list[npt.NDArray[np.int64]],
    cuts: list[int],
    fit: Fit,
) -> Iterator[Message]:
    for user, order, cut in zip(ids, orders, cuts, strict=True):
        personal = PersonalTraining(
            split, user, order.tolist(), cut, fit.epochs, fit.batch_size, fit.learning_rate
        )
        yield Message(
            RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(dataclasses.asdict(personal))}),
            dst_node_id=1,
            message_type=MessageType.EVALUATE,
        )

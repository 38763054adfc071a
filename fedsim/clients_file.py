"""What each user of each round reported: ``clients.csv``, a row per round and user.

``round``, ``user``, ``num_images``, ``diagnostic_train_loss`` (mean over the examples of all local
steps, while the model was trained) and ``diagnostic_update_norm`` (L2 norm before clipping, of the
update with what the strategy had sent along). Under central DP nothing of this is released: the
last two tell about single users, and even the list of users would.
"""

import csv
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flwr.app import Message

from fedsim.arrays import l2_norm
from fedsim.data.dataset import UserTable
from fedsim.errors import CheckpointError
from fedsim.flower_seam import to_arrays
from fedsim.replies import Replies, drain
from fedsim.update_sum import METRICS, SUM, UpdateSum
from fedsim.whole_file import whole_file

CLIENTS_FILE = "clients.csv"
COLUMNS = ("round", "user", "num_images", "diagnostic_train_loss", "diagnostic_update_norm")
_Reported = tuple[int, float | None, float | None]


class ClientsFile:
    """Writes what users report, whatever the strategy: it looks at the replies as they pass.

    Args:
        folder: The run's.
        users: Of the train split.
        last_round: What later rounds wrote is dropped: they are done again.
    """

    def __init__(self, folder: Path, users: UserTable, last_round: int = 0) -> None:
        self._path, self._users = folder / CLIENTS_FILE, users
        self._rows: list[tuple[int, str, *_Reported]] = []
        self._keep_up_to(last_round)

    def watch(
        self, round_num: int, messages: list[Message], replies: Iterable[Message]
    ) -> Iterable[Message]:
        """Return the replies to a round's messages, and take note of them as they are read."""
        self._rows = []
        return Replies(self._noted(round_num, messages, replies))

    def write(self) -> None:
        """Append the rows of the round that was watched.

        Raises:
            CheckpointError: The disk refuses it.
        """
        rows, self._rows = self._rows, []
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(map(_cells, rows))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{self._path}: expected to append a round's users, found {error.strerror}; free "
                "some space and run it again"
            ) from error

    def _noted(
        self, round_num: int, messages: list[Message], replies: Iterable[Message]
    ) -> Iterator[Message]:
        position = 0
        for reply in drain(replies):
            while messages[position].metadata.dst_node_id != reply.metadata.src_node_id:
                position += 1  # its answer is lost
            reports = _reports(reply, messages[position])
            for message, report in zip(messages[position:], reports, strict=False):
                if report is not None:
                    user = self._users.ids[message.metadata.dst_node_id - 1]
                    self._rows.append((round_num, user, *report))
            position += len(reports)
            yield reply

    def _keep_up_to(self, last_round: int) -> None:
        kept = self._whole_rows() if self._path.exists() else iter(())
        with whole_file(self._path) as place, place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(row for row in kept if int(row[0]) <= last_round)

    def _whole_rows(self) -> Iterator[list[str]]:
        """Yield the rows; one that a kill cut short ends them, and its round is done again."""
        with self._path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader, None)
            for row in reader:
                if len(row) != len(COLUMNS) or not row[0].isdecimal():
                    return
                yield row


def _reports(reply: Message, message: Message) -> list[_Reported | None]:
    """Return what a reply tells of its users, in the order of the messages that it answers."""
    if reply.has_error():
        return [None]
    if SUM in reply.content:
        block = UpdateSum.from_content(reply.content)
        return list(zip(block.num_examples, block.train_loss, block.update_norm, strict=True))
    metrics = reply.content.metric_records.get(METRICS)
    if metrics is None:
        return [None]
    loss = metrics.get("train_loss")
    return [
        (
            int(metrics["num-examples"]),  # type: ignore[arg-type]
            float(loss) if isinstance(loss, int | float) and not math.isnan(loss) else None,
            _norm(reply, message),
        )
    ]


def _norm(reply: Message, message: Message) -> float | None:
    trained, sent = (
        to_arrays(next(iter(content.array_records.values()), {}))
        for content in (reply.content, message.content)
    )
    fits = trained.keys() == sent.keys() and all(trained[k].shape == sent[k].shape for k in sent)
    # What does not fit is for the strategy to refuse.
    return l2_norm(trained[name] - sent[name] for name in sent) if fits else None


def _cells(row: tuple[int, str, *_Reported]) -> list[str]:
    numbers = ("" if value is None else f"{value:.7g}" for value in row[3:])
    return [str(row[0]), row[1], str(row[2]), *numbers]

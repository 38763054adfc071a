"""Scores of a model on a split, every round."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim.data.dataset import FederatedDataset, num_examples
from fedsim.engines.client_app import INDICES, LOGITS, SPLIT
from fedsim.errors import EngineError
from fedsim.flower_seam import to_arrays
from fedsim.metrics import average_precision, precision_recall_f1
from fedsim.replies import drain
from fedsim.streams import numpy_stream
from fedsim.update_sum import ARRAYS, CONFIG

_ROWS = 4096


class SplitScorer:
    """Scores arrays on one split, or on a fixed subset of it.

    Args:
        grid: Where the forward passes run.
        dataset: Whose labels are the truth.
        split: Which split.
        batch_size: Images a forward pass; batches are cut by index, whoever runs them.
        num_images: Size of a seeded subset; None for the whole split.
        indices: Which examples, if neither the whole split nor a drawn subset.
        seed: The run's seed.
    """

    def __init__(
        self,
        grid: Grid,
        dataset: FederatedDataset,
        split: str,
        *,
        batch_size: int,
        num_images: int | None = None,
        indices: npt.NDArray[np.int64] | None = None,
        seed: int = 0,
    ) -> None:
        self._grid, self._split, self._batch_size = grid, split, batch_size
        total = num_examples(dataset, split)
        indices = np.arange(total) if indices is None else indices
        if num_images is not None and num_images < total:
            stream = numpy_stream(seed, "validation subset", split)
            indices = np.sort(stream.choice(total, num_images, replace=False))
        self._indices, self.targets = indices, dataset.labels(split, indices)

    def logits(self, arrays: ArrayRecord) -> npt.NDArray[np.float32]:
        """Return the model's outputs, shape (examples, labels)."""
        messages = (
            Message(
                RecordDict(
                    {
                        ARRAYS: arrays,
                        CONFIG: ConfigRecord({SPLIT: self._split, INDICES: batch.tolist()}),
                    }
                ),
                dst_node_id=1,
                message_type=MessageType.EVALUATE,
            )
            for batch in self._batches()
        )
        result = np.empty(self.targets.shape, dtype=np.float32)
        row = 0
        for reply in drain(self._grid.send_and_receive(messages)):
            part = to_arrays(reply.content.array_records[ARRAYS])[LOGITS].numpy()
            result[row : row + len(part)] = part
            row += len(part)
        if row != len(result):
            raise EngineError(
                f"scoring {self._split}: expected {len(result)} rows, found {row}; a reply was lost"
            )
        return result

    def score(self, arrays: ArrayRecord) -> dict[str, Any]:
        """Return the scores of a round, by the names that they have in the record."""
        started = time.perf_counter()
        scores = score_logits(self.targets, self.logits(arrays))
        return {**scores, "seconds": time.perf_counter() - started}

    def _batches(self) -> Iterable[npt.NDArray[np.int64]]:
        for start in range(0, len(self._indices), self._batch_size):
            yield self._indices[start : start + self._batch_size]


def score_logits(targets: npt.NDArray[np.bool_], logits: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Score logits against labels, both of shape (examples, labels).

    Returns:
        The record's keys: micro and macro AP, exact (on the logits) and with 200 thresholds (on
        their sigmoid), F1 at 0.5, the number of classes that have a positive example, the number of
        examples, and the mean loss. What can't be computed is None, with the reason under
        ``<key>_reason``.
    """
    if not np.isfinite(logits).all():
        raise EngineError(
            "expected finite scores, found NaN or infinity; the model has diverged: lower the "
            "learning rates"
        )
    probabilities = torch.from_numpy(logits).sigmoid().numpy()
    scores: dict[str, Any] = {}
    for average in ("micro", "macro"):
        scores[f"{average}_ap"] = average_precision(targets, logits, average=average)
        scores[f"{average}_ap_binned200"] = average_precision(
            targets, probabilities, average=average, method="binned", empty_class="zero"
        )
        scores[f"{average}_f1"] = precision_recall_f1(targets, probabilities, average=average)[2]
    scores["num_classes_scored"] = int(targets.any(axis=0).sum())
    scores["num_examples"] = len(targets)
    scores["loss"] = mean_loss(targets, logits)
    return with_reasons(scores, "no example of this split has a label")


def mean_loss(targets: npt.NDArray[np.bool_], logits: npt.NDArray[np.float32]) -> float:
    """Return binary cross-entropy with logits: the mean over labels and examples, in float64."""
    total = 0.0
    for start in range(0, len(logits), _ROWS):
        x = logits[start : start + _ROWS].astype(np.float64)
        y = targets[start : start + _ROWS]
        total += float((np.logaddexp(0, x) - x * y).sum())
    return total / logits.size


def with_reasons(scores: dict[str, Any], reason: str) -> dict[str, Any]:
    """Replace what is not finite by None, with the reason beside it."""
    complete: dict[str, Any] = {}
    for key, value in scores.items():
        if not np.isfinite(value if isinstance(value, float) else 0.0):
            complete |= {key: None, f"{key}_reason": reason}
        else:
            complete[key] = value
    return complete

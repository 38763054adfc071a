"""What a node answers for a user, checked: it comes over a network, from a program of others."""

from typing import Any

from flwr.app import RecordDict

from fedsim.arrays import Arrays
from fedsim.errors import EngineError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.update_sum import ARRAYS, METRICS


def checked_answer(content: RecordDict, num_images: int, where: str) -> RecordDict:
    """Return an answer with its arrays read: one user's, which nobody has clipped or weighted.

    A sum in its place would go around the server's clipping, and the number of examples is the
    user's weight, which must be the one that was known before the first round.

    Args:
        content: As it came.
        num_images: The user's, in the table of users.
        where: Round, user and node, for errors.

    Raises:
        EngineError: It is not what fedsim's ClientApp answers for this user.
    """
    metrics: Any = content.metric_records.get(METRICS, {})
    if set(content) != {ARRAYS, METRICS} or not isinstance(metrics.get("train_loss"), float):
        raise EngineError(
            f"{where}: expected {ARRAYS!r} and {METRICS!r} of one user, with a loss, found "
            f"{sorted(content)} with {sorted(metrics)}; use the same release of fedsim on every "
            "machine"
        )
    if metrics.get("num-examples") != num_images:
        raise EngineError(
            f"{where}: expected {num_images} examples, as in the table of users, found "
            f"{metrics.get('num-examples')!r}; give the SuperNode the file that it had at the "
            "start, or begin the run anew"
        )
    return RecordDict({ARRAYS: to_record(_read(content, where)), METRICS: metrics})


def _read(content: RecordDict, where: str) -> Arrays:
    try:
        found = to_arrays(content.array_records[ARRAYS])
        return {name: tensor.contiguous() for name, tensor in found.items()}
    except Exception as error:  # NumPy has many for what it can't read
        raise EngineError(
            f"{where}: expected arrays in NumPy's format, found {type(error).__name__}: {error}; "
            "use the same release of fedsim on every machine"
        ) from error

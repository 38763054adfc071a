"""What can go wrong, as exceptions that carry the exit code of the command line.

A message says where, what was expected, what was found, and the remedy, in one sentence.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class FedsimError(Exception):
    """A fault that a user can mend; a bug is any other exception (exit code 1)."""

    exit_code = 1


class ConfigError(FedsimError):
    """A fault in the YAML, an override or a plug-in's name or parameters."""

    exit_code = 2


class DataError(FedsimError):
    """A file, image, label or user id that can't be used."""

    exit_code = 3


class PrivacyError(FedsimError):
    """A setting under which the printed epsilon would not be true, or a budget that is spent."""

    exit_code = 4


class EngineError(FedsimError):
    """A client that failed, a worker that can't be kept alive, an update that can't be summed."""

    exit_code = 5


class CheckpointError(FedsimError):
    """A checkpoint or record that is unreadable, or belongs to other settings."""

    exit_code = 6


def unwritable(error: Exception, place: object) -> CheckpointError | None:
    """Return what to say of a full or read-only disk; None for any other error.

    Args:
        error: Any.
        place: What was written to, if the error does not know.
    """
    full = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    if not isinstance(error, OSError) or error.errno not in full:
        return None
    return CheckpointError(
        f"{error.filename or place}: expected to write, found {error.strerror}; free some space or "
        "choose another --out, and run it again"
    )


def remedy_for(error: OSError, otherwise: str) -> str:
    """Return what to do about a file that can't be read.

    Args:
        error: What the system says.
        otherwise: The remedy if it is anything but a want of permission.
    """
    return "make it readable" if isinstance(error, PermissionError) else otherwise


def first_line(error: Exception) -> str:
    r"""Return the first line of what an exception says; empty if it says nothing.

    Examples:
        >>> first_line(ValueError("it is wrong\nfor many reasons"))
        'it is wrong'
    """
    return str(error).partition("\n")[0]


@contextmanager
def noted(faults: list[FedsimError]) -> Iterator[None]:
    """Append a fault of the block to a list instead of raising it."""
    try:
        yield
    except FedsimError as error:
        faults.append(error)


def raise_together(faults: Sequence[FedsimError]) -> None:
    """Raise one error that tells all faults, each once; of their class if they share one."""
    distinct = list({str(fault): fault for fault in faults}.values())
    if not distinct:
        return
    if len(distinct) == 1:
        raise distinct[0]
    listed = "".join(f"\n  - {fault}" for fault in distinct)
    classes = {type(fault) for fault in distinct}
    kind = classes.pop() if len(classes) == 1 else ConfigError
    raise kind(f"expected settings that fit together, found {len(distinct)} faults:{listed}")

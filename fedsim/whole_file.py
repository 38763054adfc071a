"""Files that are written whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool = False, private: bool = False) -> Iterator[Path]:
    """Let a file be written beside its place, and put it there when it is done.

    A kill, a full disk or an error in the block leaves what was at ``path`` before.

    Args:
        path: The file; its folder exists.
        durable: Wait until it is on the disk: what is written later must not get there first.
        private: Nobody but its owner can read it, at any moment.

    Yields:
        Where to write it; closed when the block ends.

    Raises:
        OSError: As the system says, beside what the block raises.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "scores.json"
        >>> with whole_file(path) as place:
        ...     _ = place.write_text("{}")
        >>> [file.name for file in path.parent.iterdir()]
        ['scores.json']
    """
    place = path.with_name(f"{path.name}.tmp")
    try:
        if private:
            place.unlink(missing_ok=True)  # the mode of one that is there would stay
            place.touch(0o600, exist_ok=False)
        yield place
        if durable:
            with place.open("rb+") as file:
                os.fsync(file.fileno())
        place.replace(path)
    finally:
        with contextlib.suppress(OSError):  # also where it was never made
            place.unlink()

"""What users keep between rounds, on disk: read when they are drawn, written when they are done.

A round that is done again after a kill must find what it found at first. So a state's file bears
the round that wrote it, a reader takes the newest one of an earlier round, and files that no
checkpoint can lead back to are deleted.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import torch

from fedsim.arrays import Arrays
from fedsim.errors import CheckpointError
from fedsim.whole_file import whole_file

_PER_FOLDER = 1000
_SUFFIX = ".pt"


class ClientStates:
    """The states of a run's users.

    Args:
        folder: Theirs alone; made when something is written.
        checkpoint_every: Rounds between checkpoints: how far back a run may have to go.
    """

    def __init__(self, folder: Path, checkpoint_every: int) -> None:
        self._folder, self._checkpoint_every = folder, checkpoint_every

    def read(self, user_index: int, round_num: int) -> Arrays:
        """Return what a user's last participation before a round left; empty if there is none.

        Raises:
            CheckpointError: The file can't be read.
        """
        rounds = [num for num in self._rounds(user_index) if num < round_num]
        if not rounds:
            return {}
        path = self._path(user_index, max(rounds))
        try:
            state: Arrays = torch.load(path, weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{path}: expected what a user keeps between rounds, found a file that can't be "
                f"read ({type(error).__name__}); delete the run's folder to start it anew"
            ) from error
        return state

    def write(self, user_index: int, round_num: int, state: Arrays) -> None:
        """Keep what a user's participation left, and delete what nobody can need any more.

        Raises:
            CheckpointError: The disk refuses it.
        """
        path = self._path(user_index, round_num)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as place:
                torch.save({name: tensor.detach().cpu() for name, tensor in state.items()}, place)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"{path}: expected to keep a user's state, found {error}; free some space and run "
                "again"
            ) from error
        reachable = [n for n in self._rounds(user_index) if n <= round_num - self._checkpoint_every]
        for old in sorted(reachable)[:-1]:
            self._path(user_index, old).unlink(missing_ok=True)

    def forget(self, user_index: int, rounds: Iterable[int]) -> None:
        """Delete what some of a user's participations left: the server did not get the rest."""
        for round_num in set(rounds) & set(self._rounds(user_index)):
            self._path(user_index, round_num).unlink(missing_ok=True)

    def forget_after(self, round_num: int) -> None:
        """Delete what rounds after a checkpoint's wrote: they are done again."""
        for path in self._folder.glob(f"*/*/*{_SUFFIX}"):
            if int(path.stem) > round_num:
                path.unlink()

    def _rounds(self, user_index: int) -> list[int]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            found = [int(path.stem) for path in self._place(user_index).glob(f"*{_SUFFIX}")]
        return found

    def _path(self, user_index: int, round_num: int) -> Path:
        return self._place(user_index) / f"{round_num}{_SUFFIX}"

    def _place(self, user_index: int) -> Path:
        return self._folder / str(user_index // _PER_FOLDER) / str(user_index)

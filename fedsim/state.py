"""The state of a run between two rounds, and its checkpoint on disk."""

import dataclasses
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord

from fedsim.errors import CheckpointError, first_line
from fedsim.flower_seam import to_arrays, to_record
from fedsim.secret import Secret
from fedsim.whole_file import whole_file

_FORMAT = 1


@dataclass(frozen=True)
class Best:
    """The round with the highest macro AP on the validation split.

    Attributes:
        round_num: Which one; 0 is the initial model.
        macro_ap: Its score.
        arrays: Its arrays.
    """

    round_num: int
    macro_ap: float
    arrays: ArrayRecord


@dataclass(frozen=True)
class RunState:
    """Everything that the next round depends on; the seed and the settings do the rest.

    Attributes:
        arrays: The global arrays.
        round_num: Rounds done; -1 before the initial model was scored.
        strategy: The strategy's state.
        ledger: What the privacy accounting has to remember.
        best: The best round so far; None before the first score.
        unreceived: By user, the rounds since the last answer that came whose answers did not.
        secret: What central noise and cohorts are functions of; None for the seed.
    """

    arrays: ArrayRecord
    round_num: int = -1
    strategy: dict[str, Any] = dataclasses.field(default_factory=dict)
    ledger: dict[str, Any] = dataclasses.field(default_factory=dict)
    best: Best | None = None
    unreceived: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    secret: Secret | None = None

    def start(self) -> "RunState":
        """Return the state in which the initial model counts as round 0."""
        return dataclasses.replace(self, round_num=0)

    def advance(
        self, round_num: int, arrays: ArrayRecord, strategy: dict[str, Any], ledger: dict[str, Any]
    ) -> "RunState":
        """Return the state after a round."""
        # Copies: a strategy may go on writing into its tensors before this state is saved.
        return dataclasses.replace(
            self,
            round_num=round_num,
            arrays=arrays,
            strategy=_copied(strategy),
            ledger=_copied(ledger),
        )

    def keep_best(self, macro_ap: float | None) -> "RunState":
        """Return the state with this round as the best, if its score is higher than before."""
        if macro_ap is None or (self.best is not None and macro_ap <= self.best.macro_ap):
            return self
        return dataclasses.replace(self, best=Best(self.round_num, macro_ap, self.arrays))


def _copied(value: Any) -> Any:
    """Copy tensors and the containers that hold them."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def save_checkpoint(state: RunState, path: Path, settings: dict[str, Any]) -> None:
    """Write a checkpoint; a kill at any moment leaves the last one whole.

    One with a secret can be read by nobody but the file's owner.

    Args:
        state: What to keep.
        path: The file.
        settings: The settings that the numbers depend on; ``load_checkpoint`` compares them.
    """
    best = state.best
    content = {
        "format": _FORMAT,
        "settings": settings,
        "round_num": state.round_num,
        "arrays": to_arrays(state.arrays),
        "strategy": state.strategy,
        "ledger": state.ledger,
        "best": best
        and {
            "round_num": best.round_num,
            "macro_ap": best.macro_ap,
            "arrays": to_arrays(best.arrays),
        },
        "unreceived": state.unreceived,
        "secret": state.secret and state.secret.key.hex(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        private = state.secret is not None
        with whole_file(path, durable=True, private=private) as place, place.open("wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        # torch hides what broke its file off behind an error of its own.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        if not isinstance(cause, OSError):
            raise
        raise CheckpointError(
            f"{path}: expected to write a checkpoint, found {cause.strerror}; free some space or "
            "choose another --out (the last checkpoint is still whole)"
        ) from error


def load_checkpoint(path: Path, settings: dict[str, Any]) -> RunState:
    """Read a checkpoint back.

    Args:
        path: The file.
        settings: Those of the run that wants to go on from it.

    Raises:
        CheckpointError: The file is unreadable, or was written under other settings.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        found_format = content["format"]
    except Exception as error:
        raise CheckpointError(
            f"{path}: expected a checkpoint, found a file that can't be read "
            f"({_first_line(error)}); delete the run's folder to start it anew, and let a "
            "strategy's state_dict hold tensors, numbers, strings, lists and dicts only"
        ) from error
    if found_format != _FORMAT:
        raise CheckpointError(
            f"{path}: expected checkpoint format {_FORMAT}, found {found_format}; resume it with "
            "the version of fedsim that wrote it"
        )
    differing = _differing(content["settings"], settings)
    if differing:
        raise CheckpointError(
            f"{path}: expected the settings that the run began with, found others: "
            f"{', '.join(differing)}; restore them, or choose another --out"
        )
    best, secret = content["best"], content.get("secret")
    return RunState(
        round_num=content["round_num"],
        arrays=to_record(content["arrays"]),
        strategy=content["strategy"],
        ledger=content["ledger"],
        best=best and Best(best["round_num"], best["macro_ap"], to_record(best["arrays"])),
        unreceived=content.get("unreceived", {}),
        secret=Secret(bytes.fromhex(secret)) if secret else None,
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)[:120]}" if str(error) else "empty"


def _differing(found: Any, expected: Any, prefix: str = "") -> list[str]:
    """Return the dotted keys under which settings differ, with both values."""
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = sorted(found.keys() | expected.keys())
        return [
            name
            for key in keys
            for name in _differing(found.get(key), expected.get(key), f"{prefix}.{key}".lstrip("."))
        ]
    then, now = (textwrap.shorten(repr(value), 60) for value in (found, expected))
    return [] if found == expected else [f"{prefix} (began with {then}, now {now})"]

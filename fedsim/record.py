"""A run's folder: settings, a line per round and split, the privacy card, the summary."""

import json
import math
import os
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from fedsim.errors import CheckpointError
from fedsim.whole_file import whole_file

Line = dict[str, Any]

_FAILED, _ORIGIN = "failed.json", "origin.json"


class RunFolder:
    """Where a run writes.

    Args:
        path: ``OUT/<name>/<run_id>``; made when something is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Make the folder, before any work is spent on what it would hold."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: expected a folder to write to, found {error.strerror}; choose "
                "another --out"
            ) from None

    @property
    def started(self) -> bool:
        """Whether a run wrote here before."""
        return self.checkpoint.exists() or (self.path / "metrics.jsonl").exists()

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's file."""
        return self.path / "checkpoint" / "state.pt"

    @property
    def finished(self) -> bool:
        """Whether the summary, which is written last, is there."""
        return (self.path / "summary.json").exists()

    @property
    def finished_at(self) -> float:
        """When the summary was written, in seconds since the epoch."""
        return (self.path / "summary.json").stat().st_mtime

    def mark_failed(self, failure: dict[str, Any]) -> None:
        """Write ``failed.json``: why the run ended before its end."""
        self.write_json(_FAILED, failure)

    def clear_failure(self) -> None:
        """Forget that the run has failed: it is started again."""
        (self.path / _FAILED).unlink(missing_ok=True)

    def failure(self) -> dict[str, Any] | None:
        """Return what ``mark_failed`` wrote; None for a run that has not failed."""
        return self.read_json(_FAILED) if (self.path / _FAILED).exists() else None

    def origin(self) -> dict[str, Any]:
        """Return where the run comes from.

        ``place`` is its number in its file, from 0, None if that is unknown; ``commands`` are those
        that it was begun and gone on with.
        """
        known = self.read_json(_ORIGIN) if (self.path / _ORIGIN).exists() else {}
        return {"place": known.get("place"), "commands": known.get("commands", [])}

    def note_origin(self, place: int, command: str | None = None) -> None:
        """Write ``origin.json``: the place, and a command more; nothing if nothing is new."""
        known = self.origin()
        now = {"place": place, "commands": [*known["commands"], *([command] if command else [])]}
        if now != known:
            self.write_json(_ORIGIN, now)

    def write_config(self, settings: dict[str, Any]) -> None:
        """Write ``config.yaml``: every setting, defaults included."""
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        with (
            whole_file(self.path / "config.yaml") as place,
            place.open("w", encoding="utf-8") as file,
        ):
            yaml.dump(settings, file)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps(_strict(content), indent=1, ensure_ascii=False) + "\n"
        with whole_file(self.path / name) as place:
            place.write_text(text, encoding="utf-8")

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder."""
        path = self.path / name
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: expected JSON, found {error}; delete the run's folder to start it anew"
            ) from error
        return content

    def append(self, line: Line) -> None:
        """Append a line to ``metrics.jsonl`` and flush it."""
        path = self.path / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_strict(line), ensure_ascii=False) + "\n")
        except OSError as error:
            raise CheckpointError(
                f"{path}: expected to append a line, found {error.strerror}; free some space and "
                "go on with --resume"
            ) from error

    def sync(self) -> None:
        """Wait until the record is on the disk: a checkpoint must not be ahead of it."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def lines(self) -> list[Line]:
        """Read ``metrics.jsonl``; a last line that a kill cut short is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines = []
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                if number <= path.read_text(encoding="utf-8").count("\n"):
                    raise CheckpointError(
                        f"{path}, line {number}: expected JSON, found {text[:40]!r}; delete the "
                        "run's folder to start it anew"
                    ) from None
        return lines

    def truncate_after(self, round_num: int) -> None:
        """Drop the lines of rounds that the checkpoint does not hold; they will come again."""
        kept = [
            line for line in self.lines() if line["round"] <= round_num and line["split"] != "test"
        ]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
        with whole_file(self.path / "metrics.jsonl", durable=True) as place:
            place.write_text(text, encoding="utf-8")


def _strict(value: Any) -> Any:
    """Refuse NaN, and turn an infinite epsilon into the word: JSON has neither."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "infinity"
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("a record may not hold NaN: write null and the reason")
    return value

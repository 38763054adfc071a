"""What follows every round, federated or centralized: score, keep the best, record, checkpoint."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedsim.evaluation.scoring import SplitScorer, with_reasons
from fedsim.record import RunFolder
from fedsim.state import RunState, load_checkpoint, save_checkpoint


class Bookkeeper:
    """Closes rounds.

    Args:
        folder: The run's folder.
        settings: What the numbers depend on; goes into the checkpoint.
        validation: Scores the validation split.
        num_rounds: The last round; it is always scored, and so is round 0.
        score_every: Rounds between scores.
        checkpoint_every: Rounds between checkpoints.
        save_begun: Save what a round spends before it is asked for: one that is done again spends
            again.
        report: Told every line that is recorded.
        before_save: Called before a checkpoint is written: the privacy card is never behind it.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: dict[str, Any],
        validation: SplitScorer,
        *,
        num_rounds: int,
        score_every: int = 1,
        checkpoint_every: int = 1,
        save_begun: bool = False,
        report: Callable[[dict[str, Any]], None] = lambda line: None,
        before_save: Callable[[RunState], None] = lambda state: None,
    ) -> None:
        self._folder, self._settings, self._validation = folder, settings, validation
        self._num_rounds, self._score_every = num_rounds, score_every
        self._checkpoint_every, self._report = checkpoint_every, report
        self._before_save, self._save_begun = before_save, save_begun
        self._notes: list[str] = []
        self._unsaved: RunState | None = None
        self._read_back = False  # once, since a strategy's state may hold what can't be read

    def note(self, text: str) -> None:
        """Write a sentence into the next round's training line, as ``note``."""
        self._notes.append(text)

    def begin_round(self, state: RunState, ledger: dict[str, Any]) -> None:
        """Save what the next round spends, where it can't be done again for nothing.

        Args:
            state: After the round before.
            ledger: With the next round's users.
        """
        if self._save_begun:
            self._unsaved = replace(state, ledger=ledger)
            self.save()

    def close_round(
        self, state: RunState, training: Mapping[str, Any] | None, spent: dict[str, Any]
    ) -> RunState:
        """Score and record the round that ``state`` ends, and save a checkpoint when one is due.

        Args:
            state: After the round.
            training: What training reported; None for round 0.
            spent: The epsilons so far.

        Returns:
            The state, with its best round brought up to date.
        """
        round_num = state.round_num
        if training is not None:
            note = {"note": "; ".join(self._notes)} if self._notes else {}
            self._notes = []
            words = {**_train_words(training), **spent, **note}
            self._write({"round": round_num, "split": "train", **words})
        if round_num % self._score_every == 0 or round_num == self._num_rounds:
            scores = self._validation.score(state.arrays)
            state = state.keep_best(scores["macro_ap"])
            self._write({"round": round_num, "split": "val", **scores, **spent})
        self._unsaved = state
        if round_num % self._checkpoint_every == 0 or round_num == self._num_rounds:
            self.save()
        return state

    def save(self) -> None:
        """Save the last closed round, unless that was done."""
        if self._unsaved is not None:
            self._before_save(self._unsaved)
            self._folder.sync()
            save_checkpoint(self._unsaved, self._folder.checkpoint, self._settings)
            if not self._read_back and self._unsaved.round_num > 0:
                load_checkpoint(self._folder.checkpoint, self._settings)
                self._read_back = True
            self._unsaved = None

    def _write(self, line: dict[str, Any]) -> None:
        self._folder.append(line)
        self._report(line)


def _train_words(training: Mapping[str, Any]) -> dict[str, Any]:
    """Turn what a strategy reported into the record's words.

    Its own metrics may be anything: those that are called like the record's keys get a prefix, and
    what is not a finite number is null.
    """
    words: dict[str, Any] = {"loss": training.get("train_loss")}
    if words["loss"] is None:
        nobody = training.get("num-clients") == 0
        words["loss_reason"] = (
            "no user took part in this round" if nobody else "the strategy reported no train_loss"
        )
    elif isinstance(words["loss"], float) and math.isnan(words["loss"]):
        words["loss"] = None
        words["loss_reason"] = "a user's loss is no number, or its site keeps it"
    for key, value in training.items():
        name = key.replace("-", "_")
        if key != "train_loss":
            words[f"strategy_{name}" if name in ("round", "split", "loss", "note") else name] = (
                value
            )
    return with_reasons(words, "not a finite number")

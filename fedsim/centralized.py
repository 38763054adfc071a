"""The baseline's loop: the same model, transforms and scores, trained on the pooled train split."""

import time
from typing import Any, Protocol

from fedsim.bookkeeping import Bookkeeper
from fedsim.flower_seam import to_arrays, to_record
from fedsim.state import RunState
from fedsim.training.pooled import PooledTrainer


class PooledPrivacy(Protocol):
    """Counts what is spent."""

    def spent(self, round_num: int) -> dict[str, Any]:
        """Return the epsilons after an epoch, by the names that they have in the record."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        ...


def train_centralized(
    trainer: PooledTrainer,
    privacy: PooledPrivacy,
    book: Bookkeeper,
    num_epochs: int,
    state: RunState,
) -> RunState:
    """Train from ``state`` to the last epoch and return the state after it.

    An epoch counts as a round; epoch 0 scores the initial model.
    """
    trainer.load(to_arrays(state.arrays), state.strategy)
    if state.round_num < 0:
        state = book.close_round(state.start(), training=None, spent=privacy.spent(0))
    for epoch in range(state.round_num + 1, num_epochs + 1):
        started = time.perf_counter()
        figures = trainer.train_epoch(epoch)
        state = state.advance(
            epoch, to_record(trainer.arrays()), trainer.state_dict(), privacy.state_dict()
        )
        training = {**figures, "seconds": time.perf_counter() - started}
        state = book.close_round(state, training, privacy.spent(epoch))
    return state

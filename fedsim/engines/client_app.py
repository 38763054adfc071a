"""The ClientApp: trains the user that a message names, or scores a slice of a split."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays
from fedsim.flower_seam import to_arrays, to_record
from fedsim.training.local import LocalResult
from fedsim.training.personal import PersonalTraining
from fedsim.update_sum import ARRAYS, CONFIG, METRICS, ROUND, USER, FoldRule, UpdateSum

SPLIT, INDICES = "split", "indices"
"""Keys of an evaluate message's config record. One with all those of ``PersonalTraining`` asks for
scores before and after the model is fitted to a user."""

LOGITS = "logits"
"""Key of the scores in the reply to an evaluate message."""


class LocalModel(Protocol):
    """One model with the data it trains and scores on. Lives in one process, serves every user."""

    @property
    def arrays(self) -> Arrays:
        """The model's own tensors, by name: what is exchanged."""
        ...

    def train(self, user: str, round_num: int, received: Arrays) -> LocalResult:
        """Train on one user's examples, in place.

        Args:
            user: The user's id.
            round_num: From 1.
            received: What was sent: the model's arrays, which ``arrays`` hold already, and what
                the strategy sent along. Not to be written to.
        """
        ...

    def logits(self, split: str, indices: list[int]) -> torch.Tensor:
        """Score some examples of a split: shape (len(indices), labels)."""
        ...

    def personalized_logits(self, personal: PersonalTraining) -> torch.Tensor:
        """Score some of a user's examples, train on the others, and score again.

        Args:
            personal: Which are scored, and how the model is trained on the others.

        Returns:
            Shape (2, examples scored, labels): before and after.
        """
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """What a LocalModel may offer besides: to read data while it computes."""

    def announce(self, split: str, of: str | list[int]) -> None:
        """Say what comes after the next call: a train user, some examples, or none."""
        ...

    def stop(self) -> None:
        """Stop reading ahead."""
        ...


@runtime_checkable
class TrainsBlocks(Protocol):
    """What a LocalModel may offer besides: to train a block of users at once."""

    def train_block(
        self, users: list[str], round_num: int, received: Arrays, rule: FoldRule, total: Arrays
    ) -> UpdateSum:
        """Train each of some users from what was sent, and fold their updates.

        Args:
            users: Their ids.
            round_num: From 1.
            received: What was sent: the model's arrays. Not to be written to.
            rule: Weighting and clipping.
            total: Takes the sum.
        """
        ...


class LocalClientApp(ClientApp):
    """A ClientApp around a model in this process, which can be told what follows.

    The arrays of a train reply are the model's own, without a copy: whoever called the app is done
    with them before it calls again.

    Args:
        model: Trains and scores.

    Attributes:
        device: Where the model's arrays are, and so those of a train reply.
    """

    def __init__(self, model: LocalModel) -> None:
        super().__init__()
        self._model = model
        own = model.arrays
        self.device = next((array.device for array in own.values()), torch.device("cpu"))

        @self.train()
        def train(message: Message, context: Context) -> Message:
            config = _first(message.content.config_records)
            received = to_arrays(_first(message.content.array_records))
            _load(own, received)
            result = model.train(config[USER], config[ROUND], received)
            metrics = MetricRecord(
                {"num-examples": result.num_examples, "train_loss": result.train_loss}
            )
            trained = to_record({**own, **result.sent_back})
            return Message(RecordDict({ARRAYS: trained, METRICS: metrics}), reply_to=message)

        @self.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            config = _first(message.content.config_records)
            _load(own, to_arrays(_first(message.content.array_records)))
            if "owner" in config:  # whose images they are matters only to what is fitted to them
                logits = model.personalized_logits(PersonalTraining(**config))
            else:
                logits = model.logits(config[SPLIT], config[INDICES])
            return Message(RecordDict({ARRAYS: to_record({LOGITS: logits})}), reply_to=message)

    def train_block(
        self, messages: Sequence[Message], rule: FoldRule, total: Arrays
    ) -> UpdateSum | None:
        """Train the users of a block at once, if the model can and all were sent its arrays alone.

        Args:
            messages: To the block's users, with the records that our own strategies send.
            rule: How their updates are folded.
            total: Takes the sum.

        Returns:
            The sum; None if they are to be trained one by one.
        """
        if not isinstance(self._model, TrainsBlocks):
            return None
        sent: Any = messages[0].content[ARRAYS]
        received = to_arrays(sent)
        if any(message.content[ARRAYS] is not sent for message in messages):
            return None
        if received.keys() != self._model.arrays.keys():
            return None
        configs: list[Any] = [message.content[CONFIG] for message in messages]
        users = [config[USER] for config in configs]
        received = {name: received[name] for name in self._model.arrays}
        return self._model.train_block(users, configs[0][ROUND], received, rule, total)

    def announce(self, message: Message | None) -> None:
        """Say which message follows the next one, if it is known."""
        if not isinstance(self._model, LooksAhead):
            return
        records = message.content.config_records if message is not None else {}
        config: Mapping[str, Any] = next(iter(records.values()), {})
        if USER in config:
            self._model.announce("train", config[USER])
        elif SPLIT in config and INDICES in config:
            self._model.announce(config[SPLIT], config[INDICES])
        else:
            self._model.announce("train", [])

    def stop(self) -> None:
        """Stop what the model does in the background."""
        if isinstance(self._model, LooksAhead):
            self._model.stop()


def client_app(model: LocalModel) -> ClientApp:
    """Make the ClientApp around a model."""
    return LocalClientApp(model)


MakeClientApp = Callable[[], ClientApp]
"""Builds the app in the process that runs it; picklable."""


def _first(records: Mapping[str, Any]) -> Any:
    """Foreign strategies name their records as they like, but send one of each."""
    return next(iter(records.values()))


def _load(own: Arrays, received: Arrays) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(own.values()), [received[name] for name in own])

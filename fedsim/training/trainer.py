"""One model with the data that it trains and scores on, in the process that does it."""

import dataclasses
import secrets
from math import nan

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedsim.arrays import Arrays
from fedsim.client_part import Client, ClientPart
from fedsim.client_states import ClientStates
from fedsim.data.dataset import Examples, FederatedDataset, ReadsAhead
from fedsim.data.transforms import InputTransform
from fedsim.errors import DataError
from fedsim.loss import label_mean_loss
from fedsim.models.initialize import exchanged_tensors
from fedsim.models.placed import device_of
from fedsim.privacy.per_sample import Noise, PrivateGradient, noise_of_nobody, noise_of_stream
from fedsim.streams import global_torch_stream, torch_stream
from fedsim.training.local import LocalResult, LocalSettings, laid_out, train_locally
from fedsim.training.personal import PersonalTraining
from fedsim.training.step import GradientFn, mean_gradient

_SCORED_AT_ONCE = 128  # of one user's images: few have as many


class Trainer:
    """Trains any user, one after another, with one model.

    Args:
        model: Its parameters are overwritten by every message.
        dataset: Read in this process.
        transform: From images to inputs.
        settings: How a user trains.
        seed: The run's seed; None where no draw may be known or made again: then everything that
            is drawn for a user comes from the operating system.
        private_gradient: For example-level DP-SGD.
        part: What the strategy does where users train.
        states: Where that part keeps what users leave behind.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: FederatedDataset,
        transform: InputTransform,
        settings: LocalSettings,
        *,
        seed: int | None,
        private_gradient: PrivateGradient | None = None,
        part: ClientPart | None = None,
        states: ClientStates | None = None,
    ) -> None:
        self._model, self._dataset, self._transform = model, dataset, transform
        self._settings, self._seed = settings, seed
        self._parameters: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
        self._private_gradient = private_gradient
        self._plain_gradient = mean_gradient(model)
        self._part, self._states = part, states
        self._device = device_of(model)
        self._users = dataset.users("train")
        self._offsets = np.concatenate([[0], np.cumsum(self._users.num_images)])
        self._coming: tuple[str, npt.NDArray[np.int64]] | None = None
        self.arrays: Arrays = exchanged_tensors(model)

    def announce(self, split: str, of: str | list[int]) -> None:
        """Say what is read after the next call's examples, to be read while that call computes.

        Args:
            split: Of the examples.
            of: A train user, or the examples' numbers; none if nothing is known to come.
        """
        if isinstance(of, str):
            index = self._users.find(of)
            self._coming = None if index is None else (split, self._numbers_of(index))
        else:
            self._coming = split, np.asarray(of, dtype=np.int64)

    def stop(self) -> None:
        """Stop reading ahead."""
        self._coming = None
        if isinstance(self._dataset, ReadsAhead):
            self._dataset.expect("train", np.empty(0, dtype=np.int64))

    def train(self, user: str, round_num: int, received: Arrays | None = None) -> LocalResult:
        """Train in place on one user's examples.

        Args:
            user: The user's id.
            round_num: From 1.
            received: What was sent, which the model holds already; not to be written to. None
                for the model's arrays as they are.
        """
        index = self._known(user, round_num)
        examples = self._load("train", self._numbers_of(index))
        keys = (round_num, user)
        gradient = self._plain_gradient
        if self._private_gradient is not None:
            expected_batch_size = min(self._settings.batch_size, len(examples))
            gradient = self._private_gradient.for_user(self._noise(*keys), expected_batch_size)
        if self._part is None:
            return self._train(gradient, examples, keys)
        if received is None:
            received = {name: tensor.detach().clone() for name, tensor in self.arrays.items()}
        client = self._client(index, round_num, received, examples)
        state = client.state
        self._part.start(client)
        result = self._train(_adjusted(gradient, self._part, client), examples, keys)
        with torch.no_grad():
            increments = self._part.finish(client)
        if client.state is not state and self._states is not None:
            self._states.write(index, round_num, client.state)
        sent_back = {
            name: sent + increments[name] if name in increments else sent
            for name, sent in client.sent_along.items()
        }
        return dataclasses.replace(result, sent_back=sent_back)

    def forget(self, user: str, rounds: list[int]) -> None:
        """Delete what a user keeps of some rounds, whose answers were lost."""
        index = self._users.find(user)
        if self._states is not None and index is not None:
            self._states.forget(index, rounds)

    @property
    def _stream_seed(self) -> int:
        """The run's seed, or one that nobody knows and that is never drawn again."""
        return secrets.randbits(256) if self._seed is None else self._seed

    def _noise(self, round_num: int, user: str) -> Noise:
        if self._seed is None:
            return noise_of_nobody()
        keys, device = (round_num, user), str(self._device)
        return noise_of_stream(
            torch_stream(self._seed, "example-level noise", *keys, device=device)
        )

    def _train(
        self, gradient: GradientFn, examples: Examples, keys: tuple[int, str]
    ) -> LocalResult:
        self._model.train()
        seed = self._stream_seed
        with global_torch_stream(seed, "model", *keys, device=str(self._device)):
            result = train_locally(
                self._parameters,
                gradient,
                examples,
                self._transform,
                self._settings,
                torch_stream(seed, "batches", *keys),
            )
        # Without noise the loss must not leave the process.
        return result if self._seed is not None else dataclasses.replace(result, train_loss=nan)

    def _client(self, index: int, round_num: int, received: Arrays, examples: Examples) -> Client:
        parameters = {name: tensor for name, tensor in self.arrays.items() if tensor.requires_grad}

        def inputs() -> torch.Tensor:
            self._model.eval()
            batch = self._transform.eval_batch(examples.images)
            return laid_out(batch, self._settings.channels_last)

        def loss() -> float:
            with torch.no_grad():
                losses = label_mean_loss(self._model(inputs()), examples.labels)
            return float(losses.mean() * len(examples)) / len(examples)

        def gradient() -> list[torch.Tensor]:
            with torch.enable_grad():
                return self._plain_gradient(inputs(), examples.labels)[1]

        state = self._states.read(index, round_num) if self._states else {}
        return Client(
            user=self._users.ids[index],
            round_num=round_num,
            num_examples=len(examples),
            learning_rate=self._settings.learning_rate,
            momentum=self._settings.momentum,
            parameters=parameters,
            received={name: received[name] for name in parameters},
            sent_along={k: v for k, v in received.items() if k not in self.arrays},
            state={name: kept.to(self._device) for name, kept in state.items()},
            loss=loss,
            gradient=gradient,
        )

    def logits(self, split: str, indices: list[int]) -> torch.Tensor:
        """Score some examples of a split: shape (len(indices), labels)."""
        return self._logits(self._load(split, np.asarray(indices, dtype=np.int64)).images)

    def personalized_logits(self, personal: PersonalTraining) -> torch.Tensor:
        """Score some of a user's examples, train in place on the others, and score again.

        Plainly, without the strategy's part and without noise: nothing of it is sent to anybody.

        Args:
            personal: Which are scored, and how the model is trained on the others.

        Returns:
            Shape (2, examples scored, labels): before and after.
        """
        split, owner, cut = personal.split, personal.owner, personal.num_trained_on
        own = self._load(split, np.asarray(personal.indices, dtype=np.int64))
        trained_on = Examples(own.images[:cut], own.labels[:cut])
        scored = torch.split(own.images[cut:], _SCORED_AT_ONCE)
        before = torch.cat([self._logits(images) for images in scored])
        settings = dataclasses.replace(
            self._settings,
            epochs=personal.epochs,
            batch_size=personal.batch_size,
            learning_rate=personal.learning_rate,
            poisson=False,
        )
        seed = self._stream_seed
        stream = torch_stream(seed, "personalization", split, owner)
        self._model.train()
        device = str(self._device)
        with global_torch_stream(seed, "personalized model", split, owner, device=device):
            train_locally(
                self._parameters,
                self._plain_gradient,
                trained_on,
                self._transform,
                settings,
                stream,
            )
        return torch.stack([before, torch.cat([self._logits(images) for images in scored])])

    @torch.no_grad()
    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        self._model.eval()
        inputs = laid_out(self._transform.eval_batch(images), self._settings.channels_last)
        logits: torch.Tensor = self._model(inputs).cpu()
        return logits

    def _known(self, user: str, round_num: int) -> int:
        index = self._users.find(user)
        if index is None:
            raise DataError(
                f"round {round_num}: expected a user of the train split, found {user!r}; check the "
                "data that this process reads"
            )
        return index

    def _numbers_of(self, index: int) -> npt.NDArray[np.int64]:
        return np.arange(self._offsets[index], self._offsets[index + 1])

    def _load(self, split: str, numbers: npt.NDArray[np.int64]) -> Examples:
        examples = self._read(split, numbers)
        return Examples(examples.images.to(self._device), examples.labels.to(self._device))

    def _read(self, split: str, numbers: npt.NDArray[np.int64]) -> Examples:
        examples = self._dataset.load(split, numbers)
        coming, self._coming = self._coming, None
        if coming is not None and isinstance(self._dataset, ReadsAhead):
            self._dataset.expect(*coming)
        return examples


def _adjusted(gradient: GradientFn, part: ClientPart, client: Client) -> GradientFn:
    """Let a strategy's part change every step's gradients, and count the steps."""

    def adjusted(
        inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        loss, gradients = gradient(inputs, labels)
        with torch.no_grad():
            part.adjust(client, gradients)
        client.num_steps += 1
        return loss, gradients

    return adjusted

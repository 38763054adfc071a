"""A trained model as a backbone: what goes into its last linear layer, and fine-tuning it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsim.data.dataset import FederatedDataset
from fedsim.data.transforms import InputTransform
from fedsim.errors import EngineError
from fedsim.evaluation.episodes import Episode, Int64s
from fedsim.models.last_layer import features
from fedsim.streams import torch_stream
from fedsim.training.local import laid_out
from fedsim.training.step import Sgd

_MOMENTUM = 0.9

Inputs = Callable[[Int64s], torch.Tensor]
"""From numbers of examples to the model's inputs."""


def eval_inputs(
    dataset: FederatedDataset, split: str, transform: InputTransform, channels_last: bool
) -> Inputs:
    """Return what reads examples of a split as the model's inputs, as they are scored."""
    return lambda numbers: laid_out(
        transform.eval_batch(dataset.load(split, numbers).images), channels_last
    )


@torch.no_grad()
def features_of(
    model: nn.Module, inputs: Inputs, numbers: Int64s, batch_size: int
) -> npt.NDArray[np.float32]:
    """Return the features of some examples, shape (numbers, features).

    Args:
        model: In evaluation mode afterwards.
        inputs: Reads examples.
        numbers: Which, at least one.
        batch_size: Images a forward pass.

    Raises:
        ConfigError: As for ``features``.
        EngineError: A feature is not finite.
    """
    model.eval()
    starts = range(0, len(numbers), batch_size)
    parts = [features(model, inputs(numbers[start : start + batch_size])) for start in starts]
    found: npt.NDArray[np.float32] = torch.cat(parts).float().numpy()
    if not np.isfinite(found).all():
        raise EngineError(
            "evaluation.few_shot: expected finite features, found NaN or infinity; the model has "
            "diverged: lower the learning rates"
        )
    return found


class FineTuning:
    """A few-shot learner that trains the whole model on the support, with a new last layer.

    Full batches, SGD with momentum 0.9, cross-entropy; the new layer's weights are drawn by the
    run's seed. The model stays in evaluation mode, since statistics of so few images are noise, and
    is as it was after every episode. What the model does not train by itself, it does not train
    here.

    Args:
        model: The backbone.
        inputs: Reads examples; an episode's inputs are numbers of examples.
        num_steps: At least 1.
        learning_rate: Of SGD.
    """

    def __init__(
        self, model: nn.Module, inputs: Inputs, *, num_steps: int, learning_rate: float
    ) -> None:
        self._model, self._inputs = model, inputs
        self._num_steps, self._learning_rate = num_steps, learning_rate

    def __call__(self, episode: Episode) -> Int64s:
        """Return the class of each query."""
        self._model.eval()
        trained = [p for p in self._model.parameters() if p.requires_grad]
        before = [parameter.detach().clone() for parameter in trained]
        try:
            return self._answers(episode, trained)
        finally:
            with torch.no_grad():
                for parameter, value in zip(trained, before, strict=True):
                    parameter.copy_(value)

    def _answers(self, episode: Episode, trained: list[nn.Parameter]) -> Int64s:
        support = self._inputs(episode.support)
        classes = torch.from_numpy(episode.support_classes)
        with torch.no_grad():
            size = features(self._model, support[:1]).shape[1]
        stream = torch_stream(episode.seed, "few-shot head", episode.number)
        head = torch.randn(size, episode.num_ways, generator=stream) / size**0.5
        bias = torch.zeros(episode.num_ways)
        optimizer = Sgd(self._learning_rate, _MOMENTUM)
        parameters = [*trained, head.requires_grad_(), bias.requires_grad_()]
        for _ in range(self._num_steps):
            loss = cross_entropy(features(self._model, support) @ head + bias, classes)
            # The model's own last layer has no part in this.
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            known = [
                (parameter, gradient)
                for parameter, gradient in zip(parameters, gradients, strict=True)
                if gradient is not None
            ]
            optimizer.step([p for p, _ in known], [g for _, g in known])
        with torch.no_grad():
            logits = features(self._model, self._inputs(episode.queries)) @ head + bias
        if not torch.isfinite(logits).all():
            raise EngineError(
                f"evaluation.few_shot, fine_tuning, episode {episode.number}: expected finite "
                "scores, found NaN or infinity; lower evaluation.few_shot.fine_tuning.learning_rate"
            )
        answers: Int64s = logits.argmax(dim=1).numpy()
        return answers

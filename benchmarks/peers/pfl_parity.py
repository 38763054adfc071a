"""One run of pfl-research 0.6 for ``parity.py``: its own algorithm, sampler, clipping and noise."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from parity_model import LABELS, flat, make_model, read_users, run_parser
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import nn


class NetworkForPfl(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.network = make_model(LABELS, weights).to(memory_format=torch.channels_last)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return nn.functional.binary_cross_entropy_with_logits(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Score a user's images, which pfl asks for in its first round only."""
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class KeepArrays(TrainingProcessCallback):  # type: ignore[misc] # untyped here
    """Keeps the model's parameters after every round."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.kept = [flat(model)]

    def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
        """Keep them."""
        self.kept.append(flat(self._model))
        return False, Metrics()


def shuffled(users: list[list[torch.Tensor]]) -> Callable[[int], Dataset]:
    """Give a user's images in another order every time; pfl itself takes them as they lie."""

    def make(user: int) -> Dataset:
        order = torch.randperm(len(users[user][0]))
        return Dataset([part[order] for part in users[user]])

    return make


def without_replacement(num_users: int, cohort_size: int) -> Callable[[], int]:
    """Draw cohorts in which nobody is twice; pfl's own sampler draws each user by itself."""

    def draw() -> Iterator[int]:
        while True:
            yield from np.random.permutation(num_users)[:cohort_size].tolist()  # noqa: NPY002

    drawn = draw()
    return lambda: next(drawn)


def main() -> None:
    parser = run_parser(__doc__)
    parser.add_argument("--clipping-norm", type=float)
    parser.add_argument("--noise-stddev-sum", type=float)
    parser.add_argument("--drawn-alike", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(args.seed)  # noqa: NPY002 - pfl draws from the global generator
    torch.manual_seed(args.seed)
    users = [list(user) for user in read_users(args.data)]
    if args.drawn_alike:
        dataset = FederatedDataset(
            shuffled(users), without_replacement(len(users), args.cohort_size)
        )
    else:
        sampler = get_user_sampler("random", range(len(users)))
        dataset = FederatedDataset.from_slices(users, sampler)
    network = NetworkForPfl(args.weights)
    postprocessors: list[Any] = [WeightByUser()]
    if args.clipping_norm is not None:
        mechanism = GaussianMechanism(
            args.clipping_norm, args.noise_stddev_sum / args.clipping_norm
        )
        postprocessors.append(CentrallyAppliedPrivacyMechanism(mechanism))
    keep = KeepArrays(network)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=1_000_000,  # it still scores the users of its first round
            train_cohort_size=args.cohort_size,
            val_cohort_size=0,
        ),
        SimulatedBackend(dataset, dataset, postprocessors=postprocessors),
        PyTorchModel(
            network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(
            local_learning_rate=args.learning_rate,
            local_num_epochs=1,
            local_batch_size=args.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[keep],
        send_metrics_to_platform=False,
    )
    np.save(args.out, np.stack(keep.kept))


if __name__ == "__main__":
    main()

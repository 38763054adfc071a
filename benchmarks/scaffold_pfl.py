"""What SCAFFOLD of pfl-research 0.6.0 makes of three users: the numbers in its test.

    python benchmarks/scaffold_pfl.py    # where pfl 0.6.0 and torch are installed, not fedsim

Three users, two of them in each of three rounds, two full-batch steps each, a linear model from 0.
Prints the model's bias and its norm after every round, for both options, as pfl computes them, and
again with the sign of every control variate turned around.
"""

import argparse
from typing import Any

import numpy as np
import torch
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

SIDE, NUM_LABELS, COHORTS = 4, 3, ((0, 1), (1, 2), (0, 2))


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    torch.set_num_threads(1)
    for option in ("I", "II"):
        for turned in (False, True):
            print(f"option {option}{', signs turned around' if turned else ''}")
            for bias, norm in rounds(option == "I", turned):
                print(f"    {[round(b, 7) for b in bias]}, {norm:.7f}")


class Linear(torch.nn.Module):
    """Logistic regression with pfl's interface."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3 * SIDE * SIDE, NUM_LABELS)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        logits = self.linear(inputs)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(inputs, labels)), 1)}


class TurnedAround(PyTorchModel):
    """Subtracts the other way round: control variates come out with the other sign."""

    def get_model_difference(self, other_parameters: Any, clone: bool = False) -> Any:
        difference = super().get_model_difference(other_parameters, clone)
        return difference.apply_elementwise(lambda w: -w)


def users() -> list[Dataset]:
    """Return the users of the tests' own small data set (tests/fakes.py)."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 10, 3)
    images = rng.integers(0, 256, (int(sizes.sum()), SIDE, SIDE, 3)).astype(np.uint8)
    labels = (images.mean(axis=(1, 2)) > 127).astype(np.float32)
    inputs = ((images / 255 - 0.5) / 0.5).transpose(0, 3, 1, 2).reshape(len(images), -1)
    ends = np.cumsum(sizes)
    return [
        Dataset((inputs[a:b].astype(np.float32), labels[a:b]), user_id=str(number))
        for number, (a, b) in enumerate(zip(ends - sizes, ends, strict=True))
    ]


def rounds(by_gradient: bool, turned: bool) -> list[tuple[list[float], float]]:
    net = Linear()
    kind = TurnedAround if turned else PyTorchModel
    model = kind(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    parameters = SCAFFOLDParams(
        central_num_iterations=3,
        evaluation_frequency=1,
        train_cohort_size=2,
        val_cohort_size=0,
        population=3,
        use_gradient_as_control_variate=by_gradient,
        user_state_storage=InMemoryUserStateStorage(),
    )
    training = NNTrainHyperParams(
        local_num_epochs=2, local_learning_rate=0.5, local_batch_size=None
    )
    algorithm, everyone, results = SCAFFOLD(), users(), []
    for iteration, cohort in enumerate(COHORTS):
        contexts, *_ = algorithm.get_next_central_contexts(model, iteration, parameters, training)
        context: CentralContext[Any, Any] = next(
            c for c in contexts if c.population == Population.TRAIN
        )
        initial = model.get_parameters()
        total = None
        for number in cohort:
            model.set_parameters(initial)
            sent, _ = algorithm.train_one_user(initial, model, everyone[number], context)
            sent = sent.apply_elementwise(lambda w: w.clone())
            if turned:  # the update itself is right as it was
                for name in sent:
                    if name.startswith("model_update/"):
                        sent[name] = -sent[name]
            total = sent if total is None else total + sent
        model.set_parameters(initial)
        algorithm.process_aggregated_statistics(context, None, model, total)
        both = [parameter.detach() for parameter in net.parameters()]
        norm = torch.cat([parameter.flatten() for parameter in both]).double().norm()
        results.append((both[1].tolist(), float(norm)))
    return results


if __name__ == "__main__":
    main()

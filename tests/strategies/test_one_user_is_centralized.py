"""One user who holds all data, with a server step of one, is centralized SGD."""

import functools

import numpy as np
import pytest
import torch
from logistic_users import INITIAL, Federation, arrays_of, by_hand, linear_model, with_settings

from fedsim.streams import torch_stream
from fedsim.training.local import shuffled_batches
from fedsim_strategies.fedavg import FedAvg
from fedsim_strategies.fedavgm import FedAvgM
from fedsim_strategies.fednova import FedNova
from fedsim_strategies.fedprox import FedProx
from fedsim_strategies.qfedavg import QFedAvg
from fedsim_strategies.scaffold import Scaffold

PLAIN = {
    "fedavg": FedAvg,
    "fedavg, uniform": functools.partial(FedAvg, weighting="uniform"),
    "fedavgm": functools.partial(FedAvgM, server_momentum=0),
    "fedprox": functools.partial(FedProx, mu=0),
    "scaffold, I": functools.partial(Scaffold, option="I"),
    "scaffold, II": functools.partial(Scaffold, option="II"),
    "fednova": FedNova,
    "qfedavg": functools.partial(QFedAvg, q=0),
}


def centralized(federation: Federation, num_rounds: int) -> np.ndarray:
    """Return what torch.optim.SGD makes of the user's data, with a fresh optimizer each round."""
    local, hand, model = federation.settings, by_hand(federation), linear_model()
    inputs, labels = (torch.from_numpy(part) for part in hand.data(0))
    user = hand.dataset.table.ids[0]
    for round_num in range(1, num_rounds + 1):
        optimizer = torch.optim.SGD(
            model.parameters(), local.learning_rate, local.momentum, weight_decay=local.weight_decay
        )
        stream = torch_stream(0, "batches", round_num, user)
        for rows in shuffled_batches(len(inputs), local.batch_size, local.epochs, stream):
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(
                model(inputs[rows]), labels[rows]
            ).backward()
            optimizer.step()
    return np.concatenate([p.detach().flatten().numpy() for p in model.parameters()])


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_one_user_who_holds_all_data(tmp_path, name: str, local: dict[str, float]) -> None:
    federation = Federation(PLAIN[name], num_users=1, cohort_size=1, states=tmp_path)
    federation = with_settings(federation, epochs=5, **local)
    expected = centralized(federation, 3)
    assert np.linalg.norm(expected - INITIAL) > 0.1
    np.testing.assert_allclose(federation.run(3), expected, rtol=1e-12, atol=1e-12)


def test_the_numpy_users_are_the_models() -> None:
    """The gradient that tests compare with, against autograd's."""
    hand, model = by_hand(Federation(FedAvg)), linear_model()
    inputs, labels = (torch.from_numpy(part) for part in hand.data(3))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    found = arrays_of(hand.gradient(INITIAL, 3))
    for gradient, array in zip(gradients, found.values(), strict=True):
        torch.testing.assert_close(gradient, array, rtol=1e-12, atol=1e-15)
    assert hand.loss(INITIAL, 3) == pytest.approx(float(loss.detach()), rel=1e-13)

"""Blocks of users at once against the loop, bit by bit where the bits must not depend."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays, one_thread, zeros_like
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import Examples, UserTable
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import DataError, EngineError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.models.last_layer import Head
from fedsim.privacy.central import CentralGaussian
from fedsim.training.batched_head import BatchedHeadTrainer
from fedsim.training.learner import FeaturesAsInputs
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer
from fedsim.training.user_groups import grouped
from fedsim.update_sum import FoldRule
from fedsim_strategies.fedadam import FedAdam
from fedsim_strategies.fedavg import FedAvg

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40, 1, 2, 65, 8, 1, 6, 24, 3, 2]
NUM_FEATURES, NUM_LABELS = 21, 5
SETTINGS = LocalSettings(epochs=3, batch_size=8, learning_rate=0.3, channels_last=False)
FULL = dataclasses.replace(SETTINGS, momentum=0.9, weight_decay=0.05, max_grad_norm=0.2)
ALL_SETTINGS = {
    "plain": SETTINGS,
    "momentum": dataclasses.replace(SETTINGS, momentum=0.9),
    "decay": dataclasses.replace(SETTINGS, weight_decay=0.05),
    "norm": dataclasses.replace(SETTINGS, max_grad_norm=0.1),
    "batch of all": dataclasses.replace(SETTINGS, batch_size=10**13),
    "full": FULL,
}


class Features:
    """Users with features in place of images."""

    label_names = tuple("abcde")

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        ids = tuple(f"user{i:02d}" for i in range(len(SIZES)))
        self.table = UserTable(ids, np.array(SIZES))
        self.features = torch.randn(sum(SIZES), NUM_FEATURES, generator=generator).relu()
        labels = torch.rand(sum(SIZES), NUM_LABELS, generator=generator) < 0.3
        self.labels_ = labels.to(torch.uint8)

    def users(self, split: str) -> UserTable:
        return self.table

    def labels(self, split: str, indices: np.ndarray) -> np.ndarray:
        return self.labels_.numpy()[indices].astype(bool)

    def load(self, split: str, indices: np.ndarray) -> Examples:
        rows = torch.from_numpy(indices)
        return Examples(self.features[rows], self.labels_[rows])


USERS = Features().table


def trainer(kind: type[Trainer], settings: LocalSettings = SETTINGS, bias: bool = True) -> Trainer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = Head("top.fc", torch.nn.Linear(NUM_FEATURES, NUM_LABELS, bias=bias))
    return kind(head, Features(), FeaturesAsInputs(), settings, seed=5)


def app_of(kind: type[Trainer], settings: LocalSettings, bias: bool = True) -> ClientApp:
    return client_app(trainer(kind, settings, bias))


def start(bias: bool = True) -> Arrays:
    return {n: t.detach().clone() for n, t in trainer(Trainer, bias=bias).arrays.items()}


def trained(kind, strategy, settings=SETTINGS, *, workers=1, bias=True, rounds=2, mechanism=None):
    """Return the arrays after some rounds, and what the last one reported."""
    sampling = "poisson" if mechanism else "fixed_size"
    strategy.compose(CohortSampler(USERS, 15, sampling, seed=2), mechanism)
    make = functools.partial(app_of, kind, settings, bias)
    arrays, metrics = to_record(start(bias)), {}
    with InProcessGrid(make, start(bias), num_users=len(USERS), num_workers=workers) as grid:
        for round_num in range(1, rounds + 1):
            messages = strategy.configure_train(round_num, arrays, ConfigRecord(), grid)
            arrays, metrics = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
    return to_arrays(arrays), dict(metrics)


def mechanism() -> CentralGaussian:
    return CentralGaussian(0.3, 0.5, 15, 15, 0)


@pytest.mark.parametrize("settings", [SETTINGS, FULL], ids=["plain", "full"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (FedAvg(weighting="uniform"), None),
        lambda: (FedAvg(weighting="examples"), None),
        lambda: (FedAdam(weighting="uniform"), None),
        lambda: (FedAvg(weighting="uniform"), mechanism()),
    ],
    ids=["uniform", "examples", "adam", "central dp"],
)
def test_rounds_equal_the_loops(make, settings: LocalSettings) -> None:
    results = []
    for kind in (Trainer, BatchedHeadTrainer):
        strategy, noise = make()
        results.append(trained(kind, strategy, settings, mechanism=noise))
    (loop, loop_metrics), (batched, metrics) = results
    moved = max(float((loop[name] - first).abs().max()) for name, first in start().items())
    assert moved > 0.01
    for name, tensor in loop.items():
        torch.testing.assert_close(batched[name], tensor, rtol=1e-5, atol=2e-6)
    assert metrics == pytest.approx(loop_metrics, rel=1e-4)


@pytest.mark.parametrize("settings", ALL_SETTINGS.values(), ids=ALL_SETTINGS)
@one_thread()
def test_each_users_update_is_the_loops(settings: LocalSettings) -> None:
    loop, first = trainer(Trainer, settings), start()
    for user in USERS.ids:
        with torch.no_grad():
            torch._foreach_copy_(list(loop.arrays.values()), list(first.values()))
        expected = loop.train(user, 7)
        found = block([user], settings, rule=FoldRule("uniform"))
        assert max(float(array.abs().max()) for array in found.total.values()) > 1e-3
        for name, array in loop.arrays.items():
            update = array.detach() - first[name]
            torch.testing.assert_close(found.total[name], update, rtol=1e-5, atol=1e-6)
        assert found.train_loss == pytest.approx([expected.train_loss], rel=1e-5)


def test_a_layer_without_a_bias() -> None:
    results = [
        trained(kind, FedAvg(), FULL, bias=False)[0] for kind in (Trainer, BatchedHeadTrainer)
    ]
    assert list(results[0]) == list(results[1]) == ["top.fc.weight"]
    torch.testing.assert_close(*(r["top.fc.weight"] for r in results), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("workers", [2, 3])
def test_bits_do_not_depend_on_workers(workers: int) -> None:
    one, many = (
        trained(BatchedHeadTrainer, FedAvg(), FULL, workers=number)[0] for number in (1, workers)
    )
    assert all(torch.equal(one[name], many[name]) for name in one)


@one_thread()
def block(users: list[str], settings: LocalSettings, at_once: int | None = None, rule=None):
    own = trainer(BatchedHeadTrainer, settings)
    if at_once is not None:
        own.bytes_at_once = at_once * 4 * NUM_LABELS * 32  # 21 features and a constant, padded
    total = zeros_like(own.arrays)
    return own.train_block(users, 7, start(), rule or FoldRule("uniform", 0.5), total)


@pytest.mark.parametrize("settings", [SETTINGS, FULL], ids=["plain", "full"])
def test_a_users_bits_do_not_depend_on_the_others(settings: LocalSettings) -> None:
    """The block's sum is that of users trained alone, added in the block's order, bit for bit."""
    users = list(USERS.ids)
    rule = FoldRule("uniform")  # a scaled update would be rounded before it is added here
    alone = {user: block([user], settings, rule=rule) for user in users}
    together = block(users, settings, rule=rule)
    groups = grouped(np.array(SIZES), settings, at_once=7)
    order = [users[place] for group in groups for place in group.places]
    for name, total in together.total.items():
        expected = torch.zeros_like(total)
        for user in order:
            expected += alone[user].total[name]
        assert torch.equal(total, expected)
    assert together.update_norm == [alone[user].update_norm[0] for user in users]
    assert together.num_examples == SIZES
    assert together.train_loss == pytest.approx([alone[u].train_loss[0] for u in users], rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_bits_do_not_depend_on_how_many_are_trained_at_once(at_once: int) -> None:
    few, all_of_them = block(list(USERS.ids), FULL, at_once), block(list(USERS.ids), FULL, 1000)
    assert all(torch.equal(few.total[name], all_of_them.total[name]) for name in few.total)
    assert few.train_loss == all_of_them.train_loss
    assert few.update_norm == all_of_them.update_norm


def test_one_step_is_the_closed_form() -> None:
    settings = LocalSettings(1, 8, 0.3, channels_last=False)
    result = block(["user02"], settings, rule=FoldRule("examples"))
    data, first = Features(), sum(SIZES[:2])
    x = data.features[first : first + 3].double().numpy()
    y = data.labels_[first : first + 3].double().numpy()
    weight, bias = (t.double().numpy() for t in start().values())
    logits = x @ weight.T + bias
    residual = (1 / (1 + np.exp(-logits)) - y) / (3 * NUM_LABELS)
    weight_step, bias_step = -0.3 * residual.T @ x, -0.3 * residual.sum(axis=0)
    norm = math.sqrt((weight_step**2).sum() + (bias_step**2).sum())
    np.testing.assert_allclose(result.total["top.fc.weight"], 3 * weight_step, atol=1e-7)
    np.testing.assert_allclose(result.total["top.fc.bias"], 3 * bias_step, atol=1e-7)
    assert result.update_norm == pytest.approx([norm], rel=1e-6)
    loss = (np.logaddexp(0, logits) - y * logits).mean()
    assert result.train_loss == pytest.approx([loss], rel=1e-6)
    assert result.weight == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_user_that_diverges_is_named(workers: int) -> None:
    settings = dataclasses.replace(SETTINGS, learning_rate=1e38, weight_decay=1.0)
    with pytest.raises(EngineError, match=r"^round 1, user 'user\d\d': expected an update of fin"):
        trained(BatchedHeadTrainer, FedAvg(), settings, workers=workers)


def test_features_that_are_not_finite_are_their_user_s_alone(monkeypatch) -> None:
    load = Features.load

    def broken(self: Features, split: str, indices: np.ndarray) -> Examples:
        examples = load(self, split, indices)
        examples.images[indices == 0] = math.nan  # the only image of user00, which is trained last
        return examples

    monkeypatch.setattr(Features, "load", broken)
    with pytest.raises(EngineError, match="user 'user00': expected an update of finite"):
        block(list(USERS.ids), SETTINGS)


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(DataError, match=r"round 7.*'nobody'"):
        block(["user01", "nobody"], SETTINGS)

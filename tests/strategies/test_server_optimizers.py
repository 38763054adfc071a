"""FedAvgM, FedAdagrad, FedAdam and FedYogi: the paper's formulas, torch's and Flower's own."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from fakes import TinyDataset, tiny_app, tiny_arrays
from flwr.app import ConfigRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from logistic_users import Federation

from fedsim.cohort import CohortSampler
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import ConfigError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim.strategy import SumStrategy
from fedsim_strategies.fedadagrad import FedAdagrad
from fedsim_strategies.fedadam import FedAdam
from fedsim_strategies.fedavg import FedAvg
from fedsim_strategies.fedavgm import FedAvgM
from fedsim_strategies.fedyogi import FedYogi

USERS = TinyDataset().table
UPDATES = np.random.default_rng(0).normal(size=(6, 5)) * [1e-3, 0.01, 0.1, 1.0, 10.0]


def path(strategy: SumStrategy, dtype: torch.dtype = torch.float64) -> np.ndarray:
    """Return where a strategy goes from 0 under given updates, round by round."""
    x, steps = {"w": torch.zeros(5, dtype=dtype)}, []
    for round_num, update in enumerate(UPDATES, start=1):
        x = strategy.server_step(round_num, x, {"w": torch.from_numpy(update).to(dtype)})
        steps.append(x["w"].numpy())
    return np.array(steps)


def torch_path(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> np.ndarray:
    """Return where an optimizer of torch's goes with the updates as negative gradients."""
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer, steps = make([w]), []
    for update in UPDATES:
        w.grad = -torch.from_numpy(update)
        optimizer.step()
        steps.append(w.detach().numpy().copy())
    return np.array(steps)


def paper_path(
    grown: Callable[[np.ndarray, np.ndarray], np.ndarray], beta_1: float, v: float, epsilon: float
) -> np.ndarray:
    """Algorithm 2 of Reddi et al. 2021, with a server learning rate of 0.3."""
    x, m, second, steps = np.zeros(5), np.zeros(5), np.full(5, v), []
    for update in UPDATES:
        m = beta_1 * m + (1 - beta_1) * update
        second = grown(second, update**2)
        x = x + 0.3 * m / (np.sqrt(second) + epsilon)
        steps.append(x)
    return np.array(steps)


def test_fedyogi_follows_the_paper() -> None:
    ours = FedYogi(server_learning_rate=0.3, beta_1=0.8, beta_2=0.95, epsilon=0.01)
    expected = paper_path(lambda v, s: v - 0.05 * s * np.sign(v - s), 0.8, 1e-4, 0.01)
    np.testing.assert_allclose(path(ours), expected, rtol=1e-12)


def test_fedadagrad_follows_the_paper() -> None:
    ours = FedAdagrad(server_learning_rate=0.3, beta_1=0.8, epsilon=0.01)
    expected = paper_path(lambda v, s: v + s, 0.8, 1e-4, 0.01)
    np.testing.assert_allclose(path(ours), expected, rtol=1e-12)


def test_initial_v_is_where_v_starts() -> None:
    ours = FedAdam(server_learning_rate=0.3, beta_1=0.8, beta_2=0.95, epsilon=0.01, initial_v=2.0)
    expected = paper_path(lambda v, s: 0.95 * v + 0.05 * s, 0.8, 2.0, 0.01)
    np.testing.assert_allclose(path(ours), expected, rtol=1e-12)


def test_the_pfl_preset_is_torchs_adam() -> None:
    ours = FedAdam(preset="pfl", server_learning_rate=0.3, beta_1=0.8, beta_2=0.95, epsilon=0.01)
    adam = torch_path(lambda w: torch.optim.Adam(w, lr=0.3, betas=(0.8, 0.95), eps=0.01))
    np.testing.assert_allclose(path(ours), adam, rtol=1e-12)


@pytest.mark.parametrize(("preset", "later"), [("tff", 0), ("flower", 1)])
def test_a_corrected_step_size(preset: str, later: int) -> None:
    """Kingma and Ba 2015, before section 2.1: the correction by itself, epsilon outside."""
    ours = FedAdam(preset=preset, server_learning_rate=0.3, beta_1=0.8, beta_2=0.95, epsilon=0.01)
    plain = paper_path(lambda v, s: 0.95 * v + 0.05 * s, 0.8, 0.0, 0.01)
    steps = np.diff(plain, axis=0, prepend=0)
    t = np.arange(1, len(UPDATES) + 1)[:, None] + later
    corrected = steps * np.sqrt(1 - 0.95**t) / (1 - 0.8**t)
    np.testing.assert_allclose(path(ours), np.cumsum(corrected, axis=0), rtol=1e-12)


def test_fedadagrad_is_torchs_adagrad() -> None:
    ours = FedAdagrad(server_learning_rate=0.3, epsilon=0.01, initial_v=0.5)
    adagrad = torch_path(
        lambda w: torch.optim.Adagrad(w, lr=0.3, eps=0.01, initial_accumulator_value=0.5)
    )
    np.testing.assert_allclose(path(ours), adagrad, rtol=1e-12)


def test_fedavgm_is_torchs_sgd() -> None:
    ours = FedAvgM(server_learning_rate=0.3, server_momentum=0.7)
    sgd = torch_path(lambda w: torch.optim.SGD(w, lr=0.3, momentum=0.7))
    np.testing.assert_allclose(path(ours), sgd, rtol=1e-12)


def test_fedavgm_without_momentum_is_fedavg_to_the_bit() -> None:
    ours = path(FedAvgM(server_momentum=0, server_learning_rate=0.3), torch.float32)
    assert np.array_equal(ours, path(FedAvg(server_learning_rate=0.3), torch.float32))


@pytest.fixture(scope="module")
def grid():
    with InProcessGrid(tiny_app, tiny_arrays(), num_users=len(USERS)) as engine:
        yield engine


def rounds(strategy: Strategy, grid: InProcessGrid) -> dict[str, torch.Tensor]:
    arrays = to_record(tiny_arrays())
    for round_num in (1, 2, 3, 4):
        messages = strategy.configure_train(round_num, arrays, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
    return to_arrays(arrays)


OURS_AND_FLOWERS = {
    "fedavgm": (
        lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.8),
        lambda: flower.FedAvgM(server_learning_rate=0.5, server_momentum=0.8),
    ),
    "fedadagrad": (
        lambda: FedAdagrad(preset="flower", server_learning_rate=0.05, epsilon=0.01),
        lambda: flower.FedAdagrad(eta=0.05, tau=0.01),
    ),
    "fedadam": (
        lambda: FedAdam(preset="flower", server_learning_rate=0.05, beta_1=0.8, epsilon=0.01),
        lambda: flower.FedAdam(eta=0.05, beta_1=0.8, tau=0.01),
    ),
    "fedyogi": (
        lambda: FedYogi(preset="flower", server_learning_rate=0.05, beta_1=0.8, epsilon=0.01),
        lambda: flower.FedYogi(eta=0.05, beta_1=0.8, tau=0.01),
    ),
}


@pytest.mark.parametrize("name", OURS_AND_FLOWERS)
def test_flowers_twin(grid, name: str) -> None:
    ours, theirs = (make() for make in OURS_AND_FLOWERS[name])
    cohort = CohortSampler(USERS, 10, "fixed_size", seed=1)
    ours.compose(cohort)
    a, b = rounds(ours, grid), rounds(ForeignStrategy(theirs, cohort, seed=0), grid)
    start = tiny_arrays()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=2e-6)
        assert not torch.allclose(a[key], start[key], atol=1e-3)


@pytest.mark.parametrize("make", [FedAvgM, FedAdagrad, FedAdam, FedYogi])
def test_a_resumed_optimizer_goes_on_as_before(make: type[SumStrategy], tmp_path) -> None:
    whole, first, second = make(), make(), make()
    expected = path(whole)[-1]
    x = {"w": torch.zeros(5, dtype=torch.float64)}
    strategy = first
    for round_num, update in enumerate(UPDATES, start=1):
        if round_num == 3:
            torch.save(first.state_dict(), tmp_path / "state.pt")
            second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            strategy = second
        x = strategy.server_step(round_num, x, {"w": torch.from_numpy(update)})
    assert np.array_equal(x["w"].numpy(), expected)


@pytest.mark.parametrize("make", [FedAvgM, FedAdagrad, FedAdam, FedYogi])
def test_a_step_leaves_the_round_before_s_state_as_it_was(make: type[SumStrategy]) -> None:
    """An interrupted run saves it."""
    strategy, x = make(), {"w": torch.zeros(5)}
    update = {"w": torch.ones(5)}
    strategy.server_step(1, x, dict(update))
    before = strategy.state_dict()
    copies = {key: arrays["w"].clone() for key, arrays in before.items()}
    strategy.server_step(2, x, dict(update))
    assert all(torch.equal(before[key]["w"], copy) for key, copy in copies.items())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_of_fedadam_goes_on_with_the_same_bits(tmp_path, workers: int) -> None:
    make = functools.partial(FedAdam, preset="flower")
    expected = Federation(make).run(4)
    federation = Federation(make, workers=workers)
    with federation.grid() as grid:
        strategy = federation.strategy()
        x = federation.rounds(strategy, grid, range(1, 3))
        torch.save(strategy.state_dict(), tmp_path / "state.pt")
    again = federation.strategy()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    with federation.grid() as grid:
        assert np.array_equal(federation.rounds(again, grid, range(3, 5), start=x), expected)


@pytest.mark.parametrize("make", [FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi])
def test_a_scheduled_rate_scales_each_round_s_step(make: type[SumStrategy]) -> None:
    schedule = {"schedule": "linear", "peak": 0.4, "last": 0.1, "warmup_rounds": 2, "num_rounds": 5}
    rates = np.array([0.2, 0.4, 0.3, 0.2, 0.1, 0.1])[:, None]
    scheduled = np.diff(path(make(server_learning_rate=schedule)), axis=0, prepend=0)
    constant = np.diff(path(make(server_learning_rate=1.0)), axis=0, prepend=0)
    np.testing.assert_allclose(scheduled, rates * constant, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "parameters", "message"),
    [
        (
            FedAdam,
            {"preset": "keras"},
            r"strategy\.preset: expected one of paper, flower, tff",
        ),
        (FedYogi, {"preset": "tff"}, r"strategy\.preset: expected one of paper, flower, found"),
        (
            FedAdam,
            {"preset": "flower", "bias_correction": "none"},
            r"strategy\.bias_correction: expected 'step_size_next', as strategy\.preset = flower",
        ),
        (FedYogi, {"preset": "paper", "initial_v": 1.0}, r"strategy\.initial_v: expected 1e-06"),
        (
            FedAdagrad,
            {"initial_v": -1.0},
            r"strategy\.initial_v: expected a finite number at",
        ),
        (FedAdam, {"bias_correction": "all"}, r"strategy\.bias_correction: expected one of none"),
        (
            FedAdam,
            {"beta_1": 1.0},
            r"strategy\.beta_1: expected .* 0 and below 1, found 1",
        ),
        (FedYogi, {"beta_2": -0.1}, r"strategy\.beta_2: expected"),
        (FedAdagrad, {"epsilon": 0}, r"strategy\.epsilon: expected a finite number above 0"),
        (FedAvgM, {"server_momentum": "much"}, r"strategy\.server_momentum: expected .*'much'"),
        (FedAvg, {"server_learning_rate": 0}, r"strategy\.server_learning_rate: expected"),
    ],
)
def test_parameters_out_of_range_are_refused(make, parameters, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**parameters)


def test_a_preset_and_the_same_values_agree() -> None:
    both = FedAdam(preset="flower", initial_v=0, bias_correction="step_size_next")
    assert np.array_equal(path(both), path(FedAdam(preset="flower")))

"""The strategies against their papers' formulas and against Flower's own."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fakes import TinyDataset, tiny_app, tiny_arrays
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedsim.arrays import l2_norm
from fedsim.cohort import CohortSampler
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import ConfigError, EngineError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim.privacy.central import CentralGaussian
from fedsim.strategy import SumStrategy
from fedsim_strategies.fedadam import FedAdam
from fedsim_strategies.fedavg import FedAvg

USERS = TinyDataset().table


def cohort(size: int = 10, sampling: str = "fixed_size") -> CohortSampler:
    return CohortSampler(USERS, size, sampling, seed=1)


@pytest.fixture(scope="module")
def grid():
    with InProcessGrid(tiny_app, tiny_arrays(), num_users=len(USERS)) as engine:
        yield engine


def rounds(strategy: Strategy, grid: InProcessGrid, num_rounds: int) -> dict[str, torch.Tensor]:
    arrays = to_record(tiny_arrays())
    for round_num in range(1, num_rounds + 1):
        messages = strategy.configure_train(round_num, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        arrays, metrics = strategy.aggregate_train(round_num, replies)
        assert isinstance(metrics, MetricRecord)
    return to_arrays(arrays)


def test_fedavg_is_flowers_fedavg(grid) -> None:
    ours = FedAvg(weighting="examples")
    ours.compose(cohort())
    theirs = ForeignStrategy(flower.FedAvg(), cohort(), seed=0)
    a, b = rounds(ours, grid, 3), rounds(theirs, grid, 3)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_weighting_matters(grid) -> None:
    results = []
    for weighting in ("uniform", "examples"):
        strategy = FedAvg(weighting=weighting)
        strategy.compose(cohort())
        results.append(rounds(strategy, grid, 1))
    assert any(not torch.allclose(results[0][name], results[1][name]) for name in results[0])


def test_a_server_learning_rate_scales_the_step(grid) -> None:
    start = tiny_arrays()
    moved = []
    for rate in (1.0, 0.5):
        strategy = FedAvg(server_learning_rate=rate)
        strategy.compose(cohort())
        stepped = rounds(strategy, grid, 1)
        moved.append({name: stepped[name] - start[name] for name in start})
    for name in start:
        torch.testing.assert_close(moved[1][name], 0.5 * moved[0][name], rtol=1e-4, atol=1e-7)


def test_fedadam_follows_the_paper() -> None:
    """Algorithm 2 of Reddi et al. 2021, in float64, on given updates."""
    rng = np.random.default_rng(0)
    strategy = FedAdam(server_learning_rate=0.3, beta_1=0.8, beta_2=0.95, epsilon=0.01)
    x = {"w": torch.zeros(5, dtype=torch.float64)}
    m, v, expected = np.zeros(5), np.full(5, 0.01**2), np.zeros(5)
    for round_num in range(1, 6):
        update = rng.normal(size=5)
        x = strategy.server_step(round_num, x, {"w": torch.from_numpy(update)})
        m = 0.8 * m + 0.2 * update
        v = 0.95 * v + 0.05 * update**2
        expected = expected + 0.3 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(x["w"].numpy(), expected, rtol=1e-12)


def mechanism(noise_multiplier: float, clipping_norm: float, **kwargs) -> CentralGaussian:
    given = {"cohort_size": 10, "noise_cohort_size": 10, "seed": 5, **kwargs}
    return CentralGaussian(clipping_norm, noise_multiplier, **given)


def test_no_noise_and_a_huge_clipping_norm_give_the_non_private_bits(grid) -> None:
    results = []
    for private in (None, mechanism(0.0, 1e30)):
        strategy = FedAvg(weighting="uniform")
        strategy.compose(cohort(), private)
        results.append(rounds(strategy, grid, 3))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_the_mean_is_over_the_expected_cohort_and_bounded(grid) -> None:
    """Poisson cohorts differ in size; the denominator does not."""
    start, sizes = tiny_arrays(), set()
    for round_num in range(1, 6):
        strategy = FedAvg(weighting="uniform")
        sampler = cohort(sampling="poisson")
        strategy.compose(sampler, mechanism(0.0, 0.01))
        messages = strategy.configure_train(round_num, to_record(start), ConfigRecord(), grid)
        arrays, metrics = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
        moved = l2_norm([t - start[name] for name, t in to_arrays(arrays).items()])
        size = len(sampler.draw(round_num))
        assert metrics["num-clients"] == size
        assert moved <= size * 0.01 / 10 * (1 + 1e-3)
        assert moved == pytest.approx(metrics["diagnostic-sum-norm"] / 10, rel=1e-2)
        sizes.add(size)
        assert metrics["diagnostic-clipped-share"] == 1
    assert len(sizes) > 2


@pytest.mark.parametrize(("cohort_size", "noise_cohort_size"), [(10, 10), (10, 40)])
def test_measured_noise_is_the_noise_that_is_claimed(cohort_size, noise_cohort_size) -> None:
    private = mechanism(1.5, 0.2, cohort_size=cohort_size, noise_cohort_size=noise_cohort_size)
    total = {"w": torch.zeros(400, 500), "scalar": torch.tensor(0.0)}
    private.release(total, [], 1)
    measured = float(total["w"].double().std())
    # sigma * S * C / C~ on the sum, sigma * S / C~ on the mean; 200,000 draws: 0.16 %.
    assert measured == pytest.approx(1.5 * 0.2 * cohort_size / noise_cohort_size, rel=0.006)
    assert measured == pytest.approx(private.noise_stddev_sum, rel=0.006)
    assert private.noise_stddev_sum / private.denominator == pytest.approx(
        private.noise_stddev_mean
    )
    assert abs(float(total["w"].double().mean())) < 4 * measured / np.sqrt(200_000)
    assert float(total["scalar"]) != 0


def test_noise_is_fresh_every_round_and_the_same_for_the_same_round() -> None:
    draws = []
    for round_num in (1, 1, 2):
        total = {"w": torch.zeros(1000)}
        mechanism(1.0, 1.0).release(total, [], round_num)
        draws.append(total["w"])
    assert torch.equal(draws[0], draws[1])
    assert abs(float(torch.corrcoef(torch.stack([draws[0], draws[2]]))[0, 1])) < 0.15


def test_the_anchor_of_flair() -> None:
    """N = 41,131, C~ = 5,000, C = 200, S = 0.1, sigma = 17.36: a std of 3.472e-4 on the mean."""
    private = mechanism(17.36, 0.1, cohort_size=200, noise_cohort_size=5000)
    assert private.noise_stddev_mean == pytest.approx(3.472e-4, rel=1e-3)


def test_an_empty_cohort_is_a_round_of_noise(grid) -> None:
    sampler = CohortSampler(USERS, 1, "poisson", seed=0)
    empty = next(r for r in range(1, 50) if not len(sampler.draw(r)))
    start = tiny_arrays()
    for private, moves in ((None, False), (mechanism(1.0, 0.1), True)):
        strategy = FedAvg(weighting="uniform")
        strategy.compose(sampler, private)
        messages = strategy.configure_train(empty, to_record(start), ConfigRecord(), grid)
        assert messages == []
        arrays, _ = strategy.aggregate_train(empty, grid.send_and_receive(messages))
        after = to_arrays(arrays)
        assert any(not torch.equal(after[name], start[name]) for name in start) == moves


def test_weights_by_examples_are_refused_under_central_dp() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.weighting: expected 'uniform'"):
        FedAvg(weighting="examples").compose(cohort(), mechanism(1.0, 1.0))


class _Returns(SumStrategy):
    def __init__(self, change: Callable[[dict], dict]) -> None:
        super().__init__()
        self._change = change

    def server_step(self, round_num, arrays, update):
        return self._change({name: a.clone() for name, a in arrays.items()})


def _without(arrays: dict) -> dict:
    del arrays["3.bias"]
    return arrays


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, r"difference in \['3.bias'\]"),
        (lambda a: {**a, "3.bias": torch.zeros(7)}, r"'3.bias' of shape \(3,\), found \(7,\)"),
        (lambda a: {**a, "3.bias": torch.full((3,), float("nan"))}, "NaN or infinity in '3.bias'"),
    ],
)
def test_a_strategy_s_own_faults_are_named(grid, change, message: str) -> None:
    strategy = _Returns(change)
    strategy.compose(cohort())
    with pytest.raises(EngineError, match=rf"strategy _Returns, round 1: .*{message}"):
        rounds(strategy, grid, 1)


class _Foreign(flower.FedAvg):
    def __init__(self, returns: object) -> None:
        super().__init__()
        self._returns = returns

    def aggregate_train(self, server_round, replies):
        list(replies)
        return self._returns


def _in_place(arrays: dict) -> dict:
    for tensor in arrays.values():
        tensor.add_(1.0)
    return arrays


class _InPlace(SumStrategy):
    def server_step(self, round_num, arrays, update):
        return _in_place(arrays)


def test_a_server_step_may_not_write_into_the_best_round_s_arrays(grid) -> None:
    strategy = _InPlace()
    strategy.compose(cohort())
    with pytest.raises(EngineError, match="step to leave the global arrays"):
        rounds(strategy, grid, 1)


class _Random(SumStrategy):
    def server_step(self, round_num, arrays, update):
        # In float64, and with a draw from the global generator: both are put right.
        return {name: a.double() + torch.randn(a.shape) for name, a in arrays.items()}


def test_a_server_step_that_draws_is_a_function_of_the_seed(grid) -> None:
    results = []
    for draws in (0, 5):
        torch.rand(draws)
        strategy = _Random()
        strategy.compose(cohort())
        results.append(rounds(strategy, grid, 2))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert results[0]["3.bias"].dtype == torch.float32


def test_a_strategy_that_takes_the_sum_into_its_own_hands_gets_no_central_dp() -> None:
    class Own(_InPlace):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, replies)

    with pytest.raises(ConfigError, match="which overrides aggregate_train"):
        Own().compose(cohort(), mechanism(1.0, 1.0))


def test_a_foreign_state_survives_a_checkpoint_file(tmp_path) -> None:
    class Scalars(flower.FedAvg):
        def __init__(self):
            super().__init__()
            self.average = np.float64(0.5)
            self.history = [np.float32(1.5), (1, "two", None)]
            self.moments = {"w": np.arange(3.0)}

    strategy = ForeignStrategy(Scalars(), cohort(), seed=0)
    torch.save(strategy.state_dict(), tmp_path / "state.pt")
    again = Scalars()
    again.average, again.history, again.moments = None, None, None
    resumed = ForeignStrategy(again, cohort(), seed=0)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.average == 0.5
    assert again.history == [1.5, (1, "two", None)]
    np.testing.assert_array_equal(again.moments["w"], np.arange(3.0))


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (None, "found NoneType"),
        ((None, None), "expected arrays, found None"),
        ((ArrayRecord(), None), "difference in"),
    ],
)
def test_a_foreign_strategy_s_faults_are_named(grid, returns, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        rounds(ForeignStrategy(_Foreign(returns), cohort(), seed=0), grid, 1)


def test_a_foreign_strategy_that_waits_for_more_nodes_does_not_hang(grid, monkeypatch) -> None:
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: None)
    waiting = ForeignStrategy(flower.FedAvg(min_train_nodes=11), cohort(10), seed=0)
    with pytest.raises(EngineError, match="found it waiting for more nodes"):
        rounds(waiting, grid, 1)


def test_a_strategy_with_its_own_loop_is_refused() -> None:
    class OwnLoop(flower.FedAvg):
        def start(self, *args, **kwargs):
            return None

    with pytest.raises(ConfigError, match=r"overrides start\(\)"):
        ForeignStrategy(OwnLoop(), cohort(), seed=0)


def test_flowers_fedadam_keeps_its_moments_over_a_resume(grid) -> None:
    whole = rounds(ForeignStrategy(flower.FedAdam(), cohort(), seed=0), grid, 3)
    arrays, state = to_record(tiny_arrays()), None
    for round_num in (1, 2, 3):
        strategy = ForeignStrategy(flower.FedAdam(), cohort(), seed=0)
        if state is not None:
            strategy.load_state_dict(state)
        messages = strategy.configure_train(round_num, arrays, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
        state = strategy.state_dict()
    resumed = to_arrays(arrays)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)

"""On Ray: the bits of the in-process run, whatever dies on the way; loopback only; nothing left."""

import contextlib
import functools
import importlib.util
import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from fakes import TinyDataset, app_always_killed, no_app, tiny_app, tiny_arrays
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedMedian
from ray_apps import (
    ALWAYS_DIES,
    DIES_ONCE,
    FAILS,
    KIND,
    MARKER,
    PRIVATE,
    VICTIM,
    app_of_all_kinds,
)

from fedsim.build_engine import _app_elsewhere
from fedsim.cohort import CohortSampler
from fedsim.config import RunConfig
from fedsim.engines.in_process import InProcessGrid
from fedsim.engines.ray_connection import connect, import_ray
from fedsim.engines.ray_grid import RayGrid
from fedsim.engines.ray_room import Share
from fedsim.engines.ray_trial import Trial
from fedsim.engines.user_grid import UserGrid
from fedsim.errors import ConfigError, EngineError
from fedsim.evaluation.scoring import SplitScorer
from fedsim.experiment import processes_for
from fedsim.flower_seam import ensure_task_identity, to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim.jobs import Job
from fedsim.privacy.central import CentralGaussian
from fedsim_strategies.fedavg import FedAvg

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed (fedsim[ray])"
)
USERS = TinyDataset().table
SMALL = Share(cpus=0.25)


def sampler() -> CohortSampler:
    return CohortSampler(USERS, 12, "fixed_size", seed=3)


def user_of(round_num: int, position: int) -> str:
    return USERS.ids[int(sampler().draw(round_num)[position])]


def averaging(mechanism: CentralGaussian | None = None) -> FedAvg:
    strategy = FedAvg(weighting="uniform" if mechanism else "examples")
    strategy.compose(sampler(), mechanism)
    return strategy


def train(strategy: Any, grid: UserGrid, rounds: int = 3, **asked: Any) -> dict[str, torch.Tensor]:
    arrays = to_record(tiny_arrays())
    for round_num in range(1, rounds + 1):
        messages = strategy.configure_train(round_num, arrays, ConfigRecord(asked), grid)
        arrays, _ = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
    return to_arrays(arrays)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def here() -> Iterator[UserGrid]:
    with InProcessGrid(app_of_all_kinds, tiny_arrays(), num_users=len(USERS)) as grid:
        yield grid


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ensure_task_identity()  # as a Grid does, so that a test may be run by itself
    disconnect = connect(None)
    yield import_ray()
    disconnect()


def actors(number: int) -> RayGrid:
    return RayGrid(app_of_all_kinds, num_users=len(USERS), share=SMALL, num_actors=number)


@pytest.fixture(scope="module")
def two(ray: Any) -> Iterator[RayGrid]:
    with actors(2) as grid:
        yield grid


@pytest.fixture(scope="module")
def one(ray: Any) -> Iterator[RayGrid]:
    with actors(1) as grid:
        yield grid


@pytest.fixture(params=["one", "two"])
def there(request: pytest.FixtureRequest) -> RayGrid:
    grid: RayGrid = request.getfixturevalue(request.param)
    return grid


@needs_ray
def test_arrays_are_those_of_the_in_process_run(here: UserGrid, there: RayGrid) -> None:
    assert equal(train(averaging(), there), train(averaging(), here))


@needs_ray
def test_scores_are_those_of_the_in_process_run(here: UserGrid, there: RayGrid) -> None:
    record = to_record(tiny_arrays())
    logits = [
        SplitScorer(grid, TinyDataset(), "val", batch_size=7).logits(record)
        for grid in (here, there)
    ]
    assert np.array_equal(*logits)


@needs_ray
def test_central_dp(here: UserGrid, there: RayGrid) -> None:
    results = [
        train(averaging(CentralGaussian(0.1, 1.0, 12, 12, seed=1)), grid) for grid in (here, there)
    ]
    assert equal(*results)


@needs_ray
def test_example_level_dp(here: UserGrid, there: RayGrid) -> None:
    results = [train(averaging(), grid, **{KIND: PRIVATE}) for grid in (here, there)]
    assert equal(*results)
    assert not equal(results[0], train(averaging(), here))


@needs_ray
def test_foreign_strategies_get_single_users(here: UserGrid, there: RayGrid) -> None:
    results = [
        train(ForeignStrategy(FedMedian(), sampler(), seed=0), grid) for grid in (here, there)
    ]
    assert equal(*results)


@needs_ray
def test_a_strategy_may_send_each_user_arrays_of_their_own(here: UserGrid, two: RayGrid) -> None:
    results = []
    for grid in (here, two):
        strategy, replies = ForeignStrategy(FedMedian(), sampler(), seed=0), []
        record = to_record(tiny_arrays())
        for number, message in enumerate(strategy.configure_train(1, record, ConfigRecord(), grid)):
            own = {name: tensor + number for name, tensor in tiny_arrays().items()}
            [key] = message.content.array_records
            message.content[key] = to_record(own)
            replies.append(message)
        answered = list(grid.send_and_receive(replies))
        results.append([to_arrays(next(iter(r.content.array_records.values()))) for r in answered])
    assert all(map(equal, *results))
    assert not equal(results[0][0], results[0][1])


@needs_ray
def test_replies_may_be_written_to(two: RayGrid) -> None:
    """Ray's store hands out memory that must not be."""
    messages = averaging().configure_train(1, to_record(tiny_arrays()), ConfigRecord(), two)
    for reply in two.send_and_receive(messages).drain():
        for record in reply.content.array_records.values():
            for tensor in to_arrays(record).values():
                tensor.add_(1)


@needs_ray
def test_the_grid_goes_on_after_a_reader_that_stopped_early(here: UserGrid, two: RayGrid) -> None:
    messages = averaging().configure_train(1, to_record(tiny_arrays()), ConfigRecord(), two)
    next(two.send_and_receive(messages).drain())
    assert equal(train(averaging(), two), train(averaging(), here))


@needs_ray
def test_a_dead_actor_is_replaced(here: UserGrid, ray: Any, tmp_path: Path) -> None:
    asked = {KIND: DIES_ONCE, VICTIM: user_of(2, 5), MARKER: str(tmp_path / "died")}
    with actors(2) as grid:
        result = train(averaging(), grid, **asked)
        assert (tmp_path / "died").exists()
        assert equal(result, train(averaging(), here))
        assert grid.figures() == {"num_workers_replaced": 1}
        assert grid.figures() == {}
        assert grid.num_workers_replaced == 1


@needs_ray
@pytest.mark.slow
def test_a_user_that_always_kills_its_actor_ends_the_run(ray: Any) -> None:
    victim = user_of(1, 0)
    with actors(2) as grid, pytest.raises(EngineError, match=f"killed 4 times.*{victim}"):
        train(averaging(), grid, **{KIND: ALWAYS_DIES, VICTIM: victim})


@needs_ray
def test_a_failing_client_is_named(two: RayGrid) -> None:
    victim = user_of(1, 3)
    with pytest.raises(EngineError, match=rf"(?s)round 1, user '{victim}'.*no such thing"):
        train(averaging(), two, **{KIND: FAILS, VICTIM: victim})


@needs_ray
def test_an_app_that_can_not_be_built_says_why(ray: Any) -> None:
    with (
        RayGrid(no_app, num_users=24, share=SMALL, num_actors=1) as grid,
        pytest.raises(ConfigError, match=r"^no model today$"),
    ):
        train(averaging(), grid)


@needs_ray
def test_an_actor_that_fits_nowhere_is_an_error(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.engines.ray_pool.SECONDS_TO_FIND_ROOM", 0.1)
    with (
        RayGrid(tiny_app, num_users=24, share=Share(cpus=999), num_actors=1) as grid,
        pytest.raises(EngineError, match=r"room for an actor of 999 CPUs.*cpus_per_worker"),
    ):
        train(averaging(), grid)


@needs_ray
def test_memory_decides_how_many_actors_there_are(ray: Any) -> None:
    """An actor that needs 60 % of the memory has no room for another."""
    beside = int(0.6 * ray.cluster_resources()["memory"])
    trial = Trial(tiny_app, USERS.ids[0], tiny_arrays(), bytes_beside=beside)
    needed = trial.memory(ray, SMALL)
    assert beside + 50e6 < needed < beside + 2e9  # torch alone takes 100 MB
    assert Share(cpus=0.25, memory=needed).num_in(ray.cluster_resources()) == 1
    assert Share(cpus=0.25, memory=needed - beside).num_in(ray.cluster_resources()) > 1


@needs_ray
def test_a_user_on_whom_memory_can_not_be_measured_is_named(ray: Any) -> None:
    victim = USERS.ids[0]
    trial = Trial(functools.partial(app_always_killed, victim), victim, tiny_arrays())
    with pytest.raises(EngineError, match=rf"user '{victim}'.* died \([^{{].*set engine\.workers"):
        trial.memory(ray, SMALL)


@needs_ray
def test_everything_listens_on_loopback_only(two: RayGrid) -> None:
    train(averaging(), two, rounds=1)  # the actors are up
    found: dict[str, list[Any]] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            listening = [
                ipaddress.ip_address(connection.laddr.ip)
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            found.setdefault(process.name(), []).extend(listening)
    assert all(found[name] for name in ("raylet", "gcs_server", "ray::RayActor"))
    addresses = [ip for ips in found.values() for ip in ips]
    assert all((getattr(ip, "ipv4_mapped", None) or ip).is_loopback for ip in addresses)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install 'fedsim\[ray\]'"):
        RayGrid(tiny_app, num_users=24)


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_answers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_ray(), "is_initialized", lambda: False)
    with pytest.raises(EngineError, match=rf"engine\.address.*{address}.*nobody answers"):
        RayGrid(tiny_app, num_users=24, address=address)


def test_what_users_keep_needs_the_run_s_folder(tmp_path: Path) -> None:
    scaffold = RunConfig.model_validate({"name": "x", "strategy": {"name": "scaffold"}})
    with pytest.raises(EngineError, match="file system that the machines share"):
        _app_elsewhere(scaffold, tmp_path / "not there" / "states")


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"address": "auto"}, "address: expected none with in_process, found auto"),
        ({"name": "in_process", "gpus_per_worker": 1}, "gpus_per_worker: expected none"),
        ({"name": "ray", "gpus_per_worker": 1.5}, "a fraction of one GPU or a whole number"),
        ({"name": "ray", "address": "local"}, "address"),  # it would not be bound to loopback
    ],
)
def test_settings_that_make_no_sense(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate({"name": "x", "engine": engine})


def test_runs_go_side_by_side_on_a_shared_cluster() -> None:
    def jobs(**engine: Any) -> list[Job]:
        config = RunConfig.model_validate({"name": "x", "engine": {"name": "ray", **engine}})
        return [Job(f"seed{seed}", config) for seed in range(2)]

    assert processes_for(jobs())[0] == 1
    assert processes_for(jobs(workers=3))[0] == 1
    assert processes_for(jobs(address="auto"))[0] == 1
    assert processes_for(jobs(address="auto", workers=3)) == (2, 3)

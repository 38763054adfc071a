"""The same bits for any number of workers, whatever dies on the way."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from fakes import (
    TinyDataset,
    app_always_killed,
    app_killed_once,
    app_that_diverges,
    app_that_fails,
    no_app,
    tiny_app,
    tiny_arrays,
)
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedMedian, Krum

from fedsim.cohort import CohortSampler
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import ConfigError, EngineError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim.strategy import SumStrategy
from fedsim_strategies.fedadam import FedAdam
from fedsim_strategies.fedavg import FedAvg

USERS = TinyDataset().table


def sampler(cohort_size: int = 12, sampling: str = "fixed_size") -> CohortSampler:
    return CohortSampler(USERS, cohort_size, sampling, seed=3)


def grid(num_workers: int, make_app=tiny_app) -> InProcessGrid:
    return InProcessGrid(make_app, tiny_arrays(), num_users=len(USERS), num_workers=num_workers)


def train(strategy, engine: InProcessGrid, rounds: int = 3) -> dict[str, torch.Tensor]:
    arrays = to_record(tiny_arrays())
    for round_num in range(1, rounds + 1):
        messages = strategy.configure_train(round_num, arrays, ConfigRecord(), engine)
        arrays, _ = strategy.aggregate_train(round_num, engine.send_and_receive(messages))
    return to_arrays(arrays)


def composed(strategy: SumStrategy, **kwargs) -> SumStrategy:
    strategy.compose(sampler(**kwargs))
    return strategy


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def reference() -> dict[str, torch.Tensor]:
    with grid(1) as engine:
        return train(composed(FedAvg(weighting="examples")), engine)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_bits_do_not_depend_on_workers(num_workers: int, reference) -> None:
    with grid(num_workers) as engine:
        assert equal(train(composed(FedAvg(weighting="examples")), engine), reference)


def test_bits_do_not_depend_on_torch_threads(reference) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with grid(1) as engine:
            assert equal(train(composed(FedAvg(weighting="examples")), engine), reference)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_round_equals_the_plain_definition() -> None:
    """One user at a time, in double precision, from a list: the textbook's FedAvg."""
    strategy = composed(FedAvg(weighting="examples"))
    with grid(1) as engine:
        ours = train(strategy, engine, rounds=1)
    start, total, weight = tiny_arrays(), None, 0
    from fakes import tiny_trainer

    trainer = tiny_trainer()
    for index in sampler().draw(1):
        for name, tensor in trainer.arrays.items():
            tensor.data.copy_(start[name])
        n = trainer.train(USERS.ids[index], 1).num_examples
        update = {k: n * (v.double() - start[k]) for k, v in trainer.arrays.items()}
        total = update if total is None else {k: total[k] + update[k] for k in total}
        weight += n
    for name, tensor in ours.items():
        expected = start[name] + total[name] / weight
        torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-6)


def test_a_killed_worker_changes_nothing(reference, tmp_path: Path) -> None:
    victim = USERS.ids[int(sampler().draw(2)[5])]
    make_app = functools.partial(app_killed_once, victim, tmp_path / "killed")
    with grid(2, make_app) as engine:
        result = train(composed(FedAvg(weighting="examples")), engine)
    assert (tmp_path / "killed").exists()
    assert equal(result, reference)


def test_a_user_that_always_kills_its_worker_ends_the_run() -> None:
    victim = USERS.ids[int(sampler().draw(1)[0])]
    with (
        grid(2, functools.partial(app_always_killed, victim)) as engine,
        pytest.raises(EngineError, match="killed 4 times"),
    ):
        train(composed(FedAvg()), engine)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_failing_client_is_named(num_workers: int) -> None:
    victim = USERS.ids[int(sampler().draw(1)[3])]
    with (
        grid(num_workers, functools.partial(app_that_fails, victim)) as engine,
        pytest.raises(
            EngineError, match=rf"(?s)round 1, user '{victim}'.*no such thing.*Traceback"
        ),
    ):
        train(composed(FedAvg()), engine)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_app_that_can_not_be_built_says_why(num_workers: int) -> None:
    """In a worker too, where it would otherwise only break the pool."""
    with pytest.raises(ConfigError, match="no model today"), grid(num_workers, no_app) as engine:
        train(composed(FedAvg()), engine)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_records_of_a_message_keep_their_order(num_workers: int) -> None:
    """A strategy may send more than the model: the first arrays are the model's everywhere."""
    with grid(num_workers) as engine:
        strategy = composed(FedAvg(weighting="examples"))
        plain = train(strategy, engine, rounds=1)
        arrays = to_record(tiny_arrays())
        messages = strategy.configure_train(1, arrays, ConfigRecord(), engine)
        for message in messages:
            control = to_record({name: torch.zeros_like(t) for name, t in plain.items()})
            message.content["control"] = control
        result, _ = strategy.aggregate_train(1, engine.send_and_receive(messages))
    assert equal(to_arrays(result), plain)


def test_a_diverging_client_is_named() -> None:
    victim = USERS.ids[int(sampler().draw(1)[3])]
    with (
        grid(1, functools.partial(app_that_diverges, victim)) as engine,
        pytest.raises(EngineError, match=rf"{victim}.*NaN.*3\.bias"),
    ):
        train(composed(FedAvg()), engine)


def test_the_grid_goes_on_after_a_reader_that_stopped_early(reference) -> None:
    with grid(2) as engine:
        strategy = composed(FedAvg(weighting="examples"))
        messages = strategy.configure_train(1, to_record(tiny_arrays()), ConfigRecord(), engine)
        next(engine.send_and_receive(messages).drain())
        assert equal(train(strategy, engine), reference)


def test_state_of_a_server_optimizer_survives() -> None:
    with grid(1) as engine:
        whole = train(composed(FedAdam()), engine, rounds=3)
        first, second = composed(FedAdam()), composed(FedAdam())
        arrays = to_record(tiny_arrays())
        for round_num in (1, 2, 3):
            strategy = first if round_num < 3 else second
            if round_num == 3:
                second.load_state_dict(first.state_dict())
            messages = strategy.configure_train(round_num, arrays, ConfigRecord(), engine)
            arrays, _ = strategy.aggregate_train(round_num, engine.send_and_receive(messages))
    assert equal(to_arrays(arrays), whole)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("make", [FedMedian, lambda: Krum(num_malicious_nodes=2)])
def test_flowers_strategies_get_what_they_expect(make, num_workers: int) -> None:
    """Against Flower's own arithmetic on a plain list of plain arrays, bit for bit."""
    with grid(num_workers) as engine:
        ours = train(ForeignStrategy(make(), sampler(), seed=0), engine, rounds=2)
    with grid(1) as engine:
        arrays = to_record(tiny_arrays())
        for round_num in (1, 2):
            ordered = ForeignStrategy(make(), sampler(), seed=0)
            messages = ordered.configure_train(round_num, arrays, ConfigRecord(), engine)
            plain = [_plain(reply) for reply in engine.send_and_receive(messages)]
            result, _ = make().aggregate_train(round_num, plain)
            arrays = to_record(to_arrays(result))
    assert equal(ours, to_arrays(arrays))


def _plain(reply: Message) -> Message:
    """Replace live arrays by serialized ones."""
    content = RecordDict(dict(reply.content.items()))
    for key, record in reply.content.array_records.items():
        plain = ArrayRecord([a.numpy() for a in record.values()])
        content[key] = ArrayRecord(dict(zip(record, plain.values(), strict=True)))
    reply.content = content
    return reply


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            from flwr.app import ConfigRecord
            from test_in_process import FedAvg, composed, grid, tiny_arrays, to_record
            if __name__ == "__main__":
                engine, strategy = grid(2), composed(FedAvg())
                arrays = to_record(tiny_arrays())
                messages = strategy.configure_train(1, arrays, ConfigRecord(), engine)
                list(engine.send_and_receive(messages).drain())
                print(*engine._executor._pool._processes, flush=True)
                time.sleep(60)
            """
        )
    )
    tests = Path(__file__).parents[1]
    paths = [tests, tests / "engines", tests.parent, tests.parent / "strategies"]
    parent = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.05)

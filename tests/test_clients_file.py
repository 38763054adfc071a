"""What each user reported, against users trained one after another."""

import csv
from pathlib import Path

import pytest
import torch
from fakes import TinyDataset, tiny_app, tiny_arrays, tiny_trainer
from flwr.app import ConfigRecord
from flwr.serverapp import strategy as flower

from fedsim.arrays import l2_norm
from fedsim.clients_file import COLUMNS, ClientsFile
from fedsim.cohort import CohortSampler
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import CheckpointError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim_strategies.fedavg import FedAvg

USERS = TinyDataset().table
COHORT = CohortSampler(USERS, 10, "fixed_size", seed=1)


def strategy_named(name: str):
    if name == "foreign":
        return ForeignStrategy(flower.FedMedian(), COHORT, seed=0)
    strategy = FedAvg(weighting="uniform")
    strategy.compose(COHORT)
    return strategy


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "clients.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("name", "workers"), [("ours", 1), ("ours", 2), ("foreign", 2)])
def test_rows_are_what_users_report_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, workers: int
) -> None:
    monkeypatch.setattr("fedsim.cohort_strategy.NUM_BLOCKS", 4)  # two or three users in each
    strategy, clients = strategy_named(name), ClientsFile(tmp_path, USERS)
    start = to_record(tiny_arrays())
    with InProcessGrid(tiny_app, tiny_arrays(), num_users=24, num_workers=workers) as grid:
        messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
        replies = clients.watch(1, messages, grid.send_and_receive(messages))
        watched, _ = strategy.aggregate_train(1, replies)
        clients.write()
        messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
        plain, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    unchanged = to_arrays(plain)
    assert all(torch.equal(a, unchanged[k]) for k, a in to_arrays(watched).items())
    found = rows(tmp_path)
    assert tuple(found[0]) == COLUMNS
    assert {row["user"] for row in found} == {USERS.ids[p] for p in COHORT.draw(1)}
    assert len(found) == 10
    for row in found:
        trainer = tiny_trainer()
        result = trainer.train(row["user"], 1)
        norm = l2_norm(trainer.arrays[k].detach() - a for k, a in tiny_arrays().items())
        assert row["round"] == "1"
        assert int(row["num_images"]) == result.num_examples
        assert float(row["diagnostic_train_loss"]) == pytest.approx(result.train_loss, rel=1e-6)
        assert float(row["diagnostic_update_norm"]) == pytest.approx(norm, rel=1e-5)


def test_rounds_that_are_done_again_are_dropped_and_so_is_a_cut_line(tmp_path: Path) -> None:
    whole = ",".join(COLUMNS) + '\n1,a,2,0.5,1\n2,"b,c",3,,2\n3,a,2,0.25,1\n'
    path = tmp_path / "clients.csv"
    for cut in ("", "3,b", "3,b,4,0.1,1", "3,", '3,"b', "ro"):
        path.write_text(whole + cut)
        ClientsFile(tmp_path, USERS, last_round=2)
        assert path.read_text() == "".join(whole.splitlines(keepends=True)[:3])
    ClientsFile(tmp_path, USERS)
    assert path.read_text() == ",".join(COLUMNS) + "\n"


def test_a_disk_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    clients = ClientsFile(tmp_path, USERS)
    (tmp_path / "clients.csv").unlink()
    (tmp_path / "clients.csv").mkdir()
    with pytest.raises(CheckpointError, match="expected to append a round's users"):
        clients.write()

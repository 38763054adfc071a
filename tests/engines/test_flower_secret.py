"""Who knows the seed of a private deployment can tell neither its noise nor its cohorts."""

import copy
import math
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_flower import FakeFlower
from flower_runs import (
    CENTRAL_DP,
    EXAMPLE_LEVEL_DP,
    SETTINGS,
    SIMULATION,
    assert_same_run,
    at_server,
    here_with,
    holders,
    on_flower,
    record,
    secret_of,
    settings,
    trained,
)
from flwr.app import ConfigRecord, Message

from fedsim import build
from fedsim.build_privacy import federated_privacy
from fedsim.config_file import runs_of
from fedsim.data.sources import open_dataset
from fedsim.engines.flower_grid import TASK
from fedsim.engines.pack import unpack
from fedsim.flower_app.task import Task
from fedsim.flower_seam import to_arrays
from fedsim.privacy.per_sample import noise_of_stream
from fedsim.reporter import Failure, Silence
from fedsim.streams import torch_stream
from fedsim.update_sum import ROUND, USER

pytestmark = pytest.mark.usefixtures("no_pauses")

LOUD = copy.deepcopy(CENTRAL_DP)
LOUD["privacy"]["central"] |= {"noise_multiplier": 3.0}
ONE_STEP = {
    "federated": {
        **SETTINGS["federated"],
        "cohort_size": 1,
        "local": {"epochs": 1, "batch_size": 1000, "learning_rate": 0.1},
    },
    "privacy": {"example_level": {"max_grad_norm": 1.0, "noise_multiplier": 50.0}},
}


class Listening(FakeFlower):
    """Keeps all that is sent to nodes."""

    def __init__(self, there: dict[int, dict[str, Any]]) -> None:
        super().__init__(there, self._keep)
        self.sent: list[Message] = []

    def _keep(self, message: Message) -> str:
        self.sent.append(message)
        return "answered"


def checkpoint(out: Path) -> Path:
    return out / "tiny" / "seed0" / "checkpoint" / "state.pt"


def deployed(files: Path, out: Path, **changes: Any) -> Listening:
    grid = Listening(holders(files, "node-1", "node-2"))
    outcome = on_flower(at_server(files, **changes), out, grid, num_nodes=2)
    assert not isinstance(outcome, Failure), outcome
    return grid


@pytest.mark.parametrize(
    "changes",
    [
        CENTRAL_DP,
        {**CENTRAL_DP, "strategy": {"name": "scaffold"}},
        {"privacy": {"central": {**CENTRAL_DP["privacy"]["central"], "adaptive_quantile": 0.5}}},
    ],
    ids=["fedavg", "scaffold", "adaptive"],
)
def test_a_deployment_gives_the_bits_of_a_run_here_with_its_secret(
    changes: dict[str, Any], files: Path, tmp_path: Path
) -> None:
    changes = {**CENTRAL_DP, **changes}
    deployed(files, tmp_path / "there", **changes)
    here_with(secret_of(tmp_path / "there"), settings(**changes), tmp_path / "here")
    assert_same_run(tmp_path / "there", tmp_path / "here")


def models(sent: list[Message]) -> dict[int, dict[str, torch.Tensor]]:
    """The model that nodes receive in each round."""
    found = {}
    for message in (m for m in sent if m.metadata.message_type == "train"):
        content = unpack(message.content)[0]
        (config,) = (c for c in content.config_records.values() if ROUND in c)
        (record,) = content.array_records.values()
        found[int(str(config[ROUND]))] = to_arrays(record)
    return found


def asked(sent: list[Message], round_num: int) -> set[str]:
    """The users who are trained in a round."""
    configs = [
        config
        for message in sent
        if message.metadata.message_type == "train"
        for content in unpack(message.content)
        for config in content.config_records.values()
    ]
    return {str(c[USER]) for c in configs if c.get(ROUND) == round_num}


def attacked(sent: list[Message]) -> tuple[float, bool]:
    """What a node can do with all that is sent: rebuild round 1's noise and cohort from the seed.

    Returns:
        The cosine between that noise and how the model changed; whether the cohort is right.
    """
    (task,) = {
        str(dict(m.content[TASK])): m.content[TASK] for m in sent if TASK in m.content
    }.values()
    assert isinstance(task, ConfigRecord)
    config = Task.on_node(task, {}).config
    users = open_dataset("openclipart", labels="coarse", image_size=8).users("train")
    received = models(sent)
    change = torch.cat([(received[2][n] - received[1][n]).flatten() for n in received[1]])
    mechanism, _ = federated_privacy(config, users)
    assert mechanism is not None
    noise = {name: torch.zeros_like(array) for name, array in received[1].items()}
    mechanism.release(noise, [], 1)
    flat = torch.cat([array.flatten() for array in noise.values()])
    cosine = torch.nn.functional.cosine_similarity(change, flat, dim=0)
    drawn = {users.ids[i] for i in build.build_cohort(config, users).draw(1)}
    return float(cosine), drawn == asked(sent, 1)


def test_who_knows_the_seed_takes_the_noise_off_a_simulation_and_not_off_a_deployment(
    files: Path, tmp_path: Path
) -> None:
    simulation = Listening(SIMULATION)
    on_flower(settings(**LOUD), tmp_path / "simulation", simulation)
    cosine, cohort_known = attacked(simulation.sent)
    assert cosine > 0.95
    assert cohort_known

    grid = deployed(files, tmp_path / "there", **LOUD)
    cosine, cohort_known = attacked(grid.sent)
    assert abs(cosine) < 0.25
    assert not cohort_known


def example_noise_known(sent: list[Message]) -> float:
    """The cosine between round 1's change by its only user and noise rebuilt from the seed."""
    (user,), received = asked(sent, 1), models(sent)
    change = torch.cat([(received[2][n] - received[1][n]).flatten() for n in received[1]])
    generator = torch_stream(0, "example-level noise", 1, user)
    noise = [noise_of_stream(generator)(array, 1.0).flatten() for array in received[1].values()]
    return float(torch.nn.functional.cosine_similarity(change, -torch.cat(noise), dim=0))


def test_who_knows_the_seed_takes_example_level_noise_off_a_simulation_and_not_off_a_deployment(
    files: Path, tmp_path: Path
) -> None:
    simulation = Listening(SIMULATION)
    on_flower(settings(**ONE_STEP), tmp_path / "simulation", simulation)
    assert example_noise_known(simulation.sent) > 0.95
    assert abs(example_noise_known(deployed(files, tmp_path / "there", **ONE_STEP).sent)) < 0.25


def test_a_site_that_trains_a_user_again_draws_noise_and_batches_anew(files: Path) -> None:
    data = open_dataset(str(files / "node-1.h5"), labels="coarse", image_size=8).users("train")
    largest = int(data.num_images.argmax())
    assert data.num_images[largest] > 20

    def twice(noise_multiplier: float, batch_size: int) -> list[torch.Tensor]:
        given = at_server(files, **copy.deepcopy(ONE_STEP))
        given["data"]["source"] = str(files / "node-1.h5")
        given["privacy"]["example_level"]["noise_multiplier"] = noise_multiplier
        given["federated"]["local"]["batch_size"] = batch_size
        (config,) = runs_of(given, {}, "the settings").values()
        trainer = build.build_trainer(config, seed_is_known=True)
        begun = {name: array.detach().clone() for name, array in trainer.arrays.items()}
        results = []
        for _ in range(2):
            with torch.no_grad():
                for name, array in trainer.arrays.items():
                    array.copy_(begun[name])
            assert math.isnan(trainer.train(data.ids[largest], 1).train_loss)
            results.append(torch.cat([array.flatten() for array in trainer.arrays.values()]))
        return results

    assert not torch.equal(*twice(1.0, 1000))
    assert torch.equal(*twice(0.0, 1000))  # every image in every batch
    assert not torch.equal(*twice(0.0, 10))


def test_a_site_that_reads_the_file_of_the_settings_draws_its_own_noise(tmp_path: Path) -> None:
    grid = Listening({100: {}})
    outcome = on_flower(settings(**ONE_STEP), tmp_path, grid, num_nodes=1)
    assert not isinstance(outcome, Failure), outcome
    assert abs(example_noise_known(grid.sent)) < 0.25


def test_sites_with_data_of_their_own_are_no_simulation(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower(holders(files, "node-1", "node-2"))
    outcome = on_flower(settings(**EXAMPLE_LEVEL_DP), tmp_path, grid)
    assert isinstance(outcome, Failure)
    assert "num-nodes: expected how many SuperNodes there are" in outcome.message


def test_no_loss_leaves_a_site_under_example_level_dp(files: Path, tmp_path: Path) -> None:
    deployed(files, tmp_path, **EXAMPLE_LEVEL_DP)
    (line, *_) = (line for line in record(tmp_path) if line["split"] == "train")
    assert line["loss"] is None
    assert line["loss_reason"] == "a user's loss is no number, or its site keeps it"
    rows = (tmp_path / "tiny" / "seed0" / "clients.csv").read_text().splitlines()[1:]
    assert [row.split(",")[3] for row in rows] == [""] * 10


def test_a_round_that_is_done_again_is_paid_again(files: Path, tmp_path: Path) -> None:
    """What was answered the first time had noise of its own."""

    class Stopped(FakeFlower):
        def __init__(self) -> None:
            super().__init__(holders(files, "node-1", "node-2"), self._stop)

        def _stop(self, message: Message) -> str:
            content = unpack(message.content) if message.metadata.message_type == "train" else []
            rounds = {c.get(ROUND) for unit in content for c in unit.config_records.values()}
            if 2 in rounds:
                raise KeyboardInterrupt
            return "answered"

    given = at_server(files, **EXAMPLE_LEVEL_DP)
    with pytest.raises(KeyboardInterrupt):
        on_flower(given, tmp_path, Stopped(), num_nodes=2)
    deployed(files, tmp_path, **EXAMPLE_LEVEL_DP)
    content = torch.load(checkpoint(tmp_path), weights_only=True)
    assert content["round_num"] == 2
    assert int(content["ledger"]["example_level"]["participations"].sum()) == 5 + 2 * 5


def test_nothing_but_the_checkpoint_holds_the_secret_and_only_its_owner_can_read_it(
    files: Path, tmp_path: Path
) -> None:
    grid = deployed(files, tmp_path, **CENTRAL_DP)
    key = secret_of(tmp_path).key
    forms = (key, key.hex().encode(), key[:8], key.hex()[:16].encode())
    for message in grid.sent:
        whole = pickle.dumps((message.content, message.metadata.group_id))
        assert not any(form in whole for form in forms)
    holding = [
        path
        for folder in (tmp_path, files)
        for path in folder.rglob("*")
        if path.is_file() and any(form in path.read_bytes() for form in forms)
    ]
    assert holding == [checkpoint(tmp_path)]
    assert stat.S_IMODE(checkpoint(tmp_path).stat().st_mode) == 0o600


def test_what_a_node_is_sent_tells_nothing_of_the_users_of_others(
    files: Path, tmp_path: Path
) -> None:
    """Blocks, and the order of messages, follow from the sizes of the whole cohort's users."""
    grid = deployed(files, tmp_path, **CENTRAL_DP)
    training = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert {message.metadata.group_id for message in training} == {""}
    numbers = []
    for message in training:
        configs = [c for u in unpack(message.content) for c in u.config_records.values()]
        users = [str(config[USER]) for config in configs]
        numbers.append(len(users))
        assert users == sorted(users)
        assert all(config.keys() == {ROUND, USER} for config in configs)
    assert max(numbers) > 1


def test_two_deployments_with_one_seed_differ_in_noise_and_cohorts(
    files: Path, tmp_path: Path
) -> None:
    grids = [deployed(files, tmp_path / name, **CENTRAL_DP) for name in ("one", "two")]
    one, two = trained(tmp_path / "one"), trained(tmp_path / "two")
    assert not any(torch.equal(one[name], two[name]) for name in one)
    cohorts = [asked(grid.sent, 1) for grid in grids]
    assert cohorts[0]
    assert cohorts[0] != cohorts[1]


def test_a_deployment_that_was_killed_goes_on_to_the_same_bits_and_does_no_seen_round_again(
    files: Path, tmp_path: Path
) -> None:
    """Though checkpoints are asked for every fifth round only."""
    changes = copy.deepcopy(CENTRAL_DP) | {"engine": {"workers": 1, "checkpoint_every": 5}}
    changes["federated"] |= {"num_rounds": 4}
    rounds: list[int] = []

    class Killed(BaseException):
        pass

    class Dying(Silence):
        def recorded(self, run_id: str, line: dict[str, Any]) -> None:
            if line["split"] == "train":
                rounds.append(line["round"])
            if rounds == [1, 2, 3]:  # round 3 is not seen by a node yet
                raise Killed

    out = tmp_path / "there"
    nodes = holders(files, "node-1", "node-2")
    with pytest.raises(Killed):
        on_flower(
            at_server(files, **changes), out, FakeFlower(nodes), num_nodes=2, reporter=Dying()
        )
    secret = secret_of(out)
    grid = deployed(files, out, **changes)
    assert sorted(models(grid.sent)) == [3, 4]
    assert secret_of(out) == secret
    here_with(secret, settings(**changes), tmp_path / "here")
    assert_same_run(out, tmp_path / "here")
    assert [line["round"] for line in record(out) if line["split"] == "train"] == [1, 2, 3, 4]


def test_a_deployment_does_not_go_on_with_noise_of_the_seed(files: Path, tmp_path: Path) -> None:
    deployed(files, tmp_path, **CENTRAL_DP)
    content = torch.load(checkpoint(tmp_path), weights_only=True)
    torch.save({k: v for k, v in content.items() if k != "secret"}, checkpoint(tmp_path))
    (tmp_path / "tiny" / "seed0" / "summary.json").unlink()
    grid = FakeFlower(holders(files, "node-1", "node-2"))
    outcome = on_flower(at_server(files, **CENTRAL_DP), tmp_path, grid, num_nodes=2)
    assert isinstance(outcome, Failure)
    assert outcome.exit_code == 6
    assert "expected a run whose noise nobody else can make" in outcome.message
    assert not [node for node, kind in grid.asked if kind == "train"]


def test_only_a_private_deployment_has_a_secret_and_the_card_says_which(
    files: Path, tmp_path: Path
) -> None:
    deployed(files, tmp_path / "plain")
    assert torch.load(checkpoint(tmp_path / "plain"), weights_only=True)["secret"] is None
    (tmp_path / "any file").touch()
    modes = [p.stat().st_mode for p in (checkpoint(tmp_path / "plain"), tmp_path / "any file")]
    assert stat.S_IMODE(modes[0]) == stat.S_IMODE(modes[1])

    grid = FakeFlower(holders(files, "node-1", "node-2"))
    summary = on_flower(at_server(files, **CENTRAL_DP), tmp_path / "there", grid, num_nodes=2)
    assert not isinstance(summary, Failure), summary
    assert "a secret that the server alone holds" in summary["privacy"]["central"]["noise"]
    grid = FakeFlower(holders(files, "node-1", "node-2"))
    summary = on_flower(at_server(files, **EXAMPLE_LEVEL_DP), tmp_path / "ex", grid, num_nodes=2)
    assert not isinstance(summary, Failure), summary
    assert "drawn at each user's site" in summary["privacy"]["example_level"]["noise"]
    assert secret_of(tmp_path / "ex")
    simulated = on_flower(settings(**CENTRAL_DP), tmp_path / "simulation", FakeFlower(SIMULATION))
    assert not isinstance(simulated, Failure), simulated
    assert "a function of the run's seed" in simulated["privacy"]["central"]["noise"]

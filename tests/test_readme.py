"""What the README shows is what there is."""

import re
from pathlib import Path

import torch

from fedsim.config_file import load_runs
from fedsim.strategy import SumStrategy

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_yaml_file_loads(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("yaml") if block.startswith("name:")]
    (tmp_path / "file.yaml").write_text(text)
    runs = load_runs(tmp_path / "file.yaml")
    assert len(runs) == 4
    assert {run.federated.sampling for run in runs.values()} == {"fixed_size", "poisson"}


def test_the_strategy_of_one_s_own_works() -> None:
    (text,) = blocks("python")
    namespace: dict[str, type[SumStrategy]] = {}
    exec(text, namespace)
    strategy = namespace["Signed"](step=0.5)
    arrays, update = {"w": torch.zeros(3)}, {"w": torch.tensor([2.0, -0.1, 0.0])}
    assert strategy.server_step(1, arrays, update)["w"].tolist() == [0.5, -0.5, 0.0]


def test_every_link_into_the_repository_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_experiment_loads() -> None:
    for path in (ROOT / "experiments").rglob("*.yaml"):
        assert load_runs(path), path

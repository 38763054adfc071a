"""A file imports only lower layers, or siblings of its own subfolder."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "fedsim"

# From the bottom; a file imports only from lower lines, or from its own subfolder.
LAYERS = [
    {
        "",
        "errors",
        "streams",
        "arrays",
        "loss",
        "printable",
        "nearest",
        "yaml_text",
        "run_id",
        "peak_memory",
        "whole_file",
    },  # 0
    {"parameters", "secret"},  # 1
    {"config", "plugins", "flower_seam", "data", "models", "metrics", "privacy"},
    {"sweep", "schedule"},
    {"config_file", "cohort", "attendance", "replies"},
    {"update_sum", "client_part", "client_states"},
    {"strategy_checks"},
    {"cohort_strategy"},
    {"strategy", "combine_strategy"},
    {"foreign"},
    {"training"},  # 2
    {"engines", "state", "record", "clients_file"},  # 3
    {"evaluation", "kept_scores", "over_seeds"},
    {"bookkeeping"},
    {"loop", "centralized"},
    {"build_privacy"},  # 4
    {"build"},
    {"build_engine", "build_pooled", "run_few_shot"},
    {"check", "kept_by_users"},
    {"tables"},
    {"figures"},
    {"chart", "few_shot_figure"},
    {"page"},
    {"inspect_data"},
    {"jobs"},  # 5
    {"audit"},
    {"over_users", "run_users"},
    {"runtime"},
    {"comparison"},
    {"pace"},
    {"reporter", "estimate", "plan", "display", "strategy_list"},
    {"single_run", "progress", "loading"},
    {"report"},
    {"run_processes"},
    {"experiment"},
    {"flower_app"},
    {"protocols"},
    {"cli_data", "cli_evaluate"},  # 6
    {"cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
MODULES = sorted(ROOT.rglob("*.py"))


def part_of(module: str) -> str:
    return [*module.split("."), ""][1]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    own = "" if own == "__init__" else own
    assert own in LEVEL, f"{own}: name its layer here"
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [
                f"{node.module}.{a.name}" if node.module == "fedsim" else node.module
                for a in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            assert not name.startswith("fedsim_strategies"), "fedsim never imports a strategy"
            if name.split(".")[0] != "fedsim" or name == "fedsim.__version__":
                continue
            other = part_of(name)
            sibling = other == own and (ROOT / own).is_dir()
            assert LEVEL[other] < LEVEL[own] or sibling, f"{own} imports {other}"

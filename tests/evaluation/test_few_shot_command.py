"""The commands ``few-shot`` and ``rank``, from files to every expected number."""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.errors import ConfigError, DataError

CASES = Path(__file__).parent / "cases"
EPISODES = CASES / "fewshot_digits" / "episodes.npz"
METEOR = CASES / "meteor_table3" / "meteor_table3.csv"


def asked(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def check_files(folder: Path, name: str) -> None:
    with Image.open(folder / f"{name}.png") as picture:
        assert picture.width == 1080
    assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    found = load_digits()
    images, classes = found.images / 16, found.target
    np.savez(folder / "raw.npz", features=images, classes=classes)
    np.savez(folder / "top.npz", features=images[:, :4], classes=classes)
    return folder


def test_stored_episodes_to_ranks(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "few"
    files = [digits / "raw.npz", digits / "top.npz"]
    three = {
        "nearest_centroid": "ncm_euclid",
        "nearest_centroid_cosine": "ncm_cosine",
        "nearest_neighbor": "1nn",
    }
    chosen = [part for name in three for part in ("--learner", name)]
    shown = asked("few-shot", *files, "--replay", EPISODES, *chosen, "--out", out)
    assert "0.8913" in shown
    expected = json.loads((CASES / "fewshot_digits" / "expected.json").read_text())
    found = json.loads((out / "few_shot.json").read_text())["data_sets"]
    for data_set in ("raw", "top"):
        assert found[data_set]["num_classes"] == 10
        for ours, theirs in {**three, "constant": "zero"}.items():
            own = found[data_set]["learners"][ours]
            lowest = expected["min_over_seeds"][theirs][data_set]
            assert own["score"] == pytest.approx(lowest, abs=1e-15)
            counts = [run["num_correct"] for run in own["runs"]]
            assert counts == [
                expected["per_run"][f"{theirs}|{data_set}|{run}"]["correct"] for run in range(3)
            ]
    first = found["raw"]["learners"]["nearest_centroid"]["runs"][0]
    assert (first["num_correct"], first["num_queries"]) == (50803, 57000)
    assert round(first["half_width"], 8) == 0.00431588
    check_files(out, "few_shot")
    ranking = json.loads(asked("rank", out / "few_shot.csv", "--json"))["standings"]
    assert [(of["submission"], of["average_rank"]) for of in ranking] == [
        ("nearest_neighbor", 1.0),
        ("nearest_centroid", 2.5),
        ("nearest_centroid_cosine", 2.5),
        ("constant", 4.0),
    ]


def test_own_episodes_and_a_learner_of_one_s_own(digits: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import numpy as np\ndef last(e):\n    return np.full(len(e.queries), 2)\n")
    options = ["--ways", "3", "--shots", "2", "--queries", "4", "--episodes", "6", "--runs", "2"]
    stored = tmp_path / "stored.npz"

    def scores(*more: str | Path) -> dict[str, Any]:
        asking = ["few-shot", digits / "raw.npz", "--learner", f"{mine}:last", "--json"]
        asking += ["--learner", "nearest_neighbor"]
        found: dict[str, Any] = json.loads(asked(*asking, *more))["data_sets"]["raw"]
        return found

    drawn = scores(*options, "--episode-seed", "per_run", "--store", stored)
    assert (drawn["num_ways"], drawn["num_shots"], drawn["num_queries"]) == (3, 2, 4)
    assert drawn["learners"][f"{mine}:last"]["score"] == 1 / 3
    assert scores("--replay", stored) == drawn
    runs = drawn["learners"]["nearest_neighbor"]["runs"]
    assert len(runs) == 2
    fixed = scores(*options)["learners"]["nearest_neighbor"]["runs"]
    assert fixed[0] == fixed[1] == runs[0]
    assert scores(*options, "--seed", "1")["learners"]["nearest_neighbor"]["runs"] != fixed


def test_scores_of_a_run(tmp_path: Path) -> None:
    run = {"accuracy": 0.5, "half_width": 0.01, "num_correct": 5, "num_queries": 10}
    worse = {**run, "accuracy": 0.25}
    backbones = {"best": {"score": 0.25, "runs": [run, worse]}, "initial": {"runs": [worse]}}
    few_shot = {"chance": 0.2, "learners": {"nearest_centroid": backbones}}
    for name, content in (("a", {"few_shot": few_shot}), ("b", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(content))
    asked("few-shot", tmp_path / "a", "--out", tmp_path / "out")
    with (tmp_path / "out" / "few_shot.csv").open() as file:
        rows = [(row["submission"], row["score"]) for row in csv.DictReader(file)]
    assert rows == [("nearest_centroid", "0.25"), ("nearest_centroid, untrained", "0.25")]
    with pytest.raises(DataError, match=r"set evaluation\.few_shot"):
        asked("few-shot", tmp_path / "b")
    (tmp_path / "c").mkdir()
    with pytest.raises(DataError, match="expected a finished run"):
        asked("few-shot", tmp_path / "c")


def test_all_published_ranks(tmp_path: Path) -> None:
    out = tmp_path / "ranks"
    shown = asked("rank", METEOR, "--leave-out", "published_rank", "--out", out)
    assert "3.5833" in shown
    with METEOR.open() as file:
        published = {row["model"]: row["published_rank"] for row in csv.DictReader(file)}
    with (out / "rank.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {row["submission"]: f"{float(row['average_rank']):.1f}" for row in rows}
    assert found == published
    assert [row["place"] for row in rows] == [str(place) for place in range(1, 12)]
    check_files(out, "rank")


def test_the_figures_show_the_numbers() -> None:
    from fedsim.evaluation.few_shot import RunScore
    from fedsim.few_shot_figure import accuracies
    from fedsim.protocols.rank_figure import ranks_on_a_line

    runs = [RunScore(0.5, 0.02, 0, 0), RunScore(0.4, 0.03, 0, 0)]
    figure = accuracies("Accuracy", {"birds": {"mine": runs}, "signs": {"other": runs[:1]}})
    (axes,) = figure.axes
    lowest = [bars.lines[0].get_xdata().tolist() for bars in axes.containers]
    assert lowest == [[40.0], [50.0]]
    caps = [float(cap.get_xdata()[0]) for cap in axes.containers[0].lines[1]]
    assert caps == pytest.approx([37.0, 43.0])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["birds", "signs"]

    figure = ranks_on_a_line("Ranks", {"a": 1.25, "b": 2.0, "c": 2.75})
    (axes,) = figure.axes
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert dots == [1.25, 2.0, 2.75]
    texts = [text.get_text() for text in axes.texts]
    assert {"a  1.25", "b  2.00", "c  2.75"} <= set(texts)


@pytest.mark.parametrize(
    ("arguments", "fault", "message"),
    [
        (["--learner", "nearest"], ConfigError, "--learner: expected a known name"),
        (["--learner", "math:pi"], ConfigError, "something to call, found math:pi, a float"),
        (["--queries", "400"], DataError, "at least 405 images of each"),
        (["--ways", "11"], DataError, "num_ways = 11, found 10"),
        (["--ways", "1"], ConfigError, "num_ways"),
        (["--replay", "none.npz"], DataError, "found No such file"),
        (["--store", "no/such/folder.npz", "--episodes", "2"], DataError, "to write to"),
    ],
)
def test_faults(digits: Path, arguments: list[str], fault: type[Exception], message: str) -> None:
    with pytest.raises(fault, match=message):
        asked("few-shot", digits / "raw.npz", *arguments)


def test_a_folder_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a finished run.*name the folder of one run$"):
        asked("few-shot", tmp_path)


def test_data_sets_have_names_of_their_own(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found raw twice"):
        asked("few-shot", digits / "raw.npz", digits / "raw.npz")
    with pytest.raises(DataError, match="the episodes of one file"):
        asked("few-shot", *sorted(digits.iterdir()), "--store", tmp_path / "stored.npz")


def test_help_has_an_example() -> None:
    assert "Example: fedsim evaluate flair" in asked("--help")
    for command in ("few-shot", "rank"):
        assert f"Example: fedsim evaluate {command}" in asked(command, "--help")


def test_stored_episodes_are_of_their_data(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, features=np.zeros((1797, 1)), classes=np.arange(1797) % 10)
    with pytest.raises(DataError, match=r"run 0, episode 0: .*another class"):
        asked("few-shot", path, "--replay", EPISODES)

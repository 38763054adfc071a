"""What models are worth for new classes, on the page and beside it."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import write_run
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.report.few_shot import few_shot_charts, few_shot_scores, few_shot_table
from fedsim.report.gather import gather


def add_scores(folder: Path, best: list[float], ways: int = 4, labels: str = "coarse") -> None:
    """Give a recorded run few-shot scores, one accuracy a run, as ``score_few_shot`` does."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["config"]["evaluation"]["few_shot"] = {"num_ways": ways, "num_shots": 2}

    def recorded(accuracies: list[float]) -> dict[str, Any]:
        runs = [
            {"accuracy": a, "half_width": a / 10, "num_correct": 1, "num_queries": 2}
            for a in accuracies
        ]
        return {"score": min(accuracies), "runs": runs}

    untrained = [0.5, 0.375]
    learners = {"nearest_neighbor": {"best": recorded(best), "initial": recorded(untrained)}}
    summary["few_shot"] = {"labels": labels, "chance": 1 / ways, "learners": learners}
    path.write_text(json.dumps(summary))


def test_the_worst_run_of_all_seeds_counts(tmp_path: Path) -> None:
    add_scores(write_run(tmp_path, "plain", 0), [0.75, 0.875])
    add_scores(write_run(tmp_path, "plain", 1), [0.625, 0.75])
    write_run(tmp_path, "other", 0)
    (group,) = gather([tmp_path]).groups
    scores = few_shot_scores(group)
    table = few_shot_table(scores, "_2")
    assert table.name == "few_shot_2"
    assert [column.name for column in table.columns][4:] == [
        *("accuracy, %", "±", "mean of the runs, %", "untrained, %", "chance, %")
    ]
    (row,) = table.rows
    assert row[:4] == ("plain", "nearest_neighbor", "4 ways, 2 shots, coarse labels", 4)
    assert row[4:] == pytest.approx((62.5, 6.25, 75.0, 37.5, 25.0))
    (chart,) = few_shot_charts(scores, "")
    (axes,) = chart.figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["plain"]
    assert axes.containers[0].lines[0].get_xdata().tolist() == [62.5]


def test_a_seed_that_was_run_without_such_scores_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, "plain", 0)
    add_scores(write_run(tmp_path, "plain", 1), [0.625, 0.75])
    (group,) = gather([tmp_path]).groups
    (row,) = few_shot_table(few_shot_scores(group), "").rows
    assert row[:4] == ("plain", "nearest_neighbor", "4 ways, 2 shots, coarse labels", 2)


def test_other_episodes_are_drawn_apart(tmp_path: Path) -> None:
    add_scores(write_run(tmp_path, "plain", 0), [0.75])
    add_scores(write_run(tmp_path, "wide", 0), [0.5], ways=8, labels="fine")
    (group,) = gather([tmp_path]).groups
    charts = {chart.name: chart for chart in few_shot_charts(few_shot_scores(group), "_3")}
    drawn = {
        name: (chart.title, [tick.get_text() for tick in chart.figure.axes[0].get_yticklabels()])
        for name, chart in charts.items()
    }
    title = "Few-shot: 4 ways, 2 shots, coarse labels"
    assert drawn["few_shot_3"] == (title, ["plain"])
    assert drawn["few_shot_3_2"][1] == ["wide"]
    assert len(drawn) == 2


def test_page_and_csv(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    folder = write_run(tmp_path, "plain", 0)
    assert CliRunner().invoke(app, ["report", str(trial)]).exit_code == 0
    assert "Few-shot" not in (trial / "report" / "index.html").read_text()
    assert not (trial / "report" / "few_shot.csv").exists()
    add_scores(folder, [0.75, 0.625])
    assert CliRunner().invoke(app, ["report", str(trial)]).exit_code == 0
    page = (trial / "report" / "index.html").read_text()
    assert 'id="few_shot"' in page
    assert "Few-shot accuracy on test users" in page
    assert (trial / "report" / "figures" / "few_shot.png").exists()
    with (trial / "report" / "few_shot.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [
        (r["backbone"], r["run"], float(r["accuracy"]), float(r["half_width"])) for r in rows
    ] == [
        ("best", "0", 0.75, 0.075),
        ("best", "1", 0.625, 0.0625),
        ("initial", "0", 0.5, 0.05),
        ("initial", "1", 0.375, 0.0375),
    ]

"""The page and the files beside it."""

import csv
import json
import re
from pathlib import Path

import pytest
from recorded_runs import HOSTILE, write_run, write_trial
from typer.testing import CliRunner

from fedsim.chart import inline_svg
from fedsim.cli import app
from fedsim.data.sources import OPENCLIPART
from fedsim.report.gather import gather
from fedsim.report.partition import partition_charts
from fedsim.report.reproduce import command_of, differing_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trial = write_trial(tmp_path_factory.mktemp("runs"))
    (write_run(trial.parent, "broken", 0) / "summary.json").unlink()
    result = CliRunner().invoke(app, ["report", str(trial)])
    assert result.exit_code == 0, result.output
    assert "The reference is plain" in result.output
    assert "left out" in result.output
    return trial / "report"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_figure_lies_beside_the_page(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    on_page = set(re.findall(r'<figure[^>]* id="([^"]*)"', page))
    files = {path.name for path in (folder / "figures").iterdir()}
    assert files == {f"{name}.{suffix}" for name in on_page for suffix in ("svg", "png")}
    assert {"difference_macro_ap", "learning_macro_ap", "epsilon_macro_ap", "noise_micro_ap",
            "classes", "users", "seconds"} <= on_page  # fmt: skip
    assert "broken-seed0 (unfinished, after 4 rounds)" in page
    assert "lost.h5" in page  # the data are not there, and the page says so
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)


def test_what_the_script_draws_from_is_whole_and_ends_nothing(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text)
    assert data["names"] == ["cat", "dog", HOSTILE]
    assert data["x"] == [400, 50, 3]
    names = [name for name, _ in data["series"]]
    assert [names[number] for number in data["chosen"]] == ["plain", "strong"]
    classes = {(row["setting"], row["class"]): row for row in rows(folder / "classes.csv")}
    for name, values in data["series"]:
        assert values[1] == pytest.approx(100 * float(classes[name, "dog"]["ap"]), abs=1e-3)
    assert HOSTILE not in page
    assert "<b>x" not in page


def test_csv_has_fractions_of_every_run_setting_class_and_round(folder: Path) -> None:
    runs = rows(folder / "runs.csv")
    assert len(runs) == 15
    summary = json.loads((Path(runs[0]["path"]) / "summary.json").read_text())
    assert float(runs[0]["macro_ap"]) == summary["test"]["scores"]["macro_ap"]
    settings = {row["setting"]: row for row in rows(folder / "settings.csv")}
    assert len(settings) == 6
    mean = sum(float(r["macro_ap"]) for r in runs if r["setting"] == "strong") / 3
    assert float(settings["strong"]["macro_ap_mean"]) == pytest.approx(mean)
    assert float(settings["strong"]["macro_ap_difference"]) == pytest.approx(
        mean - float(settings["plain"]["macro_ap_mean"])
    )
    assert settings["strong"]["macro_ap_verdict"] == "smaller"
    assert settings["constant predictor"]["macro_ap_mean"] == "0.25"
    assert len(rows(folder / "classes.csv")) == 5 * 3
    assert len(rows(folder / "rounds.csv")) == 15 * 9


def test_several_test_splits_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0)
    write_run(tmp_path, "b", 0, name="other", labels=("cat", "dog", "cow"))
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "settings that were tested on different splits" in page
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {"learning_macro_ap_1", "learning_macro_ap_2"} <= set(ids)


def test_commands_name_the_run_s_own_settings(tmp_path: Path) -> None:
    write_run(tmp_path, "it's one", 0)
    write_run(tmp_path, "b", 0, private={"noise_multiplier": 2.0, "epsilon_as_run": 3.0})
    (group,) = gather([tmp_path]).groups
    command = command_of(group.entries[0].runs[0])
    assert command.startswith("fedsim run '")
    assert command.endswith("config.yaml' --out again")
    table = differing_table(group, "")
    assert table is not None
    names = [column.name for column in table.columns]
    assert "privacy.central" in names
    assert "data.source" not in names
    place = names.index("privacy.central")
    assert [row[place] for row in table.rows] == ["null", "given"]


def test_the_partition_is_drawn_where_data_are_at_hand(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a", 0)
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["config"]["data"]["source"] = str(OPENCLIPART)
    path.write_text(json.dumps(summary))
    (group,) = gather([tmp_path]).groups
    charts, text = partition_charts(group, "_2")
    assert [chart.name for chart in charts] == [
        "data_images_per_user_2", "data_coarse_divergence_2", "data_coarse_frequency_2"
    ]  # fmt: skip
    assert text == "Dealt by user: all settings."
    assert all("dealt by user" in inline_svg(chart) for chart in charts)


def test_a_partition_is_named_with_its_parameters(tmp_path: Path) -> None:
    for seed, partition in enumerate(({"method": "dirichlet", "alpha": 0.1}, {"method": "iid"})):
        path = write_run(tmp_path, "abc"[seed], 0) / "summary.json"
        summary = json.loads(path.read_text())
        summary["config"]["data"] |= {"source": str(OPENCLIPART), "partition": partition}
        path.write_text(json.dumps(summary))
    (group,) = gather([tmp_path]).groups
    charts, text = partition_charts(group, "")
    assert "Dealt dirichlet, alpha 0.1, labels coarse, seed 0: a." in text
    divergence = [inline_svg(chart) for chart in charts if "divergence" in chart.name]
    assert ["alpha 0.1" in svg for svg in divergence] == [True, False]
    assert ["dealt iid" in svg for svg in divergence] == [False, True]


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0)
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "file")])
    assert "choose another --out" in str(result.exception)

"""What figures show of runs."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from recorded_runs import epsilons, write_run, write_trial

from fedsim.figures import COLOURS, SERIES
from fedsim.report.charts import (
    class_chart,
    difference_charts,
    infinite_epsilons,
    learning_charts,
    pens_of,
    privacy_charts,
    time_charts,
    user_chart,
)
from fedsim.report.gather import Group, gather
from fedsim.report.marks import MUTED_PEN, REFERENCE_PEN
from fedsim.report.per_user import user_scores


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    return gather([write_trial(tmp_path_factory.mktemp("runs"))]).groups[0]


def words(figure: Figure) -> set[str]:
    return {text.get_text() for axes in figure.axes for text in axes.texts}


def mean(group: Group, name: str) -> float:
    entry = next(entry for entry in group.entries if entry.name == name)
    values = [run.summary["test"]["scores"]["macro_ap"] for run in entry.runs]
    return 100 * float(np.mean(values))


def test_learning_curves_end_at_the_mean_with_a_band_of_all_seeds(group: Group) -> None:
    macro, micro = learning_charts(group, "")
    assert (macro.name, micro.name) == ("learning_macro_ap", "learning_micro_ap")
    (axes,) = macro.figure.axes
    black = [line for line in axes.lines if line.get_color() == COLOURS["ink"]]
    x, y = black[0].get_data()
    assert np.asarray(x).tolist() == [0, 1, 2, 3, 4]
    assert np.asarray(y)[-1] == pytest.approx(mean(group, "plain"))
    values = [100 * r.summary["test"]["scores"]["macro_ap"] for r in group.reference.runs]
    bands = [band.get_paths()[0].vertices[:, 1] for band in axes.collections]
    ends = [min(values), max(values)]
    assert any(all(np.isclose(band, end).any() for end in ends) for band in map(np.asarray, bands))
    assert {"plain", "strong", "constant predictor", "centralized"} <= words(macro.figure)


def test_points_lie_at_both_epsilons_and_at_the_noise(group: Group) -> None:
    charts = {chart.name: chart for chart in privacy_charts(group, "")}
    assert list(charts) == [
        "epsilon_macro_ap",
        "epsilon_micro_ap",
        "noise_macro_ap",
        "noise_micro_ap",
    ]
    for name, xs in (("epsilon_macro_ap", (0.5, 70.0)), ("noise_macro_ap", (4.0,))):
        (axes,) = charts[name].figure.axes
        assert axes.get_xscale() == "log"
        drawn = [
            tuple(row) for line in axes.lines for row in np.asarray(line.get_xydata()).tolist()
        ]
        for x in xs:
            assert any(point == pytest.approx((x, mean(group, "strong"))) for point in drawn)
    (axes,) = charts["epsilon_macro_ap"].figure.axes
    joined = [line for line in axes.lines if len(line.get_xydata()) == 3]
    assert {line.get_color() for line in joined} == set(SERIES[:2])  # they differ in noise alone
    levels = {
        round(float(line.get_ydata()[0]), 6) for line in axes.lines if len(line.get_xydata()) == 2
    }
    for level in (25.0, mean(group, "plain"), mean(group, "centralized")):
        assert round(level, 6) in levels


def test_infinite_epsilons_are_told_and_not_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0)
    write_run(tmp_path, "unnoised", 0, private=epsilons(0.0, float("inf"), float("inf")))
    write_run(tmp_path, "images", 0, example=3.0)
    (group,) = gather([tmp_path]).groups
    assert infinite_epsilons(group) == ["unnoised"]
    assert [chart.name for chart in privacy_charts(group, "_2")] == [
        "example_epsilon_macro_ap_2", "example_epsilon_micro_ap_2"
    ]  # fmt: skip


def test_differences_have_both_intervals(group: Group) -> None:
    macro, _ = difference_charts(group, "")
    (axes,) = macro.figure.axes
    difference = group.others[0].differences["macro_ap"]
    assert difference is not None
    for bounds, colour in (
        (difference.over_seeds.interval, SERIES[0]), (difference.over_users, SERIES[1])
    ):  # fmt: skip
        assert bounds is not None
        assert any(
            line.get_color() == colour
            and np.asarray(line.get_xdata()) == pytest.approx([100 * bound for bound in bounds])
            for line in axes.lines
        )


def test_classes_users_and_times_are_drawn(group: Group) -> None:
    classes = class_chart(group, "")
    assert classes is not None
    (axes,) = classes.figure.axes
    circles, squares = (line for line in axes.lines if line.get_marker() in "os")
    assert np.asarray(circles.get_xdata()).tolist() == [400, 50, 3]
    aps = [
        np.mean([100 * r.summary["test"]["per_class"][0]["ap"] for r in entry.runs])
        for entry in (group.reference, group.private[0])
    ]
    assert [line.get_ydata()[0] for line in (circles, squares)] == pytest.approx(aps)
    scores = user_scores(group)
    assert scores is not None
    users = user_chart(group, scores, "")
    assert users is not None
    (axes,) = users.figure.axes
    assert len(axes.get_yticklabels()) == 6
    assert "worst tenth" in users.caption
    by_round, bars = time_charts(group, "")
    assert {float(y) for line in by_round.figure.axes[0].lines[:4] for y in line.get_ydata()} == {
        2.0
    }
    assert {bar.get_width() for bar in bars.figure.axes[0].patches} == {2.0, 0.5}


def test_only_some_of_many_settings_are_in_colour(tmp_path: Path) -> None:
    for number in range(12):
        write_run(tmp_path, f"s{number:02}", 0, quality=0.1 + 0.3 * number)
    (group,) = gather([tmp_path]).groups
    pens = pens_of(group)
    assert pens["s00"] == REFERENCE_PEN
    assert pens["s11"] is not MUTED_PEN  # the best
    assert sum(pen is MUTED_PEN for pen in pens.values()) == 3
    assert "gray" in next(learning_charts(group, "")).caption

"""What is computed from runs, against slow or independent ways."""

from pathlib import Path

import numpy as np
import pytest
from recorded_runs import HOSTILE, OWNER, TARGETS, USERS, write_run, write_trial
from scipy import stats
from sklearn.metrics import average_precision_score

from fedsim.kept_scores import load_kept_scores
from fedsim.metrics.per_user import average_precision_by_user
from fedsim.report.answer import answer_cards, answer_text, caution_text
from fedsim.report.classes import class_scores
from fedsim.report.gather import Group, gather
from fedsim.report.naming import spread
from fedsim.report.per_user import user_scores
from fedsim.report.rounds import at_best_round, over_rounds, seconds_of, share_of_scoring
from fedsim.report.tables import class_tables, comparison_table, time_table, user_table


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    return gather([write_trial(tmp_path_factory.mktemp("runs"))]).groups[0]


@pytest.mark.parametrize("digits", [1, 6])  # with ties and without
def test_ap_of_a_user_is_scikit_learns(digits: int) -> None:
    random = np.random.default_rng(digits)
    owner = np.repeat(np.arange(5, dtype=np.int32), (1, 4, 9, 3, 2))
    targets = random.random((19, 4)) < 0.4
    targets[owner == 3], targets[owner == 4] = False, True
    scores = random.normal(size=(19, 4)).round(digits).astype(np.float32)
    found = average_precision_by_user(targets, scores, np.bincount(owner))
    for user in range(3):
        mine = owner == user
        expected = average_precision_score(targets[mine].ravel(), scores[mine].ravel())
        assert found[user] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found[3:]).all()


def test_users_scores_are_means_over_seeds(group: Group, tmp_path: Path) -> None:
    scores = user_scores(group)
    assert scores is not None
    runs = group.reference.runs
    by_hand = [
        average_precision_score(TARGETS[OWNER == 4].ravel(),
                                load_kept_scores(run.folder).logits[OWNER == 4].ravel())
        for run in runs
    ]  # fmt: skip
    assert scores.by_entry["plain"][4] == pytest.approx(np.mean(by_hand))
    constant = np.tile((400, 50, 3), (6, 1)).ravel()
    assert scores.constant[4] == pytest.approx(
        average_precision_score(TARGETS[OWNER == 4].ravel(), constant)
    )
    rows = {str(row[0]): row for row in user_table(scores, group, "").rows}
    values = 100 * np.sort(scores.by_entry["strong"])
    assert rows["strong"][1] == len(USERS)
    assert rows["strong"][3] == pytest.approx(values[0])  # a tenth of 12 users
    assert rows["strong"][6] == pytest.approx(np.median(values))
    worse = scores.by_entry["strong"] < scores.by_entry["plain"]
    assert rows["strong"][9] == pytest.approx(100 * worse.mean())
    write_run(tmp_path, "no scores", 0, keeps=False)
    assert user_scores(gather([tmp_path]).groups[0]) is None


def test_runs_without_kept_scores_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0)
    write_run(tmp_path, "b", 0, keeps=False)
    scores = user_scores(gather([tmp_path]).groups[0])
    assert scores is not None
    assert list(scores.by_entry) == ["a"]
    assert "expected the run's test scores" in scores.without["b"]


def test_changes_of_classes_have_students_interval(group: Group) -> None:
    strong = next(entry for entry in group.entries if entry.name == "strong")
    ours, theirs = (
        np.array([run.summary["test"]["per_class"][0]["ap"] for run in entry.runs])
        for entry in (strong, group.reference)
    )
    score = class_scores(strong, group)[0]
    assert score.ap == pytest.approx(ours.mean())
    expected = stats.ttest_rel(ours, theirs).confidence_interval()
    assert score.change is not None
    assert score.change.interval == pytest.approx((expected.low, expected.high))
    assert score.is_beyond_seeds == (expected.high < 0 or expected.low > 0)
    assert class_scores(group.reference, group)[0].change is None
    change, every = class_tables(group, "")
    assert [column.name for column in change.columns[3:6]] == [
        "plain, %",
        "strong",
        "<|script><b>x & $y$",
    ]
    lost = [float(row[4]) for row in change.rows]  # type: ignore[arg-type]
    assert lost == sorted(lost)
    assert lost[0] < -10
    assert {row[0] for row in every.rows} == {"cat", "dog", HOSTILE}


def test_rounds_are_those_that_all_seeds_have(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0, rounds=4)
    write_run(tmp_path, "a", 1, rounds=2)
    (entry,) = gather([tmp_path]).groups[0].entries
    found = over_rounds(entry, "val", "macro_ap")
    finals = [run.summary["test"]["scores"]["macro_ap"] for run in entry.runs]
    assert found.rounds.tolist() == [0, 1, 2]
    assert found.values[:, 2] == pytest.approx([finals[0] / 2, finals[1]])
    assert found.mean[2] == pytest.approx((finals[0] / 2 + finals[1]) / 2)
    assert at_best_round(entry, "macro_ap") == pytest.approx(sum(finals) / 2)
    assert seconds_of(entry, "train") == 2.0
    # Scores of rounds 0 to 4 and 0 to 2 beside training in 1 to 4 and 1 to 2.
    assert share_of_scoring(entry) == pytest.approx(8 * 0.5 / (8 * 0.5 + 6 * 2.0))


def test_the_answer_says_what_the_numbers_say(group: Group) -> None:
    text = answer_text(group)
    macro = group.reference.setting.scores["macro_ap"]
    assert macro is not None
    assert macro.deviation is not None
    assert f"macro AP {100 * macro.mean:.1f} % (sd {100 * macro.deviation:.1f})" in text
    assert "federated, without privacy, over 3 seeds" in text
    assert "has 25.0 % and 37.5 %" in text
    assert "Trained in one place (centralized)" in text
    cards = {card.title: card for card in answer_cards(group)}
    assert list(cards) == ["strong", "<|script><b>x & $y$", "mild"]  # the most private first
    difference = next(e for e in group.entries if e.name == "strong").differences["macro_ap"]
    assert difference is not None
    assert difference.verdict == "smaller"
    assert cards["strong"].value == f"−{-100 * difference.over_seeds.value:.1f} points"
    assert cards["strong"].text == "of macro AP against plain: smaller"
    assert dict(cards["strong"].facts)["epsilon"] == "0.50 at the noise cohort, 70.00 as run"
    assert "within the seeds' noise" in cards["mild"].text
    assert "With 3 seeds, intervals over seeds are wide" in caution_text(group)


def test_one_seed_makes_no_claim(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 0, quality=3.0)
    write_run(tmp_path, "b", 0, quality=0.1)
    (card,) = answer_cards(gather([tmp_path]).groups[0])
    assert card.text == "of macro AP against a: one seed: noise unknown"
    assert "unknown over seeds" in dict(card.facts)["macro AP"]
    assert "classes" not in dict(card.facts)


def test_tables_have_percent_and_points(group: Group) -> None:
    table = comparison_table(group, "")
    names = [column.name for column in table.columns]
    rows = {str(row[0]): dict(zip(names, row, strict=True)) for row in table.rows}
    macros = [row[2] for row in table.rows]
    assert macros == sorted(macros, reverse=True)  # type: ignore[type-var]
    assert rows["constant predictor"]["macro AP, %"] == 25.0
    mean = np.mean([run.summary["test"]["scores"]["macro_ap"] for run in group.reference.runs])
    assert rows["plain"]["macro AP, %"] == pytest.approx(100 * mean)
    assert rows["plain"]["macro AP against reference"] is None
    assert rows["strong"]["macro AP against reference"] == pytest.approx(
        float(rows["strong"]["macro AP, %"]) - 100 * mean  # type: ignore[arg-type]
    )
    assert rows["strong"]["epsilon at noise cohort"] == 0.5
    assert rows["strong"]["noise multiplier"] == 4.0
    assert {row[6] for row in time_table(group, "").rows} == {302.0}


def test_spread_keeps_order_and_distance() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        places = random.random(9).tolist()
        found = spread(places, 0.05)
        assert np.argsort(found).tolist() == np.argsort(places).tolist()
        assert np.diff(np.sort(found)).min() >= 0.05 - 1e-9
        assert max(found) <= 1
    assert spread([0.1, 0.5], 0.05) == [0.1, 0.5]

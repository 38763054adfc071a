"""Average ranks, beside published ones and scipy's."""

import csv
import json
import math
from pathlib import Path

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.rank import (
    Result,
    rank_scores,
    rank_statistically,
    rank_submissions,
)
from fedsim.evaluation.rank_table import read_scores

CASES = Path(__file__).parent / "cases"
METEOR = CASES / "meteor_table3" / "meteor_table3.csv"

scores_with_ties = st.lists(st.integers(0, 5).map(lambda k: k / 4), min_size=1, max_size=9)


def test_all_published_average_ranks() -> None:
    with METEOR.open() as file:
        published = {row["model"]: row["published_rank"] for row in csv.DictReader(file)}
    standings = rank_submissions(read_scores(METEOR, ["published_rank"]))
    found = {of.submission: f"{of.average_rank:.1f}" for of in standings}
    assert found == published
    assert len(found) == 11
    assert standings[0].submission == "METEOR"
    assert standings[0].average_rank == pytest.approx(3.583333, abs=1e-6)


def test_ranks_of_the_digits() -> None:
    expected = json.loads((CASES / "fewshot_digits" / "expected.json").read_text())
    results: dict[str, dict[str, list[Result]]] = {}
    for key, run in expected["per_run"].items():
        learner, data_set, _ = key.split("|")
        of = results.setdefault(learner, {}).setdefault(data_set, [])
        of.append(Result(run["mean"], run["ci95_t"]))
    standings = rank_submissions(results)
    assert {of.submission: of.average_rank for of in standings} == expected["average_rank"]
    assert [of.average_rank for of in standings] == [1.0, 2.2, 2.8, 4.0]
    for of in standings:
        for data_set, rank in of.ranks.items():
            assert rank == expected["ranks"][data_set][of.submission]
            assert of.worst[data_set].score == expected["min_over_seeds"][of.submission][data_set]


@given(scores_with_ties)
def test_ties_as_scipy_has_them(scores: list[float]) -> None:
    for ties in ("average", "min", "dense"):
        expected = scipy.stats.rankdata([-score for score in scores], method=ties)
        assert rank_scores(scores, ties) == expected.tolist()  # type: ignore[arg-type]


@given(scores_with_ties, st.integers(1, 3))
def test_a_missing_score_has_the_worst_rank(scores: list[float], missing: int) -> None:
    for ties in ("average", "min", "dense"):
        ranks = rank_scores([*scores, *[None] * missing], ties)  # type: ignore[arg-type]
        assert ranks[: len(scores)] == rank_scores(scores, ties)  # type: ignore[arg-type]
        assert ranks[len(scores) :] == [len(scores) + missing] * missing


def slow_statistical(pairs: list[tuple[float, float]]) -> list[float]:
    left, ranks, used = list(range(len(pairs))), [0.0] * len(pairs), 0
    while left:
        best = sorted(left, key=lambda p: (-pairs[p][0], p))[0]
        group = []
        for p in left:
            noise = math.sqrt(pairs[p][1] ** 2 + pairs[best][1] ** 2)
            if pairs[best][0] - pairs[p][0] <= noise:
                group.append(p)
        places = range(used + 1, used + len(group) + 1)
        for p in group:
            ranks[p] = sum(places) / len(places)
            left.remove(p)
        used += len(group)
    return ranks


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 4)).map(lambda t: (t[0] / 16, t[1] / 16)),
        min_size=1,
        max_size=8,
    )
)
def test_statistical_ties(pairs: list[tuple[float, float]]) -> None:
    results = [Result(*pair) for pair in pairs]
    ranks = rank_statistically(results)
    assert ranks == slow_statistical(pairs)
    assert sum(ranks) == len(pairs) * (len(pairs) + 1) / 2
    exact = [Result(score, 0.0) for score, _ in pairs]
    assert rank_statistically(exact) == rank_scores([score for score, _ in pairs])
    assert rank_statistically([*results, Result(None)]) == [*ranks, len(pairs) + 1]


def test_a_wide_interval_is_tied_over_the_head_of_a_narrow_one() -> None:
    results = [Result(0.9, 0.0), Result(0.85, 0.01), Result(0.8, 0.2)]
    assert rank_statistically(results) == [1.5, 3.0, 1.5]


def test_only_the_worst_run_counts_and_a_failed_one_is_the_worst() -> None:
    results = {
        "steady": {"x": [Result(0.6), Result(0.6)]},
        "lucky": {"x": [Result(0.9), Result(0.5)]},
        "broken": {"x": [Result(0.95), Result(None)]},
        "absent": {},
    }
    standings = rank_submissions(results)
    assert [(of.submission, of.average_rank) for of in standings] == [
        ("steady", 1),
        ("lucky", 2),
        ("broken", 4),
        ("absent", 4),
    ]


def test_equal_average_ranks_go_to_the_earlier_submission() -> None:
    first, second = {"x": [Result(1)], "y": [Result(0)]}, {"x": [Result(0)], "y": [Result(1)]}
    for order in ({"b": first, "a": second}, {"a": second, "b": first}):
        standings = rank_submissions(order)
        assert [of.submission for of in standings] == list(order)
        assert [of.place for of in standings] == [1, 2]


def test_what_can_not_be_ranked() -> None:
    with pytest.raises(DataError, match="at least one"):
        rank_submissions({"a": {}})
    with pytest.raises(DataError, match="b, x: expected 2 runs, as others have, found 1"):
        rank_submissions({"a": {"x": [Result(1), Result(1)]}, "b": {"x": [Result(1)]}})
    with pytest.raises(DataError, match="half width"):
        rank_submissions({"a": {"x": [Result(1)]}}, "statistical")
    with pytest.raises(ConfigError, match="found 'first'"):
        rank_submissions({"a": {"x": [Result(1)]}}, "first")  # type: ignore[arg-type]


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_both_kinds_of_tables(tmp_path: Path) -> None:
    wide = table(tmp_path, "model,x,y\nb,0.5,failed\na,,0.25\n")
    assert read_scores(wide) == {
        "b": {"x": [Result(0.5)], "y": [Result(None)]},
        "a": {"x": [Result(None)], "y": [Result(0.25)]},
    }
    lines = tmp_path / "table.jsonl"
    lines.write_text(
        '{"model": "b", "x": 0.5, "y": "failed"}\n{"model": "a", "x": null, "y": 0.25}'
    )
    assert read_scores(lines) == read_scores(wide)
    long = table(
        tmp_path,
        "run,submission,data_set,score,half_width,who\n"
        "0,b,x,0.5,0.1,me\n1,b,x,0.25,,me\n0,a,x,nan,,me\n1,a,x,0.75,0,me\n",
    )
    assert read_scores(long) == {
        "b": {"x": [Result(0.5, 0.1), Result(0.25)]},
        "a": {"x": [Result(None), Result(0.75, 0.0)]},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one row"),
        ("model,x\n", "at least one row"),
        ("model\na\n", "one for each data set"),
        ("model,x,x\na,1,2\n", '"x" 2 times'),
        ("model,x\na,1\na,2\n", "line 3: expected a new submission, found 'a'"),
        ("model,x\na\n", "line 2: expected 2 fields.*found 1"),
        ("model,x\na,good\n", "line 2, column x: expected a finite number.*'good'"),
        ("model,x\na,inf\n", "found 'inf'"),
        ("submission,data_set,score\na,x,1\na,x,2\n", "line 3: .*a, x again"),
        ("submission,data_set,scor\na,x,1\n", 'column "score", .*rename "scor" to it'),
        ("submission,data_set,score\na,,1\n", "line 2: expected a submission and a data set"),
        ("submission,data_set,score,half_width\na,x,1,-1\n", "half width of at least 0"),
    ],
)
def test_tables_with_faults(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_scores(table(tmp_path, text))


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_scores(tmp_path / "none.csv")
    path = tmp_path / "latin.csv"
    path.write_bytes(b"model,x\n\xff,1\n")
    with pytest.raises(DataError, match="UTF-8"):
        read_scores(path)
    with pytest.raises(DataError, match="'y' to leave out"):
        read_scores(table(tmp_path, "model,x\na,1\n"), ["y"])

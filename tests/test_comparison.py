import copy
import math
from pathlib import Path

import numpy as np
import pytest

from fedsim.comparison import Difference, group_by_setting, rank_settings
from fedsim.config import RunConfig
from fedsim.errors import ConfigError, DataError
from fedsim.jobs import Job
from fedsim.kept_scores import KeptScores, keep_scores
from fedsim.over_seeds import SeedDifference
from fedsim.streams import numpy_stream


def summary(setting="a", seed=0, macro=0.5, micro=0.6, **changes):
    return {
        "name": "sizes", "kind": "federated", "setting": setting, "seed": seed,
        "run_id": f"{setting}-seed{seed}",
        "test": {
            "scores": {
                "macro_ap": macro, "macro_ap_binned200": 0.4, "micro_ap": micro,
                "micro_ap_binned200": 0.3, "num_examples": 7,
            },
            "per_class": [{"label": "x", "ap": 0.5, "positives": 3, "train_positives": 9}],
        },
        "constant_predictor": {"test": {"macro_ap": 0.1, "micro_ap": 0.2}},
        "privacy": {"num_rounds": 1, "rounds_done": 1},
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("run_id", "seed", "expected"),
    [
        ("seed0", 0, "exp"),
        ("cohort_size=4-seed10", 10, "cohort_size=4"),
        ("seed1-seed1", 1, "seed1"),
        ("centralized-seed1", 1, "centralized"),
        ("centralized-seed1-2", 1, "centralized-2"),
        ("my own", 3, "my own"),
    ],
)
def test_the_setting_of_a_run(run_id, seed, expected):
    assert Job(run_id, RunConfig(name="exp", seed=seed)).setting == expected


def test_runs_are_grouped_over_seeds():
    runs = [
        summary("b", 0, macro=0.25),
        summary("a", 0),
        summary("b", 1, macro=0.5),
        summary("b", 7, macro=0.75),
        summary("a", 0, kind="centralized"),
        summary("a", 0, name="other"),
    ]
    settings = group_by_setting(runs)
    assert [(s.experiment, s.kind, s.name) for s in settings] == [
        ("sizes", "federated", "b"),
        ("sizes", "federated", "a"),
        ("sizes", "centralized", "a"),
        ("other", "federated", "a"),
    ]
    first = settings[0]
    assert first.runs == {0: 0, 1: 2, 7: 3}
    macro = first.scores["macro_ap"]
    half = 4.302652729749464 * 0.25 / math.sqrt(3)  # Student's table, two degrees of freedom
    assert (macro.mean, macro.deviation) == (0.5, 0.25)
    assert macro.interval == pytest.approx((0.5 - half, 0.5 + half))
    assert first.scores["micro_ap_binned200"].mean == pytest.approx(0.3)
    assert first.constant_predictor == pytest.approx({"macro_ap": 0.1, "micro_ap": 0.2})
    assert first.epsilon_as_run is first.example_epsilon_max is None
    assert settings[1].scores["macro_ap"].interval is None


def test_the_largest_epsilon_over_seeds_is_told():
    def spent(as_run, at_noise_cohort, example):
        central = {"epsilon_as_run": as_run, "epsilon_at_noise_cohort": at_noise_cohort}
        return {"central": central, "example_level": {"epsilon_max": example}}

    cards = [spent(30.5, 2.0, 8.0), spent("infinity", 1.5, 9.0)]
    [found] = group_by_setting([summary(seed=i, privacy=card) for i, card in enumerate(cards)])
    assert found.epsilon_as_run == math.inf
    assert found.epsilon_at_noise_cohort == 2.0
    assert found.example_epsilon_max == 9.0


def test_scores_that_could_not_be_computed_have_no_mean():
    runs = [summary("a", 0, macro=None), summary("a", 1), summary("b", 0), summary("b", 1)]
    runs[0]["constant_predictor"] = {"test": {"macro_ap": None, "micro_ap": 0.2}}
    ranked = rank_settings(runs)
    assert [r.setting.name for r in ranked] == ["b", "a"]  # last: it has no macro AP
    assert ranked[1].setting.scores["macro_ap"] is None
    assert ranked[1].setting.constant_predictor == {"macro_ap": None, "micro_ap": 0.2}
    assert ranked[0].differences["macro_ap"] is None
    assert ranked[0].differences["micro_ap"].over_seeds.value == 0


@pytest.mark.parametrize(
    ("seeds", "users", "expected"),
    [
        (None, (0.1, 0.2), "one seed: noise unknown"),
        ((-0.1, 0.3), (0.1, 0.2), "within the seeds' noise"),
        ((0.0, 0.3), (0.1, 0.2), "within the seeds' noise"),
        ((0.1, 0.3), None, "users' noise unknown"),
        ((0.1, 0.3), (-0.1, 0.2), "within the users' noise"),
        ((0.1, 0.3), (0.0, 0.2), "within the users' noise"),
        ((0.1, 0.3), (0.1, 0.2), "larger"),
        ((-0.3, -0.1), (-0.2, -0.1), "smaller"),
        ((-0.3, -0.1), (-0.2, 0.1), "within the users' noise"),
    ],
)
def test_a_difference_is_real_only_over_seeds_and_over_users(seeds, users, expected):
    assert Difference(SeedDifference(0.2, seeds, "Welch"), users, None).verdict == expected


def test_settings_are_ranked_by_macro_ap_and_compared_with_the_first():
    scores = {"low": (0.1, 0.11), "high": (0.5, 0.52), "middle": (0.3, 0.3)}
    runs = [summary(n, i, macro=v) for n, values in scores.items() for i, v in enumerate(values)]
    ranked = rank_settings(runs)
    assert [r.setting.name for r in ranked] == ["high", "middle", "low"]
    assert ranked[2].differences == {}
    found = ranked[0].differences["macro_ap"]
    assert found.over_seeds.value == pytest.approx(0.405)
    assert found.over_seeds.method == "paired by seed"
    assert found.verdict == "users' noise unknown"
    assert found.over_users_reason == "no folders were given"
    against = {r.setting.name: r.differences for r in rank_settings(runs, reference="middle")}
    assert against["middle"] == {}
    assert against["low"]["macro_ap"].over_seeds.value == pytest.approx(-0.195)


def test_equal_settings_are_called_so_nineteen_times_in_twenty():
    rng, equal = numpy_stream(0, "equal settings"), 0
    for _ in range(400):
        macros = rng.normal(0.3, 0.02, (2, 4)).tolist()
        runs = [summary("ab"[i], s, macro=macros[i][s]) for i in (0, 1) for s in range(4)]
        [found] = [r.differences["macro_ap"] for r in rank_settings(runs) if r.differences]
        equal += found.verdict == "within the seeds' noise"
    assert 368 <= equal <= 392


def kept_runs(out: Path, strengths: dict[str, float]) -> tuple[list[dict], list[Path]]:
    """Three seeds of each setting, scored on the same 30 users."""
    owner = np.repeat(np.arange(30, dtype=np.int32), 4)
    targets = numpy_stream(0, "targets").random((120, 2)) < 0.3
    runs, folders = [], []
    for name, strength in strengths.items():
        for seed in range(3):
            noise = numpy_stream(seed, "scores", name).standard_normal(targets.shape)
            logits = (strength * targets + noise).astype(np.float32)
            folders.append(out / f"{name}-seed{seed}")
            folders[-1].mkdir()
            users = tuple(f"u{i:02}" for i in range(30))
            keep_scores(folders[-1], KeptScores(logits, targets, owner, users, ("x", "y")))
            runs.append(summary(name, seed, macro=strength + 0.01 * seed * len(name)))
    return runs, folders


def test_kept_scores_tell_whether_other_users_would_agree(tmp_path):
    strengths = {"base": 0.2, "better": 2.0, "equal": 0.2001}
    runs, folders = kept_runs(tmp_path, strengths)
    found = {r.setting.name: r.differences for r in rank_settings(runs, folders, num_resamples=200)}
    better = found["better"]["macro_ap"]
    assert better.over_users[0] > 0.1
    assert (better.verdict, better.over_users_reason) == ("larger", None)
    low, high = found["equal"]["macro_ap"].over_users
    assert low < 0 < high
    turned = rank_settings(runs, folders, reference="better", num_resamples=200)
    assert turned[-1].differences["macro_ap"].verdict == "smaller"


def test_a_run_that_kept_no_scores_is_named(tmp_path):
    runs, folders = kept_runs(tmp_path, {"base": 0.2, "better": 2.0})
    (folders[4] / "test_scores.npz").unlink()
    found = rank_settings(runs, folders)[0].differences["micro_ap"]
    assert found.over_users is None
    assert found.over_users_reason == "better-seed1 has no test_scores.npz"


def changed(**test):
    other = copy.deepcopy(summary("b"))
    other["test"] |= test
    return other


@pytest.mark.parametrize(
    ("runs", "reference", "error", "message"),
    [
        ([], None, ConfigError, "expected at least one finished run"),
        ([summary(), summary()], None, ConfigError, "sizes/a-seed0.*found two of seed 0"),
        ([summary()], "c", ConfigError, "found 0 called 'c'; choose one of a"),
        ([summary(), summary(name="other")], "a", ConfigError, "found 2 called 'a'"),
        (
            [summary(), changed(per_class=[{"label": "y", "positives": 3}])],
            None,
            DataError,
            "sizes/b-seed0: expected the test images and labels of sizes/a-seed0",
        ),
        (
            [summary(), changed(scores={**summary()["test"]["scores"], "num_examples": 8})],
            None,
            DataError,
            "found others",
        ),
    ],
)
def test_refusals(runs, reference, error, message):
    with pytest.raises(error, match=message):
        rank_settings(runs, reference=reference)

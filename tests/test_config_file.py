import re
from pathlib import Path

import pytest

from fedsim.config_file import load_runs
from fedsim.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return path


def test_every_default_is_written_out_and_sampling_follows_privacy(tmp_path: Path) -> None:
    runs = load_runs(
        write(
            tmp_path,
            """
            name: x
            cases:
              plain: {}
              private: {privacy.central: {clipping_norm: 1, noise_multiplier: 1e-3}}
            """,
        )
    )
    plain, private = runs["plain-seed0"], runs["private-seed0"]
    assert plain.federated.sampling == "fixed_size"
    assert private.federated.sampling == "poisson"
    assert private.privacy.central.noise_multiplier == 0.001  # YAML 1.1 would make it a string
    assert plain.model_dump()["federated"]["local"]["batch_size"] == 16


def test_cases_sweep_seeds_and_overrides(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        name: x
        seeds: [0, 1]
        cases: {a: {}, b: {federated.local.epochs: 2}}
        sweep: {federated.local.learning_rate: [0.1, 0.2], federated.cohort_size: [5, 6]}
        """,
    )
    runs = load_runs(path)
    assert len(runs) == 16
    assert next(iter(runs)) == "a-learning_rate=0.1-cohort_size=5-seed0"
    run = runs["b-learning_rate=0.2-cohort_size=6-seed1"]
    assert (run.federated.local.learning_rate, run.federated.cohort_size, run.seed) == (0.2, 6, 1)
    assert run.federated.local.epochs == 2
    # An override wins over cases and sweep, and a swept key that is overridden is not swept.
    fixed = load_runs(path, ["federated.local.epochs=3", "federated.cohort_size=9", "seed=4"])
    assert list(fixed) == [f"{c}-learning_rate={r}-seed4" for c in "ab" for r in (0.1, 0.2)]
    assert all(r.federated.local.epochs == 3 for r in fixed.values())
    assert list(load_runs(path, ["cases={c: {}}", "sweep={}"])) == ["c-seed0", "c-seed1"]


def test_swept_sections_make_readable_folders(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        name: x
        sweep:
          privacy.central: [null, {clipping_norm: 1, epsilon: 2}]
          strategy.name: ["./mine.py:Mine"]
        """,
    )
    assert list(load_runs(path)) == [
        "central=none-name=._mine.py_Mine-seed0",
        "central=clipping_norm=1,epsilon=2-name=._mine.py_Mine-seed0",
    ]


def test_all_faults_at_once_each_with_its_path_and_a_remedy(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        name: x
        dat: {}
        data: {labels: huge, image_sise: 3}
        federated: {cohort_size: 0, local: {learning_rate: -1, momentum: 1.5}}
        privacy:
          central: {clipping_norm: 1}
        evaluation: {every: yes}
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load_runs(path)
    text = str(caught.value)
    for expected in (
        "dat: expected a known key, found 'dat'; did you mean 'data'?",
        "data.image_sise: expected a known key, found 'data.image_sise'; did you mean",
        "data.labels: expected 'coarse' or 'fine', found 'huge'",
        "federated.cohort_size: expected greater than or equal to 1, found 0",
        "federated.local.learning_rate: expected greater than 0, found -1",
        "federated.local.momentum: expected less than 1, found 1.5",
        "privacy.central: expected noise_multiplier or epsilon, found neither",
        "evaluation.every: expected a valid integer, found 'yes'",
    ):
        assert expected in text
    assert text.count("\n  - ") == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "line 1, column 8: expected YAML, found an end where a value should be"),
        ("a: {b: 1\nc: 2", "line 2, column 2: expected YAML, found a list or mapping that is not"),
        ("a:\n  b: 1\n c: 2", "line 3, column 2: expected YAML, found a line of another indent"),
        ("a: b: c", "line 1, column 5: expected YAML, found a second ': ' in one value; quote"),
        ("a:\n\tb: 1", "line 2, column 1: expected YAML, found a tab; indent with spaces"),
        ("a: *b", "line 1, column 4: expected YAML, found *b without &b before it"),
        ("a: @b", "found a value that begins with '@'; quote the value"),
        ("a: 'b", "found a quote that is not closed"),
        ("- a", "expected a mapping of sections, found list"),
        ("name: x\nname: y", "duplicate key"),
        ("name: x\nsweep: {federated.num_rounds: 3}", "expected a list of values"),
        ("name: x\nsweep: {federated.num_rounds: []}", "expected a list of values"),
        ("name: x\nseeds: 3", "seeds: expected a list"),
        ("name: x\nseeds: [0, 0]", "two that would be called seed0"),
        ("name: x\nsweep: {1: [2]}", "sweep: expected names"),
        ("name: x\ncases: {a: {name.x: 3}}", "expected 'name' to be a section"),
        (
            "name: x\nfederated: {num_rounds: 5}\ncases: {a: {federated: {cohort_size: 3}}}",
            "without federated.num_rounds of the file's; write federated.cohort_size: 3",
        ),
        ("name: ../x", "name: expected"),
        ("name: !!python/object/apply:os.system [ls]", "expected YAML"),
        ("name: x\nstrategy: {name: 3}", "strategy.name: expected a valid string"),
        ("", "expected a mapping of sections, found NoneType"),
    ],
)  # fmt: skip
def test_bad_files_get_one_clear_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_runs(write(tmp_path, text))


def test_faults_of_the_expansions_do_not_hide_others(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        name: x
        seeds: 3
        data: {labels: huge}
        sweep:
          federated.cohort_size: 5
          federated.num_rounds: {linspace: [1]}
          zip: [{federated.local.epochs: [1, 2], model.depth: [1]}]
          exclude: [{federated.cohort_sise: 5}]
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load_runs(path)
    text = str(caught.value)
    for expected in (
        "seeds: expected a list, found 3",
        "data.labels: expected 'coarse' or 'fine', found 'huge'",
        "sweep.federated.cohort_size: expected a list of values, found 5",
        "sweep.federated.num_rounds: expected a list of values",
        "sweep.zip: expected lists of one length in a group",
        "found 'federated.cohort_sise'; did you mean 'federated.cohort_size'?",
    ):
        assert expected in text
    assert text.count("\n  - ") == 6
    assert text.count(str(path)) == 1


def test_a_missing_file_and_a_bad_override(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_runs(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"expected dotted\.key=value"):
        load_runs(write(tmp_path, "name: x"), ["federated.num_rounds"])
    with pytest.raises(ConfigError, match="expected a YAML value"):
        load_runs(write(tmp_path, "name: x"), ["name=["])


def test_a_run_s_own_config_reads_back_to_the_same_run(tmp_path: Path) -> None:
    from fedsim.record import RunFolder

    (run,) = load_runs(
        write(tmp_path, "name: x\nstrategy: {name: fedavg, weighting: uniform}")
    ).values()
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    folder.write_config(run.model_dump())
    assert list(load_runs(folder.path / "config.yaml").values()) == [run]


def test_values_that_go_together_and_combinations_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        name: x
        cases: {a: {}, b: {federated.local.momentum: 0.9}}
        sweep:
          federated.local.learning_rate: {logspace: [0.01, 1, 3]}
          zip:
            - {federated.num_rounds: [40, 80], federated.cohort_size: {linspace: [20, 10, 2]}}
          exclude:
            - {case: b, federated.num_rounds: 80}
            - {federated.local.learning_rate: 0.01, federated.local.momentum: 0.9}
        """,
    )
    found = {
        (r.case, r.federated.local.learning_rate, r.federated.num_rounds, r.federated.cohort_size)
        for r in load_runs(path).values()
    }
    assert found == {
        *(("a", rate, *pair) for rate in (0.01, 0.1, 1.0) for pair in ((40, 20), (80, 10))),
        *(("b", rate, 40, 20) for rate in (0.1, 1.0)),
    }
    # What is set on the command line leaves its group.
    fixed = load_runs(path, ["federated.num_rounds=7", "sweep.exclude=[]", "cases={}"])
    assert {(r.federated.num_rounds, r.federated.cohort_size) for r in fixed.values()} == {
        (7, 20),
        (7, 10),
    }
    with pytest.raises(ConfigError, match="expected runs to be left, found none"):
        load_runs(path, ["sweep.exclude=[{case: a}, {case: b}]"])


def test_a_file_extends_another(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "base.yaml").write_text(
        "name: base\nfederated: {num_rounds: 5, local: {epochs: 3, momentum: 0.5}}\n"
        "strategy: {name: fedavg, weighting: uniform}\ncases: {a: {seed: 1}}\n"
    )
    (tmp_path / "below" / "middle.yaml").write_text(
        "extends: ../base.yaml\nname: middle\nfederated: {local: {epochs: 1}}\n"
    )
    path = write(
        tmp_path, "extends: below/middle.yaml\nstrategy: {name: fedadam}\ncases: {b: {}}\n"
    )
    runs = load_runs(path)
    assert [run.case for run in runs.values()] == ["a", "b"]
    run = runs["b-seed0"]
    assert run.name == "middle"
    local = run.federated.local
    assert (run.federated.num_rounds, local.epochs, local.momentum) == (5, 1, 0.5)
    # Another strategy takes no parameters over, the same one does.
    assert run.strategy.parameters == {}
    same = write(tmp_path, "extends: base.yaml\nstrategy: {name: fedavg, server_momentum: 0.9}")
    assert load_runs(same)["a-seed0"].strategy.parameters == {
        "weighting": "uniform",
        "server_momentum": 0.9,
    }
    for text, message in (
        ("extends: [a]", "expected the path of a YAML file"),
        ("extends: file.yaml", "extends itself"),
        ("extends: none.yaml", "No such file"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_runs(write(tmp_path, text))


def test_a_fault_says_where_its_value_was_set(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        name: x
        cases: {a: {}, b: {data.labels: huge}}
        sweep: {federated.cohort_size: [5, 0]}
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load_runs(path, ["evaluation={every: 0}"])
    text = str(caught.value)
    assert "data.labels: expected 'coarse' or 'fine', found 'huge'; change it (set by cases.b)" in (
        text
    )
    assert "found 0; change it (set by sweep)" in text
    assert (
        "evaluation.every: expected greater than or equal to 1, found 0; change it (set by the"
        in (text)
    )
    assert text.count("\n  - ") == 3


def test_long_values_make_short_names(tmp_path: Path) -> None:
    long = "./a/long/path/to/strategies/of/mine/with/words.py"
    path = write(tmp_path, f"name: x\nsweep: {{strategy.name: [{long}:A, {long}:B]}}")
    ids = list(load_runs(path))
    assert len(set(ids)) == 2
    assert all(len(run_id) < 60 and run_id.endswith("-seed0") for run_id in ids)
    many = ", ".join(f"model.parameter_number_{k}: [1]" for k in range(30))
    (run_id,) = load_runs(write(tmp_path, f"name: x\nsweep: {{{many}}}"))
    assert len(run_id) < 180


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("{federated.num_rounds: {logspace: [0, 1, 3]}}", "expected a list of values"),
        ("{federated.num_rounds: {linspace: [1, 2]}}", "expected a list of values"),
        ("{federated.num_rounds: {linspace: [1, 2, 1]}}", "expected a list of values"),
        ("{federated.num_rounds: {linspace: [1, .inf, 3]}}", "expected a list of values"),
        ("{zip: {a: [1]}}", "sweep.zip: expected a list of groups"),
        ("{zip: [{model.a: [1, 2], model.b: [1]}]}", "lists of one length in a group"),
        ("{exclude: {a: 1}}", "sweep.exclude: expected a list of combinations"),
        ("{model.a: [1], exclude: [{model.b: 1}]}", "expected keys that vary"),
        ("{model.a: [1], exclude: [{2: 1}]}", "sweep.exclude: expected a list of combinations"),
        ("{zip: [{2: [1]}]}", "sweep.zip: expected a list of groups"),
        ("{2: [1]}", "sweep: expected names"),
    ],
)
def test_bad_sweeps_get_one_clear_sentence(tmp_path: Path, sweep: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_runs(write(tmp_path, f"name: x\nsweep: {sweep}"))


@pytest.mark.parametrize("changes", ["{2: 1}", "[]", "7"])
def test_bad_cases_get_one_clear_sentence(tmp_path: Path, changes: str) -> None:
    with pytest.raises(ConfigError, match=r"cases\.a: expected dotted keys with values"):
        load_runs(write(tmp_path, f"name: x\ncases: {{a: {changes}}}"))


def test_an_excluding_rule_without_work_is_a_fault(tmp_path: Path) -> None:
    text = "name: x\nsweep: {federated.cohort_size: [5, 6], exclude: [{federated.cohort_size: 7}]}"
    with pytest.raises(ConfigError, match="expected rules that leave out a run"):
        load_runs(write(tmp_path, text))


def test_a_named_section_or_a_whole_one_may_be_replaced(tmp_path: Path) -> None:
    base = "name: x\nfederated: {num_rounds: 5}\nstrategy: {name: fedadam, beta_1: 0.5}\n"
    path = write(
        tmp_path,
        base + "cases: {a: {strategy: {name: fedavg}, federated: {num_rounds: 6, cohort_size: 3}}}",
    )
    (run,) = load_runs(path).values()
    assert run.strategy.name == "fedavg"
    assert (run.federated.num_rounds, run.federated.cohort_size) == (6, 3)
    (run,) = load_runs(path, ["cases={b: {federated.cohort_size: 2}}"]).values()
    assert run.federated.num_rounds == 5


def test_another_partition_takes_no_parameters_over(tmp_path: Path) -> None:
    base = "name: x\ndata: {partition: {method: dirichlet, alpha: 0.1}}\n"
    path = write(tmp_path, base)
    for override in ("data.partition.method=iid", "data.partition={method: iid}"):
        (run,) = load_runs(path, [override]).values()
        assert run.data.partition.method == "iid"
    swept = write(tmp_path, base + "sweep: {data.partition.method: [dirichlet, iid]}")
    assert [run.data.partition.method for run in load_runs(swept).values()] == ["dirichlet", "iid"]
    (tmp_path / "base.yaml").write_text(base)
    extending = write(
        tmp_path, "extends: base.yaml\ndata: {partition: {method: quantity, skew: 1}}"
    )
    (run,) = load_runs(extending).values()
    assert run.data.partition.skew == 1

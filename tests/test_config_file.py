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
        ("name: [", "expected YAML"),
        ("- a", "expected a mapping of sections, found list"),
        ("name: x\nname: y", "duplicate key"),
        ("name: x\nsweep: {federated.num_rounds: 3}", "expected a list of values"),
        ("name: x\nsweep: {federated.num_rounds: []}", "expected a list of values"),
        ("name: x\nseeds: 3", "seeds: expected a list"),
        ("name: x\nseeds: [0, 0]", "two that would be called seed0"),
        ("name: x\nsweep: {1: [2]}", "sweep: expected names"),
        ("name: x\ncases: {a: {name.x: 3}}", "expected 'name' to be a section"),
        ("name: ../x", "name: expected"),
        ("name: !!python/object/apply:os.system [ls]", "expected YAML"),
        ("name: x\nstrategy: {name: 3}", "strategy.name: expected a valid string"),
        ("", "expected a mapping of sections, found NoneType"),
    ],
)  # fmt: skip
def test_bad_files_get_one_clear_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_runs(write(tmp_path, text))


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

"""The command ``fedsim evaluate class-prior``, from files to every published number."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.prevalence import average_precision_at_prevalence
from fedsim.metrics import average_precision

CASES = Path(__file__).parent / "cases"
DIGITS = CASES / "digits_lt" / "predictions.npz"
EXPECTED = json.loads((CASES / "digits_lt" / "expected.json").read_text())
PRINTED = json.loads((CASES / "cifar10lt_seed" / "seed_printed.json").read_text())


def asked(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["evaluate", "class-prior", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("digits") / "new"
    return asked(DIGITS, "--out", out), out


def test_all_of_the_digits(digits: tuple[str, Path]) -> None:
    found = json.loads((digits[1] / "class_prior.json").read_text())
    for model in ("ce", "logit_adj"):
        expected, own = EXPECTED[model], found["models"][model]
        scores = {name: own["scores"][name]["mean"] for name in own["scores"]}
        pairs = [
            (scores["accuracy"][0], expected["balanced"]),
            (scores["accuracy"][-1], expected["rho100"]),
            (own["means"]["training_prior_accuracy"], expected["test_at_training_prior"]),
            (own["means"]["validation_accuracy"], expected["val_measured"]),
        ]
        pairs += [(value, expected["macro_recall"]) for value in scores["macro_recall"]]
        for name in ("macro_precision", "macro_specificity"):
            pairs.append((scores[name][0], expected[f"{name}_rho1"]))
            pairs.append((scores[name][-1], expected[f"{name}_rho100"]))
        for ours, theirs in pairs:
            assert ours == pytest.approx(theirs, abs=1e-12)
        runs = [run for run in found["runs"] if run["model"] == model]
        accuracies = [run["accuracy"] for run in runs]
        assert accuracies == pytest.approx(EXPECTED["test_acc_by_seed"][model], abs=1e-12)
        recall = EXPECTED["recall_test_seed0"][model]
        assert own["recall_by_class"][0] == pytest.approx(recall, abs=1e-12)
    (first, *_) = found["runs"]
    assert first["validation_accuracy"] == pytest.approx(EXPECTED["ce0"]["val"]["accuracy"])
    assert first["validation_macro_recall"] == pytest.approx(EXPECTED["ce0"]["val"]["macro_recall"])
    assert first["macro_recall"] == pytest.approx(EXPECTED["ce0"]["test"]["macro_recall"])
    gaps = [run["validation_accuracy"] - run["validation_macro_recall"] for run in found["runs"]]
    assert np.mean(gaps) == pytest.approx(EXPECTED["mean_val_gap"], abs=1e-12)
    (pair,) = found["pairs"]
    assert pair["crossings"] == pytest.approx([EXPECTED["rho_star"]], abs=1e-9)
    assert pair["orders"]["0"] == EXPECTED["pareto_seed0"]
    rows = [[row[key] for key in ("label", "mean", "low", "high")] for row in pair["differences"]]
    np.testing.assert_allclose(rows, EXPECTED["bootstrap_diff"], atol=1e-12)
    keys = ("label", "num_images", "mean", "low", "high")
    rows = [[row[key] for key in keys] for row in found["validation_recall"]]
    np.testing.assert_allclose(rows, EXPECTED["bootstrap_val_789"], atol=1e-12)


def test_tables_files_and_figure(digits: tuple[str, Path]) -> None:
    shown, out = digits
    assert "9.940154" in shown
    assert "incomparable (5)" in shown
    assert {path.name for path in out.iterdir()} == {
        "class_prior.json",
        "class_prior.csv",
        "class_prior_runs.csv",
        "class_prior_pairs.csv",
        "class_prior_recalls.csv",
        "class_prior_validation.csv",
        "accuracy_by_prior.png",
        "accuracy_by_prior.svg",
    }
    with (out / "class_prior.csv").open() as file:
        rows = {(row["model"], row["score"]): row for row in csv.DictReader(file)}
    assert float(rows["ce", "accuracy"]["100"]) == pytest.approx(EXPECTED["ce"]["rho100"])
    svg = (out / "accuracy_by_prior.svg").read_text()
    for text in ("logit_adj", "9.94", "Accuracy under other class priors"):
        assert text in svg


def test_the_printed_numbers_of_the_notebook(tmp_path: Path) -> None:
    hits = PRINTED["test_true_positives_of_1000_seed0"]
    targets = np.repeat(np.arange(10), 1000)
    place = np.tile(np.arange(1000), 10)
    predictions = [
        np.where(place < np.array(hits[model])[targets], targets, (targets + 1) % 10)
        for model in hits
    ]
    right = PRINTED["bootstrap"]["order_reproducing_the_printed_table"]
    validation = np.concatenate([np.full(len(values), int(k)) for k, values in right.items()])
    guessed = np.where(np.concatenate(list(right.values())), validation, 0)
    path = tmp_path / "cifar.npz"
    np.savez(
        path,
        loss=np.array(list(hits)),
        seed=np.array([0, 0]),
        y_test=targets,
        pred_test=np.array(predictions),
        y_val=np.array([validation] * 2),
        pred_val=np.array([guessed] * 2),
    )
    found = json.loads(asked(path, "--json"))
    exact = PRINTED["derived_exact"]
    assert found["ratios"] == [float(ratio) for ratio in exact["accuracy_seed0_geometric_prior"]]
    for model in hits:
        printed = [values[model] for values in exact["accuracy_seed0_geometric_prior"].values()]
        scores = found["models"][model]["scores"]
        assert scores["accuracy"]["mean"] == pytest.approx(printed, abs=1e-12)
        assert scores["macro_recall"]["mean"] == pytest.approx(
            [exact["macro_recall_seed0"][model]] * 5, abs=1e-12
        )
    assert [round(run["accuracy"], 4) for run in found["runs"]] == [0.6498, 0.7127]
    (pair,) = found["pairs"]
    assert pair["crossings"] == pair["exact_crossings"] == []
    assert pair["orders"] == {"0": exact["pareto_seed0"]}
    rows = {
        str(row["label"]): [
            row["num_images"],
            *(round(row[key], 3) for key in ("mean", "low", "high")),
        ]
        for row in found["validation_recall"]
    }
    assert rows == PRINTED["bootstrap"]["printed"]


def test_one_model_of_a_plain_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("target,prediction\n0,0\n0,0\n0,0\n0,1\n1,1\n1,0\n")
    shown = asked(path, "--ratios", "1,3", "--out", tmp_path / "out")
    assert "mine" in shown
    found = json.loads((tmp_path / "out" / "class_prior.json").read_text())
    accuracy = found["models"]["mine"]["scores"]["accuracy"]["mean"]
    assert accuracy == pytest.approx([0.625, (3 * 0.75 + 0.5) / 4])
    assert found["pairs"] == []
    assert found["validation_recall"] is None
    assert not (tmp_path / "out" / "class_prior_pairs.csv").exists()


def test_many_models_without_a_common_seed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["model,seed,target,prediction"]
    lines += [
        f"m{model},{model},{k},{rng.integers(0, 3)}" for model in range(10) for k in (0, 1, 2) * 9
    ]
    path = tmp_path / "many.csv"
    path.write_text("\n".join(lines))
    shown = asked(path, "--out", tmp_path)
    assert "no common seed" in shown
    found = json.loads((tmp_path / "class_prior.json").read_text())
    assert len(found["pairs"]) == 45
    assert all(pair["differences"] is None for pair in found["pairs"])
    assert "m7" in (tmp_path / "accuracy_by_prior.svg").read_text()


def test_labels_at_one_prevalence(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    targets = rng.random((400, 3)) < [0.5, 0.1, 0.0]
    scores: npt.NDArray[Any] = 1 / (1 + np.exp(-rng.normal(2.0 * targets, 1.0)))
    path = tmp_path / "labels.npz"
    np.savez(path, targets=targets, scores=scores, labels=np.array(["cat", "dog", "eel"]))
    shown = asked(path, "--prevalence", "0.1", "--out", tmp_path / "out")
    assert "AP at 0.1" in shown
    found = json.loads((tmp_path / "out" / "prevalence.json").read_text())
    cat, dog, eel = found["per_label"]
    assert [cat["label"], dog["label"], eel["label"]] == ["cat", "dog", "eel"]
    plain = average_precision(targets, scores, average=None)
    assert [cat["AP"], dog["AP"]] == pytest.approx(plain[:2].tolist())
    assert cat["AP at 0.1"] < cat["AP"] - 0.2
    direct = average_precision_at_prevalence(targets, scores, 0.1, average=None)
    assert [cat["AP at 0.1"], dog["AP at 0.1"]] == pytest.approx(direct[:2].tolist())
    assert eel["AP"] is eel["AP at 0.1"] is None
    assert found["macro"]["AP at 0.1"] == pytest.approx((cat["AP at 0.1"] + dog["AP at 0.1"]) / 2)
    assert found["macro"]["precision"] == pytest.approx((cat["precision"] + dog["precision"]) / 2)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "prevalence.json",
        "prevalence.csv",
        "ap_at_prevalence.png",
        "ap_at_prevalence.svg",
    }


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("--ratios", "1,a"), ConfigError, "expected numbers with commas between, found '1,a'"),
        (("--ratios", "1"), ConfigError, "expected one above 1"),
        (("--ratios", "0.5,3"), ConfigError, "at least 1"),
        (("--ratios", "nan"), ConfigError, "at least 1"),
        (("--classes", "9"), DataError, "expected a class from 0 to 8, found 9"),
        (("--classes", "1"), ConfigError, "classes: expected at least 2, found 1"),
        (("--seed", "-1"), ConfigError, "seed: expected a whole number from 0, found -1"),
    ],
)
def test_faulty_options(
    arguments: tuple[str, ...], error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "ten.csv"
    path.write_text("target,prediction\n" + "".join(f"{k},{k}\n" for k in range(10)))
    with pytest.raises(error, match=words):
        asked(path, *arguments)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1,1\n2,2\n", "each of 3 classes, found none of class 0; number the classes from 0"),
        ("0,0\n1,2\n", "each of 3 classes, found none of class 2"),
        ("0,0\n1,1\n3,1\n", "each of 4 classes, found none of class 2"),
        ("0,0\n1,1\n2,9999\n", "each of 10,000 classes, found none of class 3"),
    ],
)
def test_a_class_without_test_images(tmp_path: Path, rows: str, words: str) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("target,prediction\n" + rows)
    with pytest.raises(DataError, match=words):
        asked(path)

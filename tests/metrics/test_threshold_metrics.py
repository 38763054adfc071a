from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from sklearn.metrics import precision_recall_fscore_support
from worked_cases import CASES, EXPECTED, expected_values, federated

from fedsim.errors import ConfigError, DataError
from fedsim.metrics import apple_macro_f1, card_f1, precision_recall_f1
from fedsim.streams import numpy_stream

CARD = Path(__file__).parents[2] / ".." / "shared" / "seeds" / "flair_eval.txt"


@pytest.mark.parametrize("case", CASES)
def test_worked_cases(case):
    targets, probabilities = CASES[case]
    values = {
        "seed 'compute_ap' micro (F1 @ >0.5)": card_f1(targets, probabilities > 0.5, "micro"),
        "seed 'compute_ap' macro": card_f1(targets, probabilities > 0.5, "macro"),
        "ml-flair macro F1 (F1 of macro P,R)": apple_macro_f1(targets, probabilities),
        "sklearn f1 macro zero_division=0": precision_recall_f1(targets, probabilities)[2],
    }
    for name, value in values.items():
        assert value == pytest.approx(expected_values(case)[name], abs=5e-7), name


def test_leaving_out_undefined_f1_gives_the_same_in_the_worked_cases_with_positives():
    for case, (targets, probabilities) in CASES.items():
        f1 = precision_recall_f1(targets, probabilities, average=None)[2]
        defined = targets.any(axis=0) | (probabilities > 0.5).any(axis=0)
        found = f1[defined].mean() if defined.any() else 0.0
        assert found == pytest.approx(expected_values(case)["sklearn f1 macro zd=nan"], abs=5e-7)


def test_federated_case():
    targets, probabilities, _ = federated()
    expected = EXPECTED["fed"]
    for average in ("micro", "macro"):
        value = card_f1(targets, probabilities > 0.5, average)
        assert value == pytest.approx(expected[f"f1_{average}"], abs=1e-13)
        f1 = precision_recall_f1(targets, probabilities, average=average)[2]
        assert f1 == pytest.approx(expected[f"f1_{average}"], abs=2e-8)
    found = apple_macro_f1(targets, probabilities)
    assert found == pytest.approx(expected["flair_macro_f1"], abs=1e-12)


@given(hnp.arrays(np.bool_, (6, 3)), hnp.arrays(np.bool_, (6, 3)))
@settings(max_examples=50, deadline=None)
def test_scikit_learn(targets, predicted):
    probabilities = np.where(predicted, 0.75, 0.25)
    for average in ("macro", "micro", None):
        theirs = precision_recall_fscore_support(
            targets, predicted, average=average, zero_division=0
        )[:3]
        found = precision_recall_f1(targets, probabilities, average=average)
        np.testing.assert_allclose(found, theirs, atol=1e-15)
        if average is not None:
            assert card_f1(targets, predicted, average) == pytest.approx(theirs[2], abs=3e-8)
    precision, recall, _ = precision_recall_f1(targets, probabilities)
    expected = 2 / (1 / precision + 1 / recall) if precision and recall else 0
    assert apple_macro_f1(targets, probabilities) == pytest.approx(expected)


@pytest.mark.skipif(not CARD.exists(), reason="the evaluation card is not beside the repository")
@pytest.mark.parametrize("average", ["micro", "macro"])
def test_card_f1_is_the_code_on_the_card(average):
    text = CARD.read_text()
    namespace = {"np": np}
    exec(text[text.index("def compute_ap") : text.index("Common pitfalls")], namespace)
    rng = numpy_stream(0, "card")
    for _ in range(20):
        targets, predicted = rng.random((2, 9, 4)) < 0.4
        expected = namespace["compute_ap"](targets, predicted, average)
        assert card_f1(targets, predicted, average) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_score_on_the_threshold_is_not_predicted(dtype):
    targets = np.array([[True], [True]])
    probabilities = np.array([[0.3], [np.nextafter(dtype(0.3), dtype(1))]], dtype=dtype)
    found = precision_recall_f1(targets, probabilities, threshold=0.3)
    assert found == pytest.approx((1, 0.5, 2 / 3))


def test_undefined_quotients_are_zero():
    nothing = np.zeros((3, 2), dtype=bool)
    assert precision_recall_f1(nothing, np.zeros((3, 2))) == (0, 0, 0)
    assert apple_macro_f1(nothing, np.zeros((3, 2))) == 0
    assert card_f1(nothing, nothing, "macro") == 0
    assert np.isnan(precision_recall_f1(nothing[:, :0], np.zeros((3, 0)))).all()
    assert np.isnan([apple_macro_f1(nothing[:, :0], np.zeros((3, 0)))]).all()


def test_refusals():
    targets = np.ones((2, 1), dtype=bool)
    with pytest.raises(DataError, match="apply the sigmoid to logits"):
        precision_recall_f1(targets, np.array([[3.0], [0.1]]))
    with pytest.raises(DataError, match=r"predictions \[row 0, class 0\]: expected 0 or 1"):
        card_f1(targets, np.array([[0.9], [0.1]]))
    with pytest.raises(DataError, match=r"predictions: expected the targets' shape"):
        card_f1(targets, np.ones((1, 1), dtype=bool))
    with pytest.raises(ConfigError, match="average: expected one of"):
        card_f1(targets, targets, "samples")
    with pytest.raises(ConfigError, match="average: expected one of"):
        precision_recall_f1(targets, np.ones((2, 1)), average="samples")

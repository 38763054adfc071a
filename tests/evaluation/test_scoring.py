"""Scores of a model against scikit-learn, torch, and a loop over images."""

import numpy as np
import pytest
import torch
from fakes import TinyDataset, tiny_app, tiny_arrays, tiny_model, tiny_transform
from sklearn.metrics import average_precision_score, f1_score

from fedsim.bookkeeping import _train_words
from fedsim.data.dataset import num_examples
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import EngineError
from fedsim.evaluation.final import score_constant, score_test
from fedsim.evaluation.scoring import SplitScorer, mean_loss, score_logits
from fedsim.flower_seam import to_record

DATA = TinyDataset()


def logits_one_by_one() -> np.ndarray:
    model, transform = tiny_model(), tiny_transform()
    images = DATA.load("val", np.arange(num_examples(DATA, "val"))).images
    with torch.no_grad():
        return torch.cat([model(transform.eval_batch(image[None])) for image in images]).numpy()


@pytest.mark.parametrize("workers", [1, 2])
def test_logits_come_back_in_the_order_of_the_examples(workers: int) -> None:
    grid = InProcessGrid(tiny_app, tiny_arrays(), num_users=len(DATA.table), num_workers=workers)
    with grid:
        scorer = SplitScorer(grid, DATA, "val", batch_size=7)
        logits = scorer.logits(to_record(tiny_arrays()))
    np.testing.assert_allclose(logits, logits_one_by_one(), atol=1e-5)


def test_a_subset_is_fixed_by_the_seed() -> None:
    with InProcessGrid(tiny_app, tiny_arrays(), num_users=len(DATA.table)) as grid:
        scorers = [
            SplitScorer(grid, DATA, "val", batch_size=7, num_images=20, seed=s) for s in (1, 1, 2)
        ]
        a, b, c = (scorer.logits(to_record(tiny_arrays())) for scorer in scorers)
    assert a.shape == (20, 3)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_scores_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    targets = rng.random((200, 5)) < 0.3
    logits = rng.normal(size=(200, 5)).astype(np.float32)
    scores = score_logits(targets, logits)
    for average in ("micro", "macro"):
        expected = average_precision_score(targets, logits, average=average)
        assert scores[f"{average}_ap"] == pytest.approx(expected, abs=1e-12)
        f1 = f1_score(targets, logits > 0, average=average)
        assert scores[f"{average}_f1"] == pytest.approx(f1, abs=1e-12)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.from_numpy(logits).double(), torch.from_numpy(targets).double()
    )
    assert scores["loss"] == pytest.approx(float(loss), rel=1e-12)
    assert mean_loss(targets, 100 * logits) == pytest.approx(
        float(
            torch.nn.functional.binary_cross_entropy_with_logits(
                torch.from_numpy(100 * logits).double(), torch.from_numpy(targets).double()
            )
        ),
        rel=1e-9,
    )


def test_what_can_not_be_computed_is_null_with_its_reason() -> None:
    scores = score_logits(np.zeros((4, 2), bool), np.zeros((4, 2), np.float32))
    assert scores["macro_ap"] is None
    assert scores["macro_ap_reason"] == "no example of this split has a label"
    assert scores["num_classes_scored"] == 0


def test_a_model_that_diverged_is_an_error() -> None:
    with pytest.raises(EngineError, match="NaN or infinity"):
        score_logits(np.ones((1, 1), bool), np.array([[np.nan]], np.float32))


def test_the_end_of_a_run() -> None:
    with InProcessGrid(tiny_app, tiny_arrays(), num_users=len(DATA.table)) as grid:
        scorer = SplitScorer(grid, DATA, "test", batch_size=16)
        logits = scorer.logits(to_record(tiny_arrays()))
    test = score_test(scorer.targets, logits, DATA, resamples=50, seed=0)
    low, high = test["intervals"]["macro_ap"]
    assert 0 < low < high <= 1
    labels = DATA.load("test", np.arange(num_examples(DATA, "test"))).labels.numpy()
    expected = average_precision_score(labels, logits_one_by_one(), average=None)
    assert [row["ap"] for row in test["per_class"]] == pytest.approx(list(expected), abs=1e-6)
    assert [row["positives"] for row in test["per_class"]] == labels.sum(0).tolist()
    constant = score_constant(DATA, "test")
    assert constant["macro_ap"] == pytest.approx(labels.mean(), rel=1e-12)


def test_a_strategy_s_own_metrics_can_not_spoil_a_record() -> None:
    reported = {"round": 7, "split": 1, "note": 2, "drift": float("nan"), "train_loss": 0.5}
    words = _train_words(reported)
    assert (words["strategy_round"], words["strategy_note"]) == (7, 2)
    assert words["strategy_split"] == 1
    assert (words["drift"], words["drift_reason"]) == (None, "not a finite number")
    assert words["loss"] == 0.5
    empty = _train_words({"num-clients": 0, "num-examples": 0})
    assert empty["loss"] is None
    assert empty["loss_reason"] == "no user took part in this round"

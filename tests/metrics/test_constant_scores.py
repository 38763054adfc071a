import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from fedsim.errors import DataError
from fedsim.metrics import average_precision, constant_scores
from fedsim.streams import numpy_stream

OPENCLIPART = Path(__file__).parents[2] / ".." / "shared" / "data" / "openclipart64"


def test_scikit_learn_on_broadcast_scores():
    rng = numpy_stream(0, "test")
    frequency = np.array([0.5, 0.2, 0.2, 0.05])
    train, test = (rng.random((size, 4)) < frequency for size in (400, 100))
    scores = np.broadcast_to(constant_scores(train), test.shape)
    np.testing.assert_array_equal(scores[0], train.sum(axis=0) / 400)
    for average in ("macro", "micro"):
        found = average_precision(test, scores, average=average)
        assert found == pytest.approx(average_precision_score(test, scores, average=average))
    by_class = average_precision(test, scores, average=None)
    np.testing.assert_allclose(by_class, test.mean(axis=0))


@pytest.mark.skipif(not OPENCLIPART.exists(), reason="OpenClipart is not beside the repository")
def test_openclipart():
    entries = json.loads((OPENCLIPART / "labels_and_metadata.json").read_text())
    names = sorted({name for entry in entries for name in entry["labels"]})
    labels = {
        split: np.array(
            [[name in e["labels"] for name in names] for e in entries if e["partition"] == split]
        )
        for split in ("train", "val", "test")
    }
    scores = constant_scores(labels["train"])
    for split, micro in (("val", 0.203), ("test", 0.149)):
        targets = labels[split]
        broadcast = np.broadcast_to(scores, targets.shape)
        found = average_precision(targets, broadcast, average="micro")
        assert found == pytest.approx(micro, abs=5e-4)
        assert average_precision(targets, broadcast, empty_class="zero") == pytest.approx(
            targets.mean()
        )


def test_refusals():
    with pytest.raises(DataError, match="train_labels: expected at least one example"):
        constant_scores(np.zeros((0, 3), dtype=bool))
    with pytest.raises(DataError, match=r"train_labels \[row 0, class 0\]: expected 0 or 1"):
        constant_scores(np.array([[0.5]]))

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flower
from made_up_updates import SHAPES, assert_same, flowers, honest, ours

from fedsim import arrays
from fedsim_strategies.coordinate_median import CoordinateMedian


@pytest.mark.parametrize("num_users", [1, 2, 5, 8])
def test_it_is_flowers_fedmedian(num_users: int) -> None:
    updates, examples = honest(num_users), list(range(1, num_users + 1))
    found = ours(CoordinateMedian(), updates, examples)
    assert_same(found, flowers(flower.FedMedian(), updates, examples))


def test_it_is_numpys_median_to_the_bit_in_any_number_of_runs(monkeypatch) -> None:
    updates = honest(6)
    whole = ours(CoordinateMedian(), updates, [1] * 6)
    monkeypatch.setattr(arrays, "_SIDE_BY_SIDE", 25)  # four coordinates at a time
    parts = ours(CoordinateMedian(), updates, [1] * 6)
    for name, shape in SHAPES.items():
        expected = np.median(np.stack([u[name].numpy() for u in updates]), axis=0)
        np.testing.assert_array_equal(whole[name].numpy(), expected)
        assert whole[name].shape == shape
        assert torch.equal(whole[name], parts[name])

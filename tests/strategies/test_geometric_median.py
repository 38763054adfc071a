import numpy as np
import pytest
import torch
from made_up_updates import SHAPES, constant, flat, honest, ours
from scipy.optimize import minimize

from fedsim.errors import ConfigError
from fedsim_strategies.geometric_median import GeometricMedian

EXAMPLES = [4, 1, 7, 2, 9, 3, 5]


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_it_is_the_minimum_of_the_weighted_distances(weighting: str) -> None:
    updates = honest(7)
    points = np.stack([flat(update).numpy() for update in updates])
    weights = np.array(EXAMPLES if weighting == "examples" else [1] * 7)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        apart = z - points
        distances = np.linalg.norm(apart, axis=1)
        return float(weights @ distances), (weights / distances) @ apart

    reference = minimize(objective, points.mean(axis=0), jac=True, tol=1e-12)
    found = ours(GeometricMedian(weighting=weighting, iterations=200), updates, EXAMPLES)
    np.testing.assert_allclose(flat(found).numpy(), reference.x, atol=2e-6)
    few = ours(GeometricMedian(weighting=weighting), updates, EXAMPLES)
    assert objective(flat(few).numpy())[0] <= reference.fun * (1 + 1e-4)


def test_one_step_from_zero_by_hand() -> None:
    """``sum(a_i u_i / |u_i|) / sum(a_i / |u_i|)``: the weights are those of the paper."""
    updates = honest(7)
    scales = torch.tensor(EXAMPLES) / torch.stack([flat(update).norm() for update in updates])
    expected = sum(
        scale * flat(update) for scale, update in zip(scales, updates, strict=True)
    ) / sum(scales)
    found = ours(GeometricMedian(iterations=1), updates, EXAMPLES)
    torch.testing.assert_close(flat(found), expected, rtol=1e-5, atol=1e-6)


def test_a_majority_at_one_place_is_the_median() -> None:
    """There the distance is zero, and the smoothing keeps the division finite."""
    updates = [constant(0.5)] * 4 + honest(3)
    found = ours(GeometricMedian(weighting="uniform", iterations=50), updates, [1] * 7)
    for name, shape in SHAPES.items():
        torch.testing.assert_close(found[name], torch.full(shape, 0.5), rtol=0, atol=1e-4)


def test_users_who_changed_nothing_change_nothing() -> None:
    found = ours(GeometricMedian(), [constant(0.0)] * 3, [1] * 3)
    assert not any(tensor.any() for tensor in found.values())


@pytest.mark.parametrize(
    "wrong", [{"iterations": 0}, {"epsilon": 0.0}, {"weighting": "users"}], ids=str
)
def test_parameters_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=rf"strategy\.{next(iter(wrong))}: expected"):
        GeometricMedian(**wrong)

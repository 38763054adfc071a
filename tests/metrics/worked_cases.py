"""The worked cases behind ``data/expected.json``, values that other libraries printed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).parent / "data"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())

Case = tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]


def _two_equal_columns(targets: list[int], scores: list[float]) -> Case:
    return np.array([targets] * 2, dtype=bool).T, np.array([scores] * 2).T


# The file holds the inputs of "tiny" only. The others are named for what they hold; these inputs
# are the smallest that have that and give every value of the file.
CASES: dict[str, Case] = {
    "tiny": (np.array(EXPECTED["tiny"]["y"], dtype=bool), np.array(EXPECTED["tiny"]["s"])),
    # One positive in 200, all scores below the first inner threshold.
    "rare": _two_equal_columns([1] + [0] * 199, [0.004] + [0.003] * 199),
    # Scores of 0 and 1, and a tie of a positive and a negative.
    "edges": _two_equal_columns([1, 0, 1, 0], [1.0, 0.5, 0.5, 0.0]),
    # Scores on thresholds of AP and of F1, which are not above them.
    "boundary": _two_equal_columns([1, 0, 1, 0], [0.9, 100 / 199, 0.5, 1 / 199]),
    "all neg": _two_equal_columns([0, 0, 0], [0.9, 0.5, 0.1]),
}


def expected_values(case: str) -> dict[str, Any]:
    """Values of one case, by the name of the tool that printed them."""
    values: dict[str, Any] = EXPECTED[case].get("res", EXPECTED[case])
    return values


def federated() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Labels, probabilities and users of the 298 x 17 case."""
    with np.load(DATA / "federated_17class.npz") as arrays:
        return arrays["y"], arrays["s"], arrays["user"]

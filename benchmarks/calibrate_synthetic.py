"""Find the weights of ``fedsim/data/synthetic_labels.py`` that give FLAIR's published counts.

Draws the collection at full size, divides each weight by how far its count is off, and repeats.
The other numbers of the model were tried by hand until the tables that this prints agreed.

    python benchmarks/calibrate_synthetic.py
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fedsim.data.synthetic import SEED
from fedsim.data.synthetic_labels import (
    COARSE_NAMES,
    FINE_NAMES,
    FITTED,
    LabelModel,
    draw_labels,
)  # fmt: skip
from fedsim.data.synthetic_users import USERS, image_counts

COARSE_COUNTS = {
    "structure": 228_923, "equipment": 225_862, "material": 139_733, "outdoor": 131_322,
    "plant": 123_363, "food": 110_792, "animal": 68_858, "liquid": 68_677, "art": 37_230,
    "interior_room": 32_042, "light": 11_326, "recreation": 5_651, "celebration": 3_769,
    "fire": 3_011, "music": 2_571, "games": 1_093, "religion": 866,
}  # fmt: skip
FINE_COUNTS = {
    "wood_processed": 82_336, "material": 74_807, "structure": 61_517, "grass": 44_741,
    "plate": 42_392, "plant": 42_009, "blue_sky": 41_043, "foliage": 40_793, "cloudy": 36_225,
    "tree": 33_984, "textile": 33_709, "building": 32_349, "rocks": 28_850, "container": 25_189,
    "land": 24_715, "sky": 24_669, "fence": 24_249, "food": 23_752, "interior_room": 23_254,
    "vegetation": 23_106,
}  # fmt: skip
ROUNDS = 10
MOST_NAMED = 0.96  # of a class's draws, so that its other labels occur too


def main() -> None:
    sizes = np.concatenate(image_counts(USERS, SEED))
    model = FITTED
    for _ in range(ROUNDS):
        coarse, fine = counted(sizes, model)
        model = dataclasses.replace(
            model,
            class_weights=nearer(model.class_weights, coarse),
            named_shares={
                name: nearer_shares(shares, fine) for name, shares in model.named_shares.items()
            },
        )
    for name, weight in model.class_weights.items():
        print(f'"{name}": {weight:.4g},')
    for name, shares in model.named_shares.items():
        print(f'"{name}":', {label: round(share, 4) for label, share in shares.items()})
    coarse, fine = counted(sizes, model)
    for published, count in ((COARSE_COUNTS, coarse), (FINE_COUNTS, fine)):
        worst = max(published, key=lambda label: abs(count[label] / published[label] - 1))
        print(f"worst: {worst} {count[worst]:,} instead of {published[worst]:,}")


def counted(sizes: np.ndarray, model: LabelModel) -> tuple[dict[str, int], dict[str, int]]:
    coarse, fine = draw_labels(sizes, SEED, model)
    return (
        dict(zip(COARSE_NAMES, np.bincount(coarse.indices, minlength=17).tolist(), strict=True)),
        dict(zip(FINE_NAMES, np.bincount(fine.indices, minlength=1628).tolist(), strict=True)),
    )


def nearer(weights: Mapping[str, float], count: dict[str, int]) -> dict[str, float]:
    new = {name: weight * COARSE_COUNTS[name] / count[name] for name, weight in weights.items()}
    return {name: weight / max(new.values()) for name, weight in new.items()}


def nearer_shares(shares: Mapping[str, float], count: dict[str, int]) -> dict[str, float]:
    new = {label: share * FINE_COUNTS[label] / count[label] for label, share in shares.items()}
    factor = min(1, MOST_NAMED / sum(new.values()))
    return {label: share * factor for label, share in new.items()}


if __name__ == "__main__":
    main()

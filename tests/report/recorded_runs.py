"""Folders of runs as fedsim records them, made up: no model is trained."""

from pathlib import Path
from typing import Any

import numpy as np

from fedsim.config import RunConfig
from fedsim.kept_scores import KeptScores, keep_scores
from fedsim.metrics.exact import exact_by_class, exact_pooled
from fedsim.record import RunFolder

HOSTILE = "</script><b>x & $y$"
LABELS = ("cat", "dog", HOSTILE)
TRAIN_POSITIVES = (400, 50, 3)
USERS = tuple(f"u{number}" for number in range(12))

rng = np.random.default_rng(0)
OWNER = np.repeat(np.arange(12, dtype=np.int32), 6)
TARGETS = rng.random((72, 3)) < (0.5, 0.25, 0.2)
NOISE = rng.normal(size=(10, 72, 3))


def write_run(
    out: Path,
    setting: str,
    seed: int,
    *,
    quality: float = 1.0,
    private: dict[str, Any] | None = None,
    example: float | None = None,
    kind: str = "federated",
    keeps: bool = True,
    name: str = "trial",
    labels: tuple[str, ...] = LABELS,
    rounds: int = 4,
) -> Path:
    """Record a finished run whose logits follow the truth ``quality`` times."""
    folder = RunFolder(out / name / f"{setting}-seed{seed}")
    folder.prepare()
    logits = (quality * TARGETS + NOISE[seed]).astype(np.float32)
    aps = exact_by_class(TARGETS, logits)
    central = None
    if private is not None:
        central = {"clipping_norm": 0.5, "noise_multiplier": private["noise_multiplier"]}
    config = RunConfig.model_validate(
        {
            "name": name, "case": setting, "seed": seed,
            "data": {"source": str(out / "lost.h5")}, "privacy": {"central": central},
        }
    )  # fmt: skip
    folder.write_config(config.model_dump())
    scores = {
        "macro_ap": float(aps.mean()), "micro_ap": float(exact_pooled(TARGETS, logits)[0]),
        "macro_ap_binned200": 0.5, "micro_ap_binned200": 0.5, "num_examples": 72,
    }  # fmt: skip
    for number in range(rounds + 1):
        if number:
            folder.append({"round": number, "split": "train", "loss": 0.5, "seconds": 2.0})
        growing = {k: v * number / rounds for k, v in scores.items() if "binned" not in k}
        folder.append({"round": number, "split": "val", "loss": 0.5, "seconds": 0.5, **growing})
    if keeps:
        keep_scores(folder.path, KeptScores(logits, TARGETS, OWNER, USERS, LABELS))
    card: dict[str, Any] = {"num_rounds": rounds, "rounds_done": rounds}
    if private is not None:
        card["central"] = {
            "mechanism": "Gaussian noise on the sum", "released": "all", "sampling": "poisson",
            "sampling_rate": 0.1, "neighboring": "add_or_remove_one", "accountant": "pld",
            "assumptions": ["the server is trusted"], "population_size": 12, "cohort_size": 3,
            "deployment": {"population_size": 1000, "cohort_size": 100}, **private,
        }  # fmt: skip
    if example is not None:
        card["example_level"] = {"epsilon_max": example}
    folder.write_json("privacy.json", card)
    folder.write_json(
        "summary.json",
        {
            "name": name, "run_id": folder.path.name, "setting": setting, "seed": seed,
            "kind": kind, "num_rounds": rounds, "best_round": rounds, "seconds": 9.0,
            "peak_memory_mb": 300.0 + seed, "privacy": card, "versions": {"fedsim": "0"},
            "test": {
                "scores": scores, "intervals": None,
                "per_class": [
                    {"label": label, "ap": float(ap), "positives": int(count), "train_positives": n}
                    for label, ap, count, n in zip(
                        labels, aps, TARGETS.sum(axis=0), TRAIN_POSITIVES, strict=True
                    )
                ],
            },
            "constant_predictor": {
                split: {"macro_ap": 0.25, "micro_ap": 0.375} for split in ("val", "test")
            },
            "config": config.model_dump(mode="json"),
        },
    )  # fmt: skip
    return folder.path


def epsilons(noise: float, at_noise_cohort: float, as_run: float) -> dict[str, Any]:
    """Return what a privacy card says of central DP."""
    return {
        "noise_multiplier": noise,
        "epsilon_at_noise_cohort": at_noise_cohort,
        "epsilon_as_run": as_run,
        "delta_at_noise_cohort": 1e-6,
        "delta_as_run": 1e-2,
    }


def write_trial(out: Path) -> Path:
    """Record three seeds of a reference, three private settings and a centralized one."""
    for seed in range(3):
        write_run(out, "plain", seed, quality=2.0)
        write_run(
            out, "mild", seed, quality=(1.7, 2.6, 1.9)[seed], private=epsilons(0.5, 8.0, 900.0)
        )
        write_run(out, "strong", seed, quality=0.2, private=epsilons(4.0, 0.5, 70.0))
        write_run(out, HOSTILE.replace("/", "|"), seed, quality=1.5,
                  private=epsilons(1.0, 2.0, 200.0))  # fmt: skip
        write_run(out, "centralized", seed, quality=3.0, kind="centralized")
    return out / "trial"

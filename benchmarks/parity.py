r"""Do fedsim, pfl-research and plain Flower learn the same from the same users?

The drawings of 285 train users are written in pfl-research's HDF5 layout. Each framework trains the
same small network on that file, from the same weights, with the same settings, several seeds: its
own sampler, local loop, sum, clipping and noise. The arrays after every round are scored by one
function on the validation split. Then a round in which nothing is learned shows the noise alone.

    python benchmarks/parity.py --python-pfl venvs/pfl/bin/python \
        --python-flower venvs/flower/bin/python --out parity

Environments as for ``round_time.py``. Takes ten minutes on two cores; writes ``parity.md`` and the
figures to ``--out``.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import fedsim
from fedsim.chart import Chart, save
from fedsim.data.dataset import num_examples
from fedsim.data.sources import open_dataset
from fedsim.metrics import average_precision
from fedsim.report.figures import curve_figure
from fedsim.report.marks import PENS, Curve

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))

from parity_model import LABELS, make_model  # noqa: E402 - a sibling of the peers

COHORT_SIZE, BATCH_SIZE, LEARNING_RATE = 50, 10, 0.1
CLIPPING_NORM, NOISE_MULTIPLIER, NOISE_COHORT_SIZE = 0.15, 1.0, 200
NOISE_STDDEV_SUM = CLIPPING_NORM * NOISE_MULTIPLIER * COHORT_SIZE / NOISE_COHORT_SIZE
NO_LEARNING = 1e-12
CENTRAL = {
    "clipping_norm": CLIPPING_NORM,
    "noise_multiplier": NOISE_MULTIPLIER,
    "noise_cohort_size": NOISE_COHORT_SIZE,
}
METRICS = ("macro", "micro")
ALIKE = "pfl-research, drawn alike"
"""With cohorts without replacement and shuffled batches, as fedsim and Flower draw them."""

Floats = np.ndarray[Any, np.dtype[np.float64]]
Scores = dict[str, dict[str, list[Floats]]]
"""By setting and framework: for each seed, percent of shape (2, rounds + 1), macro and micro."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python-pfl", required=True)
    parser.add_argument("--python-flower")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("parity"))
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds: expected at least 2, whose spread is told, found {args.seeds}")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_in_pfl_layout(folder / "openclipart.h5")
        torch.manual_seed(0)
        torch.save(make_model(LABELS, "").state_dict(), folder / "initial.pt")
        scores, noise = fedsim_runs(folder, args.rounds, args.seeds)
        score = scorer(folder / "initial.pt")
        for seed in range(args.seeds):
            print(f"pfl-research and Flower, seed {seed}", file=sys.stderr)
            pfl = Peer(folder, args.python_pfl, "pfl_parity.py", seed)
            private = {"clipping-norm": CLIPPING_NORM, "noise-stddev-sum": NOISE_STDDEV_SUM}
            add(scores, "no DP", "pfl-research", score(pfl.train(args.rounds)))
            add(scores, "central DP", "pfl-research", score(pfl.train(args.rounds, **private)))
            alike = {"drawn-alike": 1}
            add(scores, "no DP", ALIKE, score(pfl.train(args.rounds, **alike)))
            add(scores, "central DP", ALIKE, score(pfl.train(args.rounds, **private, **alike)))
            steps = np.diff(pfl.train(1, learning_rate=NO_LEARNING, **private), axis=0)
            noise.setdefault("pfl-research", []).append(float(steps.std()))
            if args.python_flower:
                flower = Peer(folder, args.python_flower, "flower_parity.py", seed)
                add(scores, "no DP", "Flower", score(flower.train(args.rounds)))
    text = table(scores) + "\n\n" + noise_table(noise)
    print(text)
    (args.out / "parity.md").write_text(text + "\n")
    for setting, frameworks in scores.items():
        save(chart(setting, frameworks), args.out)


def write_in_pfl_layout(path: Path) -> None:
    """Write the packaged drawings as pfl-research's tool lays FLAIR out."""
    dataset = open_dataset("openclipart", labels="coarse", image_size=32)
    columns = {name: place for place, name in enumerate(dataset.label_names)}
    with h5py.File(path, "w") as file:
        for split in ("train", "val", "test"):
            users = dataset.users(split)
            ends = np.cumsum(users.num_images)
            for user, end, count in zip(users.ids, ends, users.num_images, strict=True):
                examples = dataset.load(split, np.arange(end - count, end))
                rows, ones = examples.labels.numpy().nonzero()
                group = file.create_group(f"{split}/{user}")
                group["images"] = examples.images.permute(0, 2, 3, 1).numpy()
                group["image_ids"] = np.array([f"{user}_{i}".encode() for i in range(count)])
                for key in ("labels", "fine_grained_labels"):
                    group[f"{key}_row"] = rows.astype(np.uint16)
                    group[f"{key}_col"] = ones.astype(np.uint16)
        for key in ("label_mapping", "fine_grained_label_mapping"):
            file[f"metadata/{key}"] = str(columns).replace("'", '"')


def fedsim_runs(folder: Path, rounds: int, seeds: int) -> tuple[Scores, dict[str, list[float]]]:
    """Train with fedsim, from a description like that of any user."""
    settings: dict[str, Any] = {
        "name": "parity",
        "seeds": list(range(seeds)),
        "data": {"source": str(folder / "openclipart.h5"), "image_size": 32},
        "model": {
            "name": f"{PEERS / 'parity_model.py'}:make_model",
            "weights": str(folder / "initial.pt"),
        },
        "federated": {
            "num_rounds": rounds,
            "cohort_size": COHORT_SIZE,
            "local": {"epochs": 1, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE},
        },
        "strategy": {"name": "fedavg", "weighting": "uniform"},
        "cases": {
            "no_dp": {},
            "central_dp": {"privacy.central": CENTRAL},
            "noise": {
                "privacy.central": CENTRAL,
                "federated.num_rounds": 1,
                "federated.local.learning_rate": NO_LEARNING,
            },
        },
        "evaluation": {"bootstrap_resamples": 0},
    }
    fedsim.run(settings, folder / "runs")
    recorded = fedsim.load_rounds(folder / "runs")
    scores: Scores = {}
    for setting, case in (("no DP", "no_dp"), ("central DP", "central_dp")):
        for seed in range(seeds):
            own = recorded[(recorded.run_id == f"{case}-seed{seed}") & (recorded.split == "val")]
            own = own.sort_values("round")
            add(scores, setting, "fedsim", 100 * own[["macro_ap", "micro_ap"]].to_numpy().T)
    initial = torch.load(folder / "initial.pt", weights_only=True)
    noise = []
    for seed in range(seeds):
        checkpoint = next((folder / "runs" / "parity" / f"noise-seed{seed}").rglob("*.pt"))
        arrays = torch.load(checkpoint, weights_only=True)["arrays"]
        noise.append(float(torch.cat([(arrays[n] - initial[n]).flatten() for n in arrays]).std()))
    return scores, {"fedsim": noise}


class Peer:
    """A framework in its own environment, one process a run."""

    def __init__(self, folder: Path, python: str, script: str, seed: int) -> None:
        self._folder, self._python, self._script, self._seed = folder, python, script, seed

    def train(self, rounds: int, learning_rate: float = LEARNING_RATE, **more: float) -> Floats:
        """Return the parameters after every round, of shape (rounds + 1, parameters)."""
        out = self._folder / "arrays.npy"
        options = {
            "data": self._folder / "openclipart.h5",
            "out": out,
            "weights": self._folder / "initial.pt",
            "seed": self._seed,
            "rounds": rounds,
            "cohort-size": COHORT_SIZE,
            "batch-size": BATCH_SIZE,
            "learning-rate": learning_rate,
            **more,
        }
        flags = itertools.chain.from_iterable((f"--{k}", str(v)) for k, v in options.items())
        done = subprocess.run(
            [self._python, str(PEERS / self._script), *flags],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{self._script} failed:\n{done.stderr[-3000:]}")
        kept: Floats = np.load(out)
        return kept


def scorer(weights: Path) -> Callable[[Floats], Floats]:
    """Return a function that scores each row of parameters on the validation split."""
    dataset = open_dataset("openclipart", labels="coarse", image_size=32)
    examples = dataset.load("val", np.arange(num_examples(dataset, "val")))
    x = examples.images.float().div_(255).sub_(0.5).div_(0.5)
    targets = examples.labels.numpy().astype(bool)
    model = make_model(LABELS, str(weights)).to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]

    @torch.no_grad()
    def score(kept: Floats) -> Floats:
        rows = []
        for row in torch.from_numpy(kept):
            for parameter, part in zip(parameters, row.split(sizes), strict=True):
                parameter.copy_(part.view_as(parameter))
            logits = model(x).numpy()
            rows.append([100 * average_precision(targets, logits, average=a) for a in METRICS])
        return np.array(rows).T

    return score


def add(scores: Scores, setting: str, framework: str, curve: Floats) -> None:
    scores.setdefault(setting, {}).setdefault(framework, []).append(curve)


def table(scores: Scores) -> str:
    """Return means over seeds and their standard deviation, and how far apart frameworks are."""
    rows = []
    for setting, frameworks in scores.items():
        ours = np.array(frameworks["fedsim"])
        last = ours.shape[-1] - 1
        for framework, curves in frameworks.items():
            theirs = np.array(curves)
            row = {"setting": setting, "framework": framework}
            for place in (0, last // 4, last // 2, last):
                at = theirs[:, 0, place]
                row[f"macro AP, round {place}"] = f"{at.mean():.2f} ± {at.std(ddof=1):.2f}"
            at = theirs[:, 1, last]
            row[f"micro AP, round {last}"] = f"{at.mean():.2f} ± {at.std(ddof=1):.2f}"
            row["distance from fedsim, spreads"] = (
                "" if framework == "fedsim" else f"{distance(ours[:, 0], theirs[:, 0]):.2f}"
            )
            rows.append(row)
    return markdown(rows)


def distance(ours: Floats, theirs: Floats) -> float:
    """Mean over rounds of the means' difference over its standard error: about 1 is luck."""
    error = np.sqrt(ours.var(0, ddof=1) / len(ours) + theirs.var(0, ddof=1) / len(theirs))
    apart = np.abs(ours.mean(0) - theirs.mean(0))
    return float((apart[1:] / error[1:]).mean())


def noise_table(noise: dict[str, list[float]]) -> str:
    """Return the measured standard deviation of the noise on the mean beside the claimed one."""
    claimed = NOISE_STDDEV_SUM / COHORT_SIZE
    rows = [
        {
            "framework": name,
            "noise on the mean": f"{np.mean(values):.4e}",
            "over what the settings say": f"{np.mean(values) / claimed:.4f}",
        }
        for name, values in noise.items()
    ]
    return markdown(rows)


def markdown(rows: list[dict[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def chart(setting: str, frameworks: dict[str, list[Floats]]) -> Chart:
    curves = []
    for (name, found), pen in zip(frameworks.items(), PENS, strict=False):
        macro = np.array(found)[:, 0]
        band = (macro.min(0), macro.max(0))
        curves.append(Curve(name, pen, np.arange(macro.shape[1]), macro.mean(0), band))
    title = f"Validation macro AP, {setting}"
    caption = "Mean over seeds, and the band from the lowest seed to the highest."
    figure = curve_figure(title, curves, [], x="round", y="macro AP, %")
    return Chart(f"parity_{setting.replace(' ', '_').lower()}", title, caption, figure)


if __name__ == "__main__":
    main()

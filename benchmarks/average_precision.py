"""Time and memory of exact average precision at FLAIR's scale, beside scikit-learn.

fedsim scores all rows, and both libraries score the first tenth; the ratio is of the two minima
over interleaved repeats there, so a busy machine slows both.

    python benchmarks/average_precision.py
    python benchmarks/average_precision.py --examples 5000 --classes 17
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from sklearn.metrics import average_precision_score

from fedsim.metrics import average_precision
from fedsim.streams import numpy_stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--examples", type=int, default=43_960, help="rows (FLAIR's test split)")
    parser.add_argument("--classes", type=int, default=1_628, help="columns (fine labels)")
    parser.add_argument("--repeats", type=int, default=2, help="the minimum is reported")
    args = parser.parse_args()
    targets, scores = make_scores(args.examples, args.classes)
    tenth = slice(0, max(1, args.examples // 10))
    print(f"{args.examples} x {args.classes} float32, {int(targets.sum())} positives")
    for average in ("micro", "macro"):
        seconds = min(timed(fedsim_ap, targets, scores, average)[0] for _ in range(args.repeats))
        megabytes = peak_megabytes(fedsim_ap, targets, scores, average)
        print(f"{average}: {seconds:.2f} s, {megabytes:.0f} MB beside the input", flush=True)
        compare_with_sklearn(targets[tenth], scores[tenth], average, args.repeats)


def compare_with_sklearn(
    targets: np.ndarray, scores: np.ndarray, average: str, repeats: int
) -> None:
    scored = targets.any(axis=0) | (average == "micro")  # sklearn counts an empty class as 0
    targets, scores = targets[:, scored], scores[:, scored]
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(timed(fedsim_ap, targets, scores, average))
        theirs.append(timed(average_precision_score, targets, scores, average=average))
    (our_seconds, our_value), (their_seconds, their_value) = min(ours), min(theirs)
    our_memory = peak_megabytes(fedsim_ap, targets, scores, average)
    their_memory = peak_megabytes(average_precision_score, targets, scores, average=average)
    print(
        f"  {len(targets)} rows, fedsim and scikit-learn: {our_seconds:.3f} and "
        f"{their_seconds:.2f} s (ratio {their_seconds / our_seconds:.0f}), {our_memory:.0f} and "
        f"{their_memory:.0f} MB, values {abs(our_value - their_value):.1e} apart",
        flush=True,
    )


def fedsim_ap(targets: np.ndarray, scores: np.ndarray, average: str) -> float:
    return average_precision(targets, scores, average=average)


def make_scores(num_examples: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Long-tailed labels, at most 30 % and about 4.6 an image for 1,628 classes, and scores."""
    frequency = np.minimum(0.3, 0.6 / np.arange(1, num_classes + 1))
    targets = np.empty((num_examples, num_classes), dtype=np.bool_)
    scores = np.empty((num_examples, num_classes), dtype=np.float32)
    rng = numpy_stream(0, "benchmark")
    for start in range(0, num_examples, 1000):
        rows = slice(start, start + 1000)
        targets[rows] = rng.random(targets[rows].shape, dtype=np.float32) < frequency
        noise = rng.standard_normal(targets[rows].shape, dtype=np.float32)
        scores[rows] = 1 / (1 + np.exp(4 - 2 * targets[rows] - noise))
    return targets, scores


def timed(function: Callable[..., float], *args: object, **kwargs: object) -> tuple[float, float]:
    start = time.perf_counter()
    value = function(*args, **kwargs)
    return time.perf_counter() - start, value


def peak_megabytes(function: Callable[..., float], *args: object, **kwargs: object) -> float:
    tracemalloc.start()
    function(*args, **kwargs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


if __name__ == "__main__":
    main()

"""Time and memory of the synthetic collection, and its statistics beside FLAIR's published ones.

python benchmarks/synthetic.py
python benchmarks/synthetic.py --population-size 1000 --images 200
"""

import argparse
import itertools
import time
import tracemalloc

import numpy as np
import psutil

from fedsim.data.decode import decode_image
from fedsim.data.index import ImageIndex, LabelRows
from fedsim.data.synthetic import scan_synthetic

PUBLISHED = {  # mean, standard deviation, least, quartiles, most
    "images per user": (8.3455, 51.276, 1, 1, 2, 5, 4151),
    "coarse labels per image": (2.7852, 1.1492, 1, 2, 3, 4, 9),
    "fine labels per image": (4.6148, 2.7296, 1, 3, 4, 6, 36),
    "distinct coarse labels per user": (4.6086, 2.8111, 1, 3, 4, 6, 17),
    "distinct fine labels per user": (16.813, 32.667, 1, 4, 7, 16, 838),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--population-size", type=int, help="train users (default: FLAIR's)")
    parser.add_argument("--images", type=int, default=1_000, help="images to draw")
    args = parser.parse_args()
    process = psutil.Process()
    resident = process.memory_info().rss
    start = time.perf_counter()
    index = scan_synthetic(args.population_size).images.index
    seconds = time.perf_counter() - start
    kept = (process.memory_info().rss - resident) / 1e6
    tracemalloc.start()
    images = scan_synthetic(args.population_size).images
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    print(f"index of {len(index.user_ids):,} users and {len(index):,} images: {seconds:.2f} s")
    print(f"memory: peak {peak:.0f} MB allocated; {kept:.0f} MB more resident after it")
    rows = np.linspace(0, len(index) - 1, args.images).astype(int).tolist()
    for size in (None, 32, 256):
        start = time.perf_counter()
        for pixels in images.read(rows):
            decode_image(pixels, size)
        each = (time.perf_counter() - start) / len(rows)
        print(f"an image at {size or 64} x {size or 64}: {1e3 * each:.2f} ms")
    print_statistics(index)


def print_statistics(index: ImageIndex) -> None:
    tables = [
        np.diff(index.user_offsets),
        *(np.diff(index.labels[name].indptr) for name in ("coarse", "fine")),
        *(distinct(index, index.labels[name]) for name in ("coarse", "fine")),
    ]
    for (name, published), values in zip(PUBLISHED.items(), tables, strict=True):
        found = (values.mean(), values.std(ddof=1), *np.percentile(values, [0, 25, 50, 75, 100]))
        print(f"{name}: mean, std, min, 25 %, 50 %, 75 %, max")
        print("  published", *(f"{value:g}" for value in published))
        print("  synthetic", *(f"{value:.5g}" for value in found))


def distinct(index: ImageIndex, rows: LabelRows) -> np.ndarray:
    """Count the labels of each user, the slow and plain way."""
    bounds = rows.indptr[index.user_offsets].tolist()
    return np.array([len(set(rows.indices[a:b].tolist())) for a, b in itertools.pairwise(bounds)])


if __name__ == "__main__":
    main()

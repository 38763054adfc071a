"""What `fedsim data convert` costs: images per second, memory, and how pixels are best encoded.

    python benchmarks/conversion.py
    python benchmarks/conversion.py --images 429078 --side 16 --workers 2   # memory at full size

Makes a folder in FLAIR's raw layout with that many images (a few hundred photo-like ones under many
names, so they are read from the page cache) and as many users, labels and ids as FLAIR would have,
converts it with each number of workers, and removes it. Memory is the largest sum over the process
and its workers of what each keeps to itself (USS), looked at ten times a second. Then it encodes
drawings and photo-like images with every candidate for pixels: size, time to write, time to read.
"""

import argparse
import io
import json
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from fedsim.data.decode import decode_image
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.index import Pixels

FLAIR_IMAGES, FLAIR_USERS = 429_078, 51_414

CODECS: dict[str, dict[str, Any]] = {
    "PNG 1": {"format": "PNG", "compress_level": 1},
    "PNG 6": {"format": "PNG", "compress_level": 6},
    "WebP m0 q0": {"format": "WEBP", "lossless": True, "method": 0, "quality": 0},
    "WebP m1 q20": {"format": "WEBP", "lossless": True, "method": 1, "quality": 20},
    "WebP m4 q80": {"format": "WEBP", "lossless": True, "method": 4, "quality": 80},
    "JPEG 90 4:4:4": {"format": "JPEG", "quality": 90, "subsampling": 0},
    "JPEG 90 4:2:0": {"format": "JPEG", "quality": 90, "subsampling": 2},
}


def photo(seed: int, side: int) -> Pixels:
    """Return noise with a photo's spectrum (amplitude 1/f^1.2), colours that go together, grain."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    frequency[0, 0] = 1

    def field() -> np.ndarray:
        spectrum = np.fft.rfft2(rng.normal(size=(side, side))) / frequency**1.2
        values = np.fft.irfft2(spectrum, (side, side))
        return values / values.std()

    light = 120 + 45 * field()
    colours = [light + 12 * field() + 2 * rng.normal(size=(side, side)) for _ in range(3)]
    return np.clip(np.stack(colours, axis=2), 0, 255).astype(np.uint8)


def encoded(pixels: Pixels, options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, **options)
    return buffer.getvalue()


def make_folder(folder: Path, num_images: int, side: int) -> int:
    """Make a raw folder; return its images' mean size in bytes."""
    images = folder / "small_images"
    images.mkdir()
    kinds = [encoded(photo(k, side), {"format": "JPEG", "quality": 75}) for k in range(200)]
    rng, entries = random.Random(0), []
    for k in range(num_images):
        image_id, user = str(10**10 + k), rng.randrange(FLAIR_USERS * num_images // FLAIR_IMAGES)
        path = images / f"{image_id}.jpg"
        if k < 20 * len(kinds):
            path.write_bytes(kinds[k % len(kinds)])
        else:  # another name for it: a file may have some ten thousand names
            os.link(images / f"{10**10 + k % (20 * len(kinds))}.jpg", path)
        entries.append(
            {
                "user_id": f"{10**7 + user}@N00",
                "image_id": image_id,
                "labels": [f"coarse label {n}" for n in rng.sample(range(17), 3)],
                "fine_grained_labels": [f"fine label {n}" for n in rng.sample(range(1628), 5)],
                "partition": "train" if user % 10 < 8 else "val" if user % 2 else "test",
            }
        )
    (folder / "labels_and_metadata.json").write_text(json.dumps(entries))
    return sum(map(len, kinds)) // len(kinds)


def run(folder: Path, destination: Path, workers: int, times: Any) -> None:
    # Not above: workers read this file again, and need no torch, as under the command itself.
    from fedsim.data.convert import convert

    marks = {"start": time.time()}

    def progress(stage: str, done: int, total: int) -> None:
        marks.setdefault(stage, time.time())

    convert(folder, destination, workers=workers, progress=progress)
    times.put({**marks, "end": time.time()})


def measure(folder: Path, num_images: int, workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    times = context.Queue()
    process = context.Process(target=run, args=(folder, folder / "out.h5", workers, times))
    process.start()
    peak, cpu = 0, {}
    while process.is_alive():
        memory, seconds = cost(psutil.Process(process.pid))
        peak = max(peak, memory)
        cpu.update(seconds)
        time.sleep(0.1)
    at = times.get()
    reading, writing = at["writing"] - at["reading"], at["checking"] - at["writing"]
    print(
        f"{workers} workers: {at['end'] - at['start']:.1f} s = scan "
        f"{at['reading'] - at['start']:.1f} + read and decode {reading:.1f} "
        f"({num_images / reading:,.0f} images/s) + write {writing:.1f} + check "
        f"{at['end'] - at['checking']:.1f}; at most {peak / 2**20:,.0f} MiB; FLAIR's "
        f"{FLAIR_IMAGES:,} at this rate: "
        f"{(at['end'] - at['start']) * FLAIR_IMAGES / num_images / 60:.1f} minutes; "
        f"{sum(cpu.values()):.1f} s of CPU, so {num_images / sum(cpu.values()):,.0f} images/s "
        "of a core",
        flush=True,
    )


def cost(process: psutil.Process) -> tuple[int, dict[int, float]]:
    """Return the memory of a process and its workers, and seconds of CPU of each so far."""
    memory, seconds = 0, {}
    try:
        for one in (process, *process.children(recursive=True)):
            memory += one.memory_full_info().uss
            seconds[one.pid] = sum(one.cpu_times()[:2])
    except psutil.Error:  # it just ended
        pass
    return memory, seconds


def compare_codecs() -> None:
    from fedsim.data.sources import OPENCLIPART

    clipart = open_hdf5(OPENCLIPART)
    drawings = [decode_image(data, None) for data in clipart.read(range(0, 5078, 17))]
    photos = [photo(k, 256) for k in range(12)]
    # Photos that were JPEG files before, as ml-flair's pixels were.
    again = [decode_image(encoded(p, {"format": "JPEG", "quality": 85}), None) for p in photos]
    for name, images in (("drawings", drawings), ("photos", photos), ("photos from JPEG", again)):
        num_bytes = sum(pixels.nbytes for pixels in images)
        for codec, options in CODECS.items():
            began = time.process_time()
            files = [encoded(pixels, options) for pixels in images]
            wrote = time.process_time()
            back = [decode_image(data, None) for data in files]
            read = time.process_time()
            lost = np.mean(
                [np.abs(a - b.astype(int)).mean() for a, b in zip(back, images, strict=True)]
            )
            print(
                f"{name:17} {codec:14} {sum(map(len, files)) / num_bytes:6.1%} of the pixels, "
                f"write {(wrote - began) / len(images) * 1e3:6.2f} ms, "
                f"read {(read - wrote) / len(images) * 1e3:5.2f} ms, difference {lost:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=256, help="height and width in pixels")
    parser.add_argument("--no-codecs", action="store_true", help="leave out the comparison")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    if not arguments.no_codecs:
        compare_codecs()
    with tempfile.TemporaryDirectory() as folder:
        size = make_folder(Path(folder), arguments.images, arguments.side)
        print(f"{arguments.images:,} JPEGs, {arguments.side} x {arguments.side}, {size:,} bytes")
        for workers in arguments.workers:
            measure(Path(folder), arguments.images, workers)


if __name__ == "__main__":
    main()

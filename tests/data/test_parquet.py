"""The files read here are written by plain pyarrow calls."""

import io
import json
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raw_folders import Entry, encode

from fedsim.data import parquet_images
from fedsim.data.flair_folder import scan_flair_folder
from fedsim.data.image_files import ImageFiles
from fedsim.data.parquet import scan_parquet
from fedsim.data.parquet_images import ParquetImages
from fedsim.data.scan import open_whole
from fedsim.data.sources import open_dataset, scanner_of
from fedsim.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MakeFolder = Callable[..., Path]
OPENCLIPART = Path(__file__).parents[3] / "shared" / "data" / "openclipart64"

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PLAIN = {
    "image": IMAGE,
    "image_id": pa.string(),
    "user_id": pa.string(),
    "labels": pa.list_(pa.string()),
    "fine_grained_labels": pa.list_(pa.string()),
    "partition": pa.string(),
}
LARGE = {
    "image_id": pa.large_string(),
    "image": pa.struct([("path", pa.large_string()), ("bytes", pa.large_binary())]),
    "user_id": pa.dictionary(pa.int32(), pa.string()),
    "labels": pa.large_list(pa.large_string()),
    "fine_grained_labels": pa.list_(pa.dictionary(pa.int8(), pa.string())),
    "partition": pa.dictionary(pa.int8(), pa.large_string()),
}
BARE = {**PLAIN, "image": pa.binary()}


def row(
    split: str | None, user_id: str = "ann", number: str = "1", **changes: Any
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "image": {"bytes": encode(len(number)), "path": "no/such.jpg"},
        "image_id": number,
        "user_id": user_id,
        "labels": ["cat"],
        "fine_grained_labels": [],
    }
    if split is not None:
        fields["partition"] = split
    return {**fields, **changes}


def write(
    path: Path, rows: list[dict[str, Any]], types: dict[str, Any] = PLAIN, **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [name for name in types if any(name in row for row in rows)]
    columns = {
        name: pa.array(
            [
                value["bytes"] if name == "image" and types[name] == pa.binary() else value
                for value in (row[name] for row in rows)
            ],
            types[name],
        )
        for name in names
    }
    pq.write_table(pa.table(columns), path, **options)
    return path


def rows_of(folder: Path, with_partition: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a raw folder by partition."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads((folder / "labels_and_metadata.json").read_text()):
        data = (folder / "small_images" / f"{entry['image_id']}.jpg").read_bytes()
        fields = {key: entry[key] for key in PLAIN if key not in ("image", "partition")}
        fields["image"] = {"bytes": data, "path": None}
        if with_partition:
            fields["partition"] = entry["partition"]
        rows.setdefault(entry["partition"], []).append(fields)
    return rows


def opened(path: Path) -> ParquetImages:
    images = open_whole(scanner_of(str(path)))
    assert isinstance(images, ParquetImages)
    return images


def assert_same(ours: ParquetImages, folder: Path) -> None:
    raw = open_whole(lambda: scan_flair_folder(folder))
    assert isinstance(raw, ImageFiles)
    assert ours.index.sha256() == raw.index.sha256()
    everything = np.arange(len(raw.index))
    expected = list(raw.read(everything.tolist()))
    for order in (everything, everything[::-1], ours.storage_order):
        assert list(ours.read(order.tolist())) == [expected[k] for k in order]


@pytest.mark.parametrize("types", [PLAIN, LARGE, BARE], ids=["plain", "large", "bare"])
@pytest.mark.parametrize("row_group_size", [1, 2, 1000])
def test_a_file_for_every_split_is_the_raw_folder(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    types: dict[str, Any],
    row_group_size: int,
) -> None:
    raw = make_folder(entries)
    for split, rows in rows_of(raw, with_partition=False).items():
        name = {"train": "train", "dev": "validation", "test": "test"}[split]
        for part, some in enumerate((rows[:2], rows[2:])):
            file = tmp_path / "flair" / "data" / f"{name}-{part:05d}-of-00002.parquet"
            write(file, some or rows[:0], types, row_group_size=row_group_size) if some else None
    images = opened(tmp_path / "flair")
    assert (images.about.name, images.content_sha256) == ("flair", None)
    assert_same(images, raw)


@pytest.mark.parametrize("types", [PLAIN, LARGE], ids=["plain", "large"])
def test_one_file_with_a_partition_column_is_the_raw_folder(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path, types: dict[str, Any]
) -> None:
    raw = make_folder(entries)
    rows = [row for part in rows_of(raw).values() for row in part]
    path = write(tmp_path / "all.PARQUET", rows, types, row_group_size=4)
    assert opened(path).about.name == "all"
    assert_same(opened(path), raw)


def test_training_gets_the_bits_of_the_raw_folder(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    raw = make_folder(entries)
    for split, rows in rows_of(raw).items():
        write(tmp_path / "flair" / f"{split}.parquet", rows, row_group_size=2)
    options: dict[str, Any] = {"labels": "fine", "image_size": 7, "cache_mb": 0}
    ours = open_dataset(str(tmp_path / "flair"), **options)
    theirs = open_dataset(str(raw), **options)
    for split in ("train", "val", "test"):
        everything = np.arange(theirs.users(split).num_images.sum())[::-1].copy()
        assert len(everything)
        a, b = ours.load(split, everything), theirs.load(split, everything)
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
    assert len(pickle.dumps(ours)) < 600


@pytest.mark.skipif(not OPENCLIPART.is_dir(), reason="needs the shared data")
def test_openclipart_is_the_same_in_parquet(tmp_path: Path) -> None:
    for split, rows in rows_of(OPENCLIPART, with_partition=False).items():
        step = -(-len(rows) // 3)
        for part in range(3):
            write(
                tmp_path / "data" / f"{split}-{part:05d}-of-00003.parquet",
                rows[part * step : (part + 1) * step],
                row_group_size=100,
            )
    assert_same(opened(tmp_path), OPENCLIPART)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00010.parquet", "train"),
        ("val-00000-of-00002-1a2b3c.parquet", "val"),
        ("validation-00000-of-00002.parquet", "val"),
        ("dev.parquet", "val"),
        ("test_0.parquet", "test"),
        ("default/test/0000.parquet", "test"),
        ("train/val-0.parquet", "val"),
    ],
)
def test_the_name_tells_the_split(tmp_path: Path, name: str, split: str) -> None:
    write(tmp_path / name, [row(None)])
    first, stop = opened(tmp_path).index.users_of(split)
    assert stop - first == 1


@pytest.mark.parametrize("name", ["trian-0.parquet", "trainer.parquet", "test/sub/0.parquet"])
def test_a_file_of_no_split_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, [row(None)])
    with pytest.raises(DataError, match=rf"  {name}: its split must be told, found neither"):
        opened(tmp_path)


def test_numbers_as_image_ids_are_their_digits(tmp_path: Path) -> None:
    rows = [row(None, number=str(k)) for k in (14385783765, 7)]
    for fields in rows:
        fields["image_id"] = int(fields["image_id"])
    write(tmp_path / "train.parquet", rows, {**PLAIN, "image_id": pa.int64()})
    assert opened(tmp_path).index.image_ids.cut(0, 2) == ("14385783765", "7")


def many(folder: Path, row_group_size: int, size: int = 2000) -> tuple[Path, list[bytes]]:
    """Write two files of 150 images of 30 users in turn; return the images by row."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(300):
        image = {"bytes": draw.bytes(size + number), "path": None}
        rows.append(row(None, f"{number % 30:02d}", f"{number}", image=image))
    for part in range(2):
        write(
            folder / f"train-{part}.parquet",
            rows[150 * part : 150 * part + 150],
            row_group_size=row_group_size,
        )
    ordered = sorted(range(300), key=lambda number: (number % 30, number))
    return folder, [rows[number]["image"]["bytes"] for number in ordered]


@pytest.mark.parametrize("window", [1, 20_000, 2**26])
@pytest.mark.parametrize("batch", [1, 10_000, 2**22])
@pytest.mark.parametrize("row_group_size", [7, 40, 1000])
def test_any_order_gives_the_rows_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, batch: int, row_group_size: int
) -> None:
    monkeypatch.setattr(parquet_images, "_WINDOW_BYTES", window)
    monkeypatch.setattr(parquet_images, "_BATCH_BYTES", batch)
    folder, expected = many(tmp_path, row_group_size)
    images = opened(folder)
    asked = np.random.default_rng(1).integers(0, 300, 60).tolist()
    assert list(images.read(iter(asked))) == [expected[k] for k in asked]
    assert list(images.read([])) == []


@pytest.fixture
def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the bytes that are read from parquet files, in the list's only entry."""
    count = [0]

    class Counting(io.FileIO):
        def read(self, size: int = -1, /) -> bytes:
            data = super().read(size)
            count[0] += len(data)
            return data

    @contextmanager
    def counted(path: Path, root: Path | None) -> Iterator[tuple[Any, tuple[int, int]]]:
        with Counting(path) as file:
            status = path.stat()
            whole = pq.ParquetFile(file, buffer_size=2**18, pre_buffer=False)
            yield whole, (status.st_size, status.st_mtime_ns)

    monkeypatch.setattr(parquet_images, "opened", counted)
    return count


@pytest.mark.parametrize("window", [1, 30_000, 2**26])
def test_storage_order_reads_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_reads: list[int], window: int
) -> None:
    monkeypatch.setattr(parquet_images, "_WINDOW_BYTES", window)
    folder, expected = many(tmp_path, 40, size=5000)
    images = opened(folder)
    order = images.storage_order
    assert order[:3].tolist() == [0, 10, 20]
    assert order[-1] == 299
    found = list(images.read(order.tolist()))
    assert found == [expected[k] for k in order]
    footers = 2 * 2**16
    assert count_reads[0] < sum(file.stat().st_size for file in folder.iterdir()) + footers


def test_an_image_costs_no_more_than_its_row_group(tmp_path: Path, count_reads: list[int]) -> None:
    folder, expected = many(tmp_path, 10, size=5000)
    images = opened(folder)
    assert list(images.read([3])) == [expected[3]]
    assert 10 * 5000 < count_reads[0] < 10 * 5300 + 2**16 + 1000 < 200_000


def test_a_large_row_group_is_never_in_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_images, "_WINDOW_BYTES", 2**20)
    draw = np.random.default_rng(0)
    rows = [
        row(None, "u", f"{k}", image={"bytes": draw.bytes(10_000), "path": None})
        for k in range(3500)
    ]
    path = write(tmp_path / "train.parquet", rows)
    images = opened(path)
    before, peak = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    for data, fields in zip(images.read(images.storage_order.tolist()), rows, strict=True):
        assert data == fields["image"]["bytes"]
        peak = max(peak, pa.total_allocated_bytes() - before)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # pyarrow writes pages of 1,024 rows at the least.
    assert peak < 25 * 2**20 < path.stat().st_size
    assert python_peak < 25 * 2**20


def test_no_file_stays_open_and_a_copy_reads_the_same(tmp_path: Path) -> None:
    folder, expected = many(tmp_path, 40)
    images = pickle.loads(pickle.dumps(opened(folder)))
    assert list(images.read([5, 299])) == [expected[5], expected[299]]
    stopped = images.read(range(300))
    next(stopped)
    stopped.close()
    if Path("/proc/self/fd").is_dir():
        names = [link.resolve().suffix for link in Path("/proc/self/fd").iterdir()]
        assert ".parquet" not in names


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    folder, _ = many(tmp_path, 40)
    images = opened(folder)
    write(folder / "train-1.parquet", [row(None)])
    assert len(list(images.read([0]))) == 1
    with pytest.raises(DataError, match=r"train-1.parquet: expected the file .* changed since"):
        list(images.read([299]))
    (folder / "train-1.parquet").unlink()
    with pytest.raises(DataError, match=r"train-1.parquet: expected a parquet file, found none"):
        list(images.read([299]))


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "null user": ({"user_id": None}, "user_id must be text of at least one letter, found null"),
    "empty user": ({"user_id": ""}, "user_id must be text of at least one letter"),
    "null id": ({"image_id": None}, "image_id must be text of at least one letter, found null"),
    "null labels": ({"labels": None}, "labels must be a list of names, found null"),
    "null label": ({"labels": ["a", None]}, "every name in labels must be text .* found null"),
    "null image": ({"image": None}, "expected an image's bytes, found null"),
    "image as path": (
        {"image": {"bytes": None, "path": "/etc/hosts"}},
        r"found null \(a path beside them is never followed\); write the file anew with the",
    ),
    "unknown split": ({"partition": "trian"}, r'must be train, val \(or dev\) or .* "trian"'),
    "null split": ({"partition": None}, "partition must be train, .* found null"),
    "other split": (
        {"partition": "validation"},
        'partition must be train as the file\'s name says, found "validation"; mend one',
    ),
    "image twice": (
        {"image_id": "1"},
        "image_id '1' must be unique, found in test-0.parquet, row 0 too",
    ),
    "user in two splits": (
        {"user_id": "ann"},
        "user 'ann' must be in one split, found in test and train",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_row_is_refused(tmp_path: Path, fault: str) -> None:
    changes, message = FAULTS[fault]
    write(tmp_path / "test-0.parquet", [row("test", "ann", "1")])
    sound = [row("train", "bob", number) for number in ("2", "3")]
    faulty = {**row("train", "cid", "4"), **changes}
    write(tmp_path / "train-0.parquet", [*sound, faulty], row_group_size=2)
    with pytest.raises(
        DataError, match=rf"found 1; mend it in the source:\n  train-0.parquet, row 2: .*{message}"
    ):
        opened(tmp_path)
    images = scan_parquet(tmp_path).images
    assert len(list(images.read(range(len(images.index))))) == 3


COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "no image": ({"image": None}, "must have the columns .* found no image among"),
    "no labels": ({"labels": None, "user_id": None}, "found no user_id, labels among"),
    "text for image": ({"image": pa.array(["x"])}, "image must hold bytes, .* found string"),
    "path only": (
        {"image": pa.array([{"path": "x"}])},
        "image must hold bytes, or a struct .* found struct<path",
    ),
    "number for user": ({"user_id": pa.array([12])}, "user_id must hold text, found int64"),
    "fraction for id": ({"image_id": pa.array([1.5])}, "image_id must hold text, found double"),
    "text for labels": ({"labels": pa.array(["a|b"])}, "labels must hold lists of text, found str"),
    "numbers as labels": ({"labels": pa.array([[3]])}, "labels must hold lists of text, found l"),
    "number for split": ({"partition": pa.array([0])}, "partition must hold text, found int64"),
}


@pytest.mark.parametrize("fault", COLUMNS)
def test_faulty_columns_are_refused(tmp_path: Path, fault: str) -> None:
    changes, message = COLUMNS[fault]
    columns = {name: pa.array([value], PLAIN[name]) for name, value in row("train").items()}
    columns = {name: array for name, array in {**columns, **changes}.items() if array is not None}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=rf"  train.parquet: .*{message}"):
        opened(tmp_path)


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    names = [*PLAIN, "user_id"]
    arrays = [pa.array([row("train")[name]], PLAIN[name]) for name in names]
    pq.write_table(pa.Table.from_arrays(arrays, names), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="must have the column user_id once, found it 2 times"):
        opened(tmp_path)


def test_all_files_are_looked_at_before_the_faults_are_told(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", [row(None, number="")])
    (tmp_path / "train-1.parquet").write_text("no parquet")
    write(tmp_path / "train-2.parquet", [row(None, number="")])
    with pytest.raises(DataError) as caught:
        opened(tmp_path)
    head, *faults = str(caught.value).split("\n")
    assert head.startswith(f"{tmp_path}: expected no faults, found 3; mend them")
    assert [name in fault for name, fault in zip("012", faults, strict=True)] == [True] * 3
    assert "train-1.parquet: expected a whole parquet file, found one" in faults[1]


def test_nulls_without_statistics_are_found_when_they_are_read(tmp_path: Path) -> None:
    rows = [row(None, number=f"{k}") for k in range(3)]
    rows[1]["image"] = None
    write(tmp_path / "train.parquet", rows, write_statistics=False)
    images = opened(tmp_path)
    reading = images.read([0, 2, 1])
    assert [next(reading), next(reading)] == [rows[0]["image"]["bytes"]] * 2
    with pytest.raises(DataError, match=r"train.parquet: image '1': expected an image's bytes"):
        next(reading)


def test_files_without_rows_are_refused_unless_others_have_some(tmp_path: Path) -> None:
    empty = pa.schema(list(PLAIN.items())).empty_table()
    pq.write_table(empty, tmp_path / "train-0.parquet")
    with pytest.raises(DataError, match="expected at least one image, found none"):
        opened(tmp_path)
    write(tmp_path / "train-1.parquet", [row("train", labels=[])])
    assert len(opened(tmp_path).index) == 1


def test_labels_that_are_all_empty_are_none(tmp_path: Path) -> None:
    columns = {name: [value] for name, value in row("train", labels=[]).items()}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    index = opened(tmp_path).index
    assert index.labels["coarse"].names == index.labels["fine"].names == ()


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    folder, _ = many(tmp_path, 40)
    data = (folder / "train-1.parquet").read_bytes()
    for length in (0, 1, 8, 1000, len(data) // 2, len(data) - 1):
        (folder / "train-1.parquet").write_bytes(data[:length])
        with pytest.raises(DataError, match=r"found 1; .*\n.*1.parquet: expected a whole parquet"):
            opened(folder)


def test_damaged_pages_are_told_when_they_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", [row(None)], use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:20] = b"\xff" * 16  # the header of the first page, which is the images'
    path.write_bytes(data)
    images = opened(path)
    with pytest.raises(DataError, match=r"train.parquet: expected a whole parquet file, found one"):
        list(images.read([0]))


def test_no_link_is_followed_out_of_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "flair", tmp_path / "flair_other"
    write(folder / "train-0.parquet", [row(None)])
    write(outside / "train-1.parquet", [row(None, number="22")])
    images = opened(folder)
    (folder / "train-1.parquet").symlink_to(outside / "train-1.parquet")
    with pytest.raises(
        DataError, match=r"train-1.parquet: expected a file inside .*, found a link"
    ):
        opened(folder)
    (folder / "train-1.parquet").unlink()
    (folder / "more").symlink_to(outside)
    with pytest.raises(DataError, match=r"  more: expected a folder inside .*, found a link"):
        opened(folder)
    (folder / "more").unlink()
    (folder / "train-0.parquet").rename(outside / "train-0.parquet")
    (folder / "train-0.parquet").symlink_to(outside / "train-0.parquet")
    with pytest.raises(DataError, match="found a link that leads out of it"):
        list(images.read([0]))  # even if it was put there after the folder was read
    (tmp_path / "link").symlink_to(outside)
    assert len(opened(tmp_path / "link").index) == 2


def test_links_inside_hidden_files_and_folders_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path / "blobs" / "abc", [row(None)])
    (tmp_path / "train-0.parquet").symlink_to("blobs/abc")
    (tmp_path / "again").symlink_to("blobs")
    write(tmp_path / ".cache" / "train-0.parquet", [row(None)])
    write(tmp_path / ".train-3.parquet", [row(None)])
    (tmp_path / "sub" / "train-1.parquet").mkdir(parents=True)
    assert len(opened(tmp_path).index) == 1
    (tmp_path / "train-2.parquet").symlink_to("train-2.parquet")
    with pytest.raises(
        DataError, match=r"  train-2.parquet: expected a file, found something else"
    ):
        opened(tmp_path)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected .parquet files, found none"):
        scan_parquet(tmp_path)


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "train.parquet", [row(None)])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r'found none; run pip install "fedsim\[parquet\]"'):
        open_dataset(str(path), labels="coarse", image_size=8).users("train")

"""Looking at collections: numbers, safety of what is shown, files, faults."""

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.data.index import About, ImageIndex, ImageRecord, Pixels
from fedsim.data.scan import open_whole
from fedsim.data.sources import OPENCLIPART, scanner_of
from fedsim.errors import ConfigError, DataError
from fedsim.inspect_data.charts import sheet_chart
from fedsim.inspect_data.measure import measure_labels
from fedsim.inspect_data.report import Inspection, inspect_images, show, write
from fedsim.tables import Column, Table, terminal_table

HOSTILE = "<script>alert(1)</script> \x1b[31m [red]$x$"


@dataclass(eq=False)
class Memory:
    """Some users of sizes 1 to 40; remembers which rows were read."""

    records: list[ImageRecord]
    rows: list[int] = field(default_factory=list)
    place: str = "memory"
    about: About = field(default_factory=lambda: About(HOSTILE))
    content_sha256: str | None = None

    @property
    def index(self) -> ImageIndex:
        return ImageIndex.of(self.records)

    def read(self, rows: Iterable[int]) -> Iterator[Pixels]:
        for row in rows:
            self.rows.append(row)
            yield np.full((5, 7, 3), row % 256, dtype=np.uint8)


def collection(hostile: str = HOSTILE) -> Memory:
    sizes = {"a": 1, "b": 1, hostile: 2, "d": 5, "e": 12, "f": 40}
    return Memory(
        [
            ImageRecord(
                user,
                f"{user}{number}",
                "val" if user == "d" else "train",
                (("cat", hostile)[: number % 3], tuple(f"f{k}" for k in range(number % 4))),
            )
            for user, size in sizes.items()
            for number in range(size)
        ]
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inspection, Path]:
    inspection = inspect_images(collection())
    return inspection, write(inspection, tmp_path_factory.mktemp("inspected") / "new" / "folder")


class Tags(HTMLParser):
    """Collects a page's tags, and refuses ones that are not closed."""

    VOID = ("meta", "link", "br", "path", "use", "rect", "image")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_openclipart_is_told_as_its_file_has_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["data", "inspect", "openclipart", "--labels", "coarse", "--out", str(tmp_path / "o")]
    )
    assert result.exit_code == 0, result.output
    with h5py.File(OPENCLIPART) as file:
        splits, offsets = file["user_splits"][...], file["user_offsets"][...]
        numbers, starts = file["labels/coarse/indices"][...], file["labels/coarse/indptr"][...]
        letters = file["labels/coarse/names/bytes"][...].tobytes()
        bounds = file["labels/coarse/names/offsets"][...]
    names = [letters[a:b].decode() for a, b in pairwise(bounds)]
    train = numbers[: starts[offsets[(splits == 0).sum()]]]
    rows = read_csv(tmp_path / "o" / "coarse_labels.csv")
    assert [row["label"] for row in rows[:2]] == ["computer", "signs_and_symbols"]
    assert {row["label"]: int(row["train"]) for row in rows} == {
        name: int((train == number).sum()) for number, name in enumerate(names)
    }
    by_split = {row["split"]: row for row in read_csv(tmp_path / "o" / "splits.csv")}
    assert [by_split[k]["users"] for k in ("train", "val", "test", "all")] == [
        *map(str, np.bincount(splits)), str(len(splits))
    ]  # fmt: skip
    assert by_split["all"]["images"] == "5078"
    assert "computer" in result.output
    assert "fine_labels" not in {path.stem for path in (tmp_path / "o").iterdir()}
    Tags((tmp_path / "o" / "index.html").read_text(encoding="utf-8"))


def test_every_figure_and_table_is_written_and_shown(written: tuple[Inspection, Path]) -> None:
    inspection, page = written
    found = {path.name for path in page.parent.iterdir()}
    tables = {table.name for section in inspection.sections for table in section.tables}
    charts = {chart.name for section in inspection.sections for chart in section.charts}
    assert charts == {
        "images_per_user", "contact_sheet",
        *(f"{labels}_{what}" for labels in ("coarse", "fine")
          for what in ("frequency", "together", "divergence")),
    }  # fmt: skip
    assert found == {
        "index.html",
        *(f"{name}.csv" for name in tables),
        *(f"{name}.{suffix}" for name in charts for suffix in ("png", "svg")),
    }
    tags = Tags(page.read_text(encoding="utf-8")).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert charts | {f"table-{name}" for name in tables} <= set(ids)


def test_a_page_runs_its_own_script_alone_and_loads_nothing(
    written: tuple[Inspection, Path],
) -> None:
    parsed = Tags(written[1].read_text(encoding="utf-8"))
    (script,) = parsed.scripts
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in parsed.tags
        if tag == "meta" and "http-equiv" in attributes
    ]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest}'" in policy
    targets = {attributes["id"] for _, attributes in parsed.tags if "id" in attributes}
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name) or "#section-1"
            assert target.startswith("data:") or target[1:] in targets, (tag, target)


def test_what_data_say_does_not_steer_a_terminal() -> None:
    buffer = io.StringIO()
    show(inspect_images(collection(), with_charts=False), Console(file=buffer, width=160))
    text = buffer.getvalue()
    assert "\x1b" not in text
    assert "<script>alert(1)</script> �[31m [red]$x$" in text


def test_a_sheet_shows_users_of_all_sizes_and_reads_no_more_than_that() -> None:
    images = collection()
    sheet_chart(images, "fine", seed=3)
    first, images.rows = images.rows, []
    sheet_chart(images, "fine", seed=3)
    assert images.rows == first == list(dict.fromkeys(first))
    offsets = images.index.user_offsets
    owners = np.searchsorted(offsets, first, side="right") - 1
    shown = dict(zip(*np.unique(owners, return_counts=True), strict=True))
    sizes = np.diff(offsets)
    assert {user: min(int(sizes[user]), 6) for user in shown} == shown
    assert sorted(int(sizes[user]) for user in shown) == [1, 2, 5, 12, 40]
    images.rows = []
    sheet_chart(images, "fine", seed=4)
    assert images.rows != first


def test_labels_are_ordered_by_frequency_and_keep_their_counts() -> None:
    images = collection(hostile="dog")
    for label_set, position in (("coarse", 0), ("fine", 1)):
        measures = measure_labels(images.index, label_set, seed=0)
        assert sorted(measures.names, key=lambda name: -count(images, position, name)) == list(
            measures.names
        )
        for place, name in enumerate(measures.names):
            assert measures.counts[:, place].sum() == count(images, position, name)
            assert measures.together[place, place] == count(images, position, name)


def count(images: Memory, position: int, name: str) -> int:
    return sum(name in record.labels[position] for record in images.records)


def test_pairs_are_told_with_their_lift() -> None:
    labels = [("a", "b"), ("a", "b"), ("a",), ("c",), ()]
    images = Memory([ImageRecord("u", f"{k}", "test", ((), own)) for k, own in enumerate(labels)])
    inspection = inspect_images(images, ("fine",), with_charts=False)
    tables = {table.name: table for section in inspection.sections for table in section.tables}
    assert tables["fine_pairs"].rows == (("a", "b", 2, pytest.approx(2 / 5 / (3 / 5 * 2 / 5))),)
    assert [row[0] for row in tables["splits"].rows] == ["test", "all"]


def test_a_dealt_collection_is_inspected_as_it_is_dealt(tmp_path: Path) -> None:
    file = tmp_path / "iid.yaml"
    file.write_text("name: iid\ndata: {source: openclipart, partition: {method: iid}}\n")
    result = CliRunner().invoke(app, ["data", "inspect", str(file), "--labels", "coarse"])
    assert result.exit_code == 0, result.output
    assert "method: iid" in result.output
    row = re.search(r"^ *all +285 +([\d.]+) +\S+ +([\d.]+) ", result.output, re.MULTILINE)
    assert row is not None, result.output
    assert float(row[1]) == pytest.approx(float(row[2]), abs=0.03)
    result = CliRunner().invoke(app, ["data", "inspect", "openclipart", "--labels", "coarse"])
    row = re.search(r"^ *all +285 +([\d.]+) +\S+ +([\d.]+) ", result.output, re.MULTILINE)
    assert row is not None, result.output
    assert float(row[1]) > float(row[2]) + 0.1


def test_overrides_choose_what_is_inspected(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "name: two\ndata: {source: openclipart}\n"
        "sweep: {data.partition: [{method: iid}, {method: by_user}]}\n"
    )
    command = ["data", "inspect", str(file), "--labels", "coarse"]
    both = CliRunner().invoke(app, command)
    assert isinstance(both.exception, ConfigError)
    assert "data.partition, found 2 of these; choose one" in str(both.exception)
    file.write_text("name: one\ndata: {source: openclipart}\n")
    result = CliRunner().invoke(app, [*command, "data.partition={method: iid_constant}"])
    assert result.exit_code == 0, result.output
    assert re.search(r"^ *train +88 +4,364 ", result.output, re.MULTILINE), result.output
    assert "images_per_user: 50" in result.output
    result = CliRunner().invoke(
        app, ["data", "inspect", "openclipart", "data.partition.method=iid"]
    )
    assert isinstance(result.exception, ConfigError)
    assert "expected a YAML file" in str(result.exception)


def test_populations_of_two_sizes_are_not_taken_for_one(tmp_path: Path) -> None:
    file = tmp_path / "sizes.yaml"
    file.write_text(
        "name: sizes\ndata: {source: synthetic}\nsweep: {data.population_size: [30, 60]}\n"
    )
    result = CliRunner().invoke(app, ["data", "inspect", str(file)])
    assert isinstance(result.exception, ConfigError)
    assert "data.population_size" in str(result.exception)
    result = CliRunner().invoke(app, ["data", "partition", str(file), str(tmp_path / "p.csv")])
    assert isinstance(result.exception, ConfigError)


def test_a_class_is_told_from_a_path() -> None:
    result = CliRunner().invoke(app, ["data", "inspect", "my_package.mine:Mine"])
    assert isinstance(result.exception, DataError)
    assert "found what looks like a class" in str(result.exception)


def test_faults_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    (folder / "small_images").mkdir(parents=True)
    entry = {"user_id": 7, "image_id": "1", "partition": "train"}
    entry |= {"labels": [], "fine_grained_labels": []}
    (folder / "labels_and_metadata.json").write_text(json.dumps([entry]))
    result = CliRunner().invoke(app, ["data", "inspect", str(folder)])
    assert isinstance(result.exception, DataError)
    assert "user_id must be text" in str(result.exception)


def test_no_images_and_no_place_to_write_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="memory: expected images, found none"):
        inspect_images(Memory([]))
    (tmp_path / "file").touch()
    inspection = inspect_images(collection(), with_charts=False)
    with pytest.raises(DataError, match="file: expected a folder to write to"):
        write(inspection, tmp_path / "file")


def test_labels_may_be_missing_altogether(tmp_path: Path) -> None:
    images = Memory([ImageRecord("u", "1", "train", ((), ()))])
    page = write(inspect_images(images), tmp_path)
    assert not list(tmp_path.glob("coarse_*.png"))
    Tags(page.read_text(encoding="utf-8"))


def test_tables_fit_a_narrow_terminal() -> None:
    buffer = io.StringIO()
    images = open_whole(scanner_of("openclipart"))
    inspection = inspect_images(images, ("coarse",), with_charts=False)
    show(inspection, Console(file=buffer, width=80))
    (head,) = [line for line in buffer.getvalue().splitlines() if line.startswith("what ")]
    assert head.split()[-1] == "max"


def test_long_tables_are_cut_on_a_terminal_and_bars_compare() -> None:
    rows = tuple((f"row {number}", number) for number in (8, 4, 1, 0))
    table = Table("t", "T", (Column("name"), Column("n", bar=True)), rows)
    buffer = io.StringIO()
    Console(file=buffer, width=80).print(terminal_table(table, limit=3))
    text = buffer.getvalue()
    bars = [len(re.findall("█", line)) for line in text.splitlines() if "row " in line]
    assert bars == [9, 4, 1]
    assert "1 more rows are not shown" in " ".join(text.split())
    assert table.share(3, 1) == 0


def test_the_command_refuses_a_file_that_is_not_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "changed.h5"
    path.write_bytes(OPENCLIPART.read_bytes())
    assert CliRunner().invoke(app, ["data", "inspect", str(path)]).exit_code == 0
    with path.open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"changed")
    result = CliRunner().invoke(app, ["data", "inspect", str(path)])
    assert isinstance(result.exception, DataError)
    assert "the source is damaged or was changed" in str(result.exception)

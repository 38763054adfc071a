"""The commands on data sets. Heavy imports wait for the command that needs them."""

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.config import DataConfig
    from fedsim.data.index import StoredImages

data_app = typer.Typer(help="Convert data sets and look at them.", no_args_is_help=True)


class LabelSet(StrEnum):
    """What --labels may be."""

    coarse = "coarse"
    fine = "fine"


@data_app.command()
def convert(
    source: Annotated[str, typer.Argument(help="What data.source may be: a folder or file.")],
    destination: Annotated[Path, typer.Argument(help="The HDF5 file to write.")],
    quality: Annotated[
        int | None,
        typer.Option(
            help="JPEG quality, 1 to 100, of images that SOURCE has as pixels; without it nothing "
            "is lost. Images that are encoded already keep their bytes."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that read and check; by default one per core.")
    ] = None,
) -> None:
    """Convert SOURCE to fedsim's HDF5 format, checking every image on the way.

    Run again after an interruption, it goes on where it was.

    Example: fedsim data convert ~/flair ~/flair.h5
    """
    from rich.console import Console

    from fedsim.data.conversion_progress import shown_progress
    from fedsim.data.convert import convert as convert_source
    from fedsim.engines.workers import num_cores

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with shown_progress(Console(stderr=True)) as progress:
            summary = convert_source(
                source,
                destination,
                quality=quality,
                workers=num_cores() if workers is None else workers,
                progress=progress,
            )
    except KeyboardInterrupt:  # here, since typer would end without a word
        print("fedsim: stopped; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    counts = [
        f"{split} {summary.num_images[split]:,} images of {users:,} users"
        for split, users in summary.num_users.items()
    ]
    labels = [f"{number:,} {kind} labels" for kind, number in summary.num_labels.items()]
    print(f"{summary.path}: {'; '.join([*counts, *labels])}; every image was read back")
    print(f"{summary.num_bytes / 1e6:,.1f} MB of images, content sha256 {summary.content_sha256}")
    print(summary.encoding(quality))
    if summary.num_resumed:
        print(f"{summary.num_resumed:,} images had been done before an interruption")
    if summary.repeated_labels or summary.unused_files:
        print(
            f"{summary.repeated_labels:,} repeated labels counted once, "
            f"{summary.unused_files:,} files that no row names were left out"
        )


@data_app.command()
def partition(
    file: Annotated[Path, typer.Argument(help="A YAML file.")],
    destination: Annotated[Path, typer.Argument(help="The CSV file to write.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="dotted.key=value, wins over the file.")
    ] = None,
) -> None:
    """Write which user gets which train image in FILE's runs, as data.partition deals them.

    To read it back: data.partition={method: file, path: DESTINATION}.

    Example: fedsim data partition experiments/quickstart.yaml iid.csv data.partition.method=iid
    """
    data = _shared_data(file, overrides or [])

    from fedsim.build import open_images
    from fedsim.data.partition_file import write_partition

    index = open_images(data).index
    write_partition(index, destination)
    _, num_users = index.users_of("train")
    num_images = index.user_offsets[num_users]
    print(f"{destination}: {num_images:,} train images of {num_users:,} users")


@data_app.command()
def split(
    source: Annotated[str, typer.Argument(help="An HDF5 file made by convert, or openclipart.")],
    destination: Annotated[Path, typer.Argument(help="The folder to write to.")],
    nodes: Annotated[int, typer.Option(help="Machines that the train users are dealt to.")],
) -> None:
    """Split SOURCE for a deployment: a file with val and test, and one with train users per node.

    The users stay whole; they are dealt in turn, in the order of their ids.

    Example: fedsim data split ~/flair.h5 ~/deployment --nodes 3
    """
    from fedsim.data.split import split_for_deployment

    for path, num_users, num_images in split_for_deployment(source, destination, nodes):
        print(f"{path}: {num_images:,} images of {num_users:,} users")


@data_app.command()
def inspect(
    source: Annotated[
        str, typer.Argument(help="What data.source may be, or a YAML file whose data is meant.")
    ] = "openclipart",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="dotted.key=value, wins over the YAML file."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a page, figures and tables.")] = None,
    labels: Annotated[
        LabelSet | None, typer.Option(help="Look closely at one label set only.")
    ] = None,
) -> None:
    """Tell what is in SOURCE: users, images, labels, and how far users differ.

    A YAML file's train images are shown as data.partition deals them to users. Of a file in
    fedsim's own format every image is read, to see whether it still is what it was.

    Examples: fedsim data inspect openclipart --out openclipart-inspected;
    fedsim data inspect experiments/quickstart.yaml data.partition.method=iid
    """
    from rich.console import Console
    from rich.markup import escape

    from fedsim.data.content import check_content
    from fedsim.data.index import LABEL_SETS
    from fedsim.inspect_data.report import inspect_images, show, write

    label_sets = LABEL_SETS if labels is None else (labels.value,)
    console = Console()
    with Console(stderr=True).status(f"reading {escape(source)}"):
        images, more_facts = _images_of(source, overrides or [])
        check_content(images)
        inspection = inspect_images(
            images, label_sets, with_charts=out is not None, more_facts=more_facts
        )
    show(inspection, console if console.is_terminal else Console(width=160))
    if out is not None:
        print(f"\nPage, figures and tables: {write(inspection, out)}")


def _images_of(source: str, overrides: list[str]) -> "tuple[StoredImages, list[tuple[str, str]]]":
    """Open what SOURCE means, or the data of a file of runs; return it and what to tell of it."""
    if source.lower().endswith((".yaml", ".yml")):
        from fedsim.build import open_images

        data = _shared_data(Path(source), overrides)
        partition = ", ".join(f"{name}: {value}" for name, value in data.partition)
        return open_images(data), [("run file", source), ("partition", partition)]
    if overrides:
        raise ConfigError(
            f"{source}: expected a YAML file, whose settings {overrides[0]!r} could override, "
            "found another source; leave it out"
        )
    from fedsim.data.scan import open_whole
    from fedsim.data.sources import scanner_of

    return open_whole(scanner_of(source)), []


def _shared_data(file: Path, overrides: list[str]) -> "DataConfig":
    """Return the data of a file's runs, which must all be dealt the same images alike."""
    from fedsim.config_file import load_runs

    found = [run.data for run in load_runs(file, overrides).values()]
    dealt = {(data.source, data.population_size, data.partition): data for data in found}
    if len(dealt) > 1:
        raise ConfigError(
            f"{file}: expected runs that share data.source, data.population_size and "
            f"data.partition, found {len(dealt)} of these; choose one, like "
            "data.partition.method=iid"
        )
    return next(iter(dealt.values()))

"""The commands on data sets. Heavy imports wait for the command that needs them."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import DataError

data_app = typer.Typer(help="Convert data sets.", no_args_is_help=True)


@data_app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A folder in FLAIR's layout.")],
    destination: Annotated[Path, typer.Argument(help="The HDF5 file to write.")],
) -> None:
    """Convert SOURCE to fedsim's HDF5 format, checking every image on the way.

    Example: fedsim data convert ~/flair ~/flair.h5
    """
    from rich.progress import Progress

    from fedsim.data.convert import convert as convert_folder

    if not source.is_dir():
        raise DataError(
            f"{source}: expected a folder with labels_and_metadata.json and small_images, found "
            f"{'a file' if source.exists() else 'nothing'}; check the path"
        )
    with Progress(transient=True) as progress:
        task = progress.add_task("images", total=None)
        summary = convert_folder(
            source,
            destination,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    counts = [
        f"{split} {summary.num_images[split]:,} images of {users:,} users"
        for split, users in summary.num_users.items()
    ]
    labels = [f"{number:,} {kind} labels" for kind, number in summary.num_labels.items()]
    print(f"{summary.path}: {'; '.join([*counts, *labels])}; every image was read back")
    print(f"{summary.num_bytes / 1e6:,.1f} MB of images, content sha256 {summary.content_sha256}")
    if summary.repeated_labels or summary.unused_files:
        print(
            f"{summary.repeated_labels:,} repeated labels counted once, "
            f"{summary.unused_files:,} files that no row names were left out"
        )

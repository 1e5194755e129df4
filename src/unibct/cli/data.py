"""The commands for data sets: split and convert."""

from pathlib import Path
from typing import Annotated

import typer

from unibct.cli.options import (
    DataArgument,
    ImagesOption,
    SkipOption,
    app,
    examples,
    scenario_listing,
)


@app.command(
    "split",
    epilog=examples("unibct split photos/ --scenario open-class --out split/")
    + f"\n\n{scenario_listing()}",
)
def split_command(
    data: DataArgument,
    scenario: Annotated[
        str, typer.Option(help="how the new set relates to the old one; see the list below")
    ],
    out: Annotated[Path, typer.Option(help="folder for old.txt and new.txt")],
    fraction: Annotated[
        float, typer.Option(help="share of the images or classes in the old set")
    ] = 0.3,
    seed: Annotated[
        int, typer.Option(min=0, help="chooses the images or classes of the old set")
    ] = 666,
) -> None:
    """Split a data set into an old and a new training set.

    Writes two lists of image ids, old.txt and new.txt. Pass them to `unibct train --images`.
    """
    from unibct.data.readers.table import open_images
    from unibct.data.split_lists import write_split
    from unibct.report.terminal import print_counts

    print_counts(write_split(open_images(data), scenario, out, fraction=fraction, seed=seed))


@app.command(
    "convert",
    epilog=examples(
        "unibct convert faces/ --to recordio --out ms1mv3-like",
        "unibct convert ms1mv3/train.rec --to folder --out faces",
    ),
)
def convert_command(
    data: DataArgument,
    to: Annotated[str, typer.Option(help="recordio (train.rec, train.idx, property) or folder")],
    out: Annotated[Path, typer.Option(help="the folder to write; it must not exist yet")],
    images: ImagesOption = None,
    skip_bad_images: SkipOption = False,
) -> None:
    """Write a data set in another file layout.

    The encoded images are copied byte for byte. The folder appears when it is complete. If the
    command is stopped, run it again to continue.
    """
    from unibct.data.convert import convert
    from unibct.data.readers.table import open_images
    from unibct.progress import terminal_progress

    image_set = open_images(data, images)
    with terminal_progress() as progress:
        written = convert(image_set, out, to=to, skip_bad=skip_bad_images, progress=progress)
    print(f"{out}: {written:,} images as {to}")

"""Commands on data sets: split, convert."""

from pathlib import Path
from typing import Annotated

import typer

from unibct.cli.options import (
    SCENARIO_NAMES,
    DataArgument,
    ImagesOption,
    SkipOption,
    app,
)


@app.command("split")
def split_command(
    data: DataArgument,
    scenario: Annotated[str, typer.Option(help=SCENARIO_NAMES)],
    out: Annotated[Path, typer.Option(help="folder for old.txt and new.txt")],
    fraction: Annotated[float, typer.Option(help="share of the images or classes in old")] = 0.3,
    seed: Annotated[int, typer.Option(min=0, help="chooses the sample")] = 666,
) -> None:
    """Split a data set into an old and a new training set.

    Writes two lists of image ids, old.txt and new.txt, for `unibct train --images`.

    Example: unibct split photos/ --scenario open-class --out split/
    """
    from unibct.data.readers.table import open_images
    from unibct.data.split_lists import write_split
    from unibct.report.terminal import print_counts

    print_counts(write_split(open_images(data), scenario, out, fraction=fraction, seed=seed))


@app.command("convert")
def convert_command(
    data: DataArgument,
    to: Annotated[str, typer.Option(help="recordio (train.rec, train.idx, property) or folder")],
    out: Annotated[Path, typer.Option(help="a new folder")],
    images: ImagesOption = None,
    skip_bad_images: SkipOption = False,
) -> None:
    """Write a data set in another layout; the encoded images stay as they are, to the byte.

    The folder is there when all is in it. A run that was stopped goes on with the same command.

    Examples: unibct convert faces/ --to recordio --out ms1mv3-like

    unibct convert ms1mv3/train.rec --to folder --out faces
    """
    from unibct.data.convert import convert
    from unibct.data.readers.table import open_images
    from unibct.progress import terminal_progress

    image_set = open_images(data, images)
    with terminal_progress() as progress:
        written = convert(image_set, out, to=to, skip_bad=skip_bad_images, progress=progress)
    print(f"{out}: {written:,} images as {to}")

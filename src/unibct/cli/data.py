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
from unibct.data.readers import LAYOUTS
from unibct.errors import UserError

_LAYOUTS = " or ".join(f"{name} ({layout.description})" for name, layout in LAYOUTS.items())


@app.command(
    "split",
    epilog=examples(
        "unibct split photos/ --hold-out 0.3 --scenario open-class --out split/",
        "unibct split photos/ --hold-out 0.3 --out split/",
    )
    + f"\n\n{scenario_listing()}",
)
def split_command(
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="folder for the lists")],
    scenario: Annotated[
        str | None, typer.Option(help="how the new set relates to the old one; see the list below")
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="share of the classes to set aside for testing"),
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option(help="share of the images or classes in the old set  [default: 0.3]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="chooses the images and classes")] = 666,
) -> None:
    """Set test classes aside, and make an old and a new training set.

    With --hold-out, writes train.txt and test.txt: lists of image ids that have no class in
    common. With --scenario, writes old.txt and new.txt, from the training classes only. Train
    with `unibct train --images split/new.txt`, and test with `unibct evaluate --images
    split/test.txt`.
    """
    from unibct.data.scenarios import DEFAULT_FRACTION, write_split
    from unibct.embeddings.stored import open_data
    from unibct.report.terminal import print_counts

    if fraction is not None and scenario is None:
        raise UserError("--fraction is the share of a scenario's old set: give --scenario too")
    share = DEFAULT_FRACTION if fraction is None else fraction
    counts = write_split(
        open_data(data), scenario, out, fraction=share, hold_out=hold_out, seed=seed
    )
    print_counts(counts)


@app.command(
    "convert",
    epilog=examples(
        "unibct convert faces/ --to recordio --out ms1mv3-like",
        "unibct convert ms1mv3/train.rec --to folder --out faces",
    ),
)
def convert_command(
    data: DataArgument,
    to: Annotated[str, typer.Option(help=f"the layout: {_LAYOUTS}")],
    out: Annotated[Path, typer.Option(help="the folder to write; it must not exist yet")],
    images: ImagesOption = None,
    skip_bad_images: SkipOption = False,
) -> None:
    """Write a data set in another file layout.

    The encoded images are copied byte for byte. The folder appears when it is complete. If the
    command is stopped, run it again to continue.
    """
    from unibct.data.convert import convert
    from unibct.data.readers import open_images
    from unibct.progress import terminal_progress

    image_set = open_images(data, images, skip_bad=skip_bad_images)
    with terminal_progress():
        written = convert(image_set, out, to=to)
    print(f"{out}: {written:,} images as {to}")

"""The commands for data sets: split and convert."""

from pathlib import Path

from unibct.cli.options import (
    DataArgument,
    ImagesOption,
    SkipOption,
    app,
    examples,
    option,
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
    out: Path = option("folder for the lists", default=...),
    scenario: str | None = option("how the new set relates to the old one; see the list below"),
    hold_out: float | None = option("share of the classes to set aside for testing", "SHARE"),
    fraction: float | None = option(
        "share of the images or classes in the old set  [default: 0.3]"
    ),
    seed: int = option("chooses the images and classes", default=666, min=0),
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
    to: str = option(f"the layout: {_LAYOUTS}", default=...),
    out: Path = option("the folder to write; it must not exist yet", default=...),
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

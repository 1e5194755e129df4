"""The command that plans an upgrade before it is paid for: advise."""

import json
from pathlib import Path

from unibct.cli.options import (
    DataArgument,
    DeviceOption,
    ImagesOption,
    JsonOption,
    RecipeOption,
    SetOption,
    app,
    examples,
    option,
)
from unibct.embedders import describe_embedders
from unibct.methods import DEFAULT_METHOD


@app.command(
    "advise",
    epilog=examples(
        "unibct advise DATA --old models/old --gallery 2000000",
        "unibct advise DATA --images split/new.txt --old models/old --old-images split/old.txt",
        "unibct advise DATA --old embeddings:old.parquet --gallery 2000000",
        "unibct advise new-photos/ --old models/old --old-data old-photos/ --gallery shop/ --json",
    ),
)
def advise_command(
    data: DataArgument,
    old: str = option(f"the old model: {describe_embedders()}", "OLD", default=...),
    images: ImagesOption = None,
    old_data: str | None = option(
        "the old model's training images  [default: its classes only]", "DATA"
    ),
    old_images: Path | None = option(
        "use only the images in this list of --old-data, or of DATA", "LIST"
    ),
    gallery: str | None = option("the images in the gallery, or how many there are", "DATA|ROWS"),
    method: str = option("the method whose cost is measured", default=DEFAULT_METHOD),
    recipe: RecipeOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Plan an upgrade: what applies, and what each way would cost.

    Names the scenario, the methods that apply, how strong the old model is, costs and commands.
    DATA is the new training set. Reads a sample of the images, embeds it, trains on it for a few
    steps that are thrown away, and estimates from that what training, mapping and a backfill
    would take on this device. Takes a minute or so and writes nothing.
    """
    from unibct.advice.advise import AdviceRequest, advise
    from unibct.progress import terminal_progress
    from unibct.report.texts import advice_lines

    request = AdviceRequest(
        old=old,
        data=data,
        images=images,
        old_data=old_data,
        old_images=old_images,
        gallery=gallery,
        method=method,
        recipe=recipe,
        settings=tuple(set_ or ()),
        device=device,
    )
    with terminal_progress():
        advice = advise(request)
    print(json.dumps(advice.as_json(), indent=2) if as_json else "\n".join(advice_lines(advice)))

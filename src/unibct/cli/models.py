"""The commands that make or use a model: train and embed."""

from pathlib import Path
from typing import Annotated

import typer

from unibct import progress
from unibct.cli.options import (
    DataArgument,
    DeviceOption,
    ImagesOption,
    RecipeOption,
    SetOption,
    SkipOption,
    app,
    argument,
    examples,
    listing,
    method_listing,
    option,
    print_once,
    takes_options,
)
from unibct.data.decoding import FITS
from unibct.data.readers import describe_data_briefly
from unibct.embedders import Opener, describe_embedders
from unibct.embeddings.forms import FOLDER_FORM, FORMS
from unibct.evaluation.protocols import AUTO, PROTOCOLS
from unibct.methods import DEFAULT_METHOD, METHODS, find_method
from unibct.models.architectures import ARCHITECTURES, family_references
from unibct.training.options import TrainFlags

_EMBEDDED_PROTOCOLS = ", ".join([AUTO, *(n for n, entry in PROTOCOLS.items() if entry.embeds)])
_WARM_STARTERS = ", ".join(name for name, entry in METHODS.items() if entry.warm_starts)

_TRAIN_EXAMPLES = examples(
    "unibct train DATA --images split/old.txt --out models/old",
    "unibct train DATA --images split/new.txt --old models/old --out models/new",
    "unibct train DATA --old embeddings:old.parquet --out models/new",
    "unibct train DATA --out models/old --recipe paper --set epochs=20",
    "unibct train --from-embeddings text.parquet --old embeddings:old.npy --out models/text",
    "unibct train DATA --out models/old --set architecture=timm:convnext_tiny --set size=128x64",
    "torchrun --nproc-per-node=4 -m unibct train DATA --out models/old",
)
_NETWORK_SETTINGS = listing(
    "Settings of the network and its images, with --set (docs/backbones.md)",
    {
        "architecture": ", ".join(ARCHITECTURES),
        " of others": ", ".join(family_references()),
        "weights": "a file or folder to start from, or random",
        "download": "true: fetch from a hub; nothing is fetched otherwise",
        "size": "128x64 is 128 high and 64 wide; 64 is square",
        "channels": "1 grey, 3 colour",
        "fit": f"how images of another shape are fitted: {', '.join(FITS)}",
        "mean, deviation": "of pixels from 0 to 1: a number, or [r, g, b]",
    },
)


@app.command("train", epilog=f"{_TRAIN_EXAMPLES}\n\n{_NETWORK_SETTINGS}\n\n{method_listing()}")
@takes_options
def train_command(
    out: Path = option("folder for the trained model", default=...),
    data: str | None = argument(
        f"the images: {describe_data_briefly()}; see unibct --help", "DATA", default=None
    ),
    from_embeddings: str | None = option(
        "instead of DATA: finished vectors with classes, on which a projection is trained", "PATH"
    ),
    images: ImagesOption = None,
    old: str | None = option(
        f"the old model, if the new one is to be compatible: {describe_embedders()}", "OLD"
    ),
    recipe: RecipeOption = None,
    set_: SetOption = None,
    seed: int | None = option("the recipe's seed; chooses the initial weights and the batches"),
    warm_start: bool | None = option(
        f"start from the old model's weights; the default with {_WARM_STARTERS}, if the "
        "network is the same or can grow from the old one"
    ),
    skip_bad_images: SkipOption = False,
    *,
    flags: TrainFlags,
) -> None:
    """Train a model, on its own or compatible with an old one.

    With --old, the new model's queries can search the old model's gallery. A checkpoint is
    written after each epoch; after Ctrl-C, repeat the command with --resume. metrics.csv in OUT
    has a line per epoch. Some classes are set aside: recall@1 on them is shown after each epoch,
    beside that of raw pixels; OUT/best is the best epoch's model. Under torchrun the processes
    share each batch and the classes (docs/scaling.md), and each writes a file in OUT/logs.
    """
    from unibct.embeddings.stored import training_data
    from unibct.progress import terminal_progress
    from unibct.training.default_recipe import recipe_for
    from unibct.training.recipe import load_recipe
    from unibct.training.run_folder import LOGS
    from unibct.training.train import train

    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    overrides += [] if warm_start is None else [f"warm_start={str(warm_start).lower()}"]
    named_recipe = None if recipe is None else load_recipe(recipe, overrides)
    image_set = training_data(data, from_embeddings, images, skip_bad=skip_bad_images)
    with terminal_progress(logs=out / LOGS):
        if flags.resume and not out.exists():
            progress.note(f"nothing to resume: there is no {out} yet, so the training begins")
        loaded_recipe = named_recipe or recipe_for(image_set, overrides)
        entry = find_method(flags.method or DEFAULT_METHOD)
        opener = Opener(flags.device, entry.uses_old_classifier(loaded_recipe.warm_start))
        old_model = None if old is None else opener.open(old)
        model = train(image_set, loaded_recipe, out, old=old_model, **vars(flags))
    print_once(
        f"{out}: {model.architecture}, dimension {model.dim}, fingerprint {model.fingerprint}"
    )


@app.command(
    "embed",
    epilog=examples(
        "unibct embed models/new DATA --out emb/new",
        "unibct embed onnx:old.onnx DATA --to parquet --out old.parquet",
        "unibct embed models/new ijbc/ --protocol ijbc --out emb/new-ijbc",
    ),
)
def embed_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=f"the model: {describe_embedders()}")
    ],
    data: DataArgument,
    out: Path = option("folder or file for the embeddings", default=...),
    images: ImagesOption = None,
    to: str = option(f"the form to write: {', '.join(FORMS)}", default=FOLDER_FORM),
    protocol: str = option(
        f"for which protocol the embeddings are: {_EMBEDDED_PROTOCOLS}", default=AUTO
    ),
    dtype: str = option("float32, or float16 for half the size", default="float32"),
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Embed every image of a data set.

    Writes a folder with the L2-normalised embeddings, one row per image, with their ids and
    labels, and with the fingerprint of the model. The rows are memory-mapped when the folder is
    opened. If the command is stopped, run it again to continue. --to writes one file instead,
    for other programs.

    For a folder with the meta files of IJB-B or IJB-C, a row is the sum of both views of an
    aligned face, not normalised: what `unibct evaluate` takes in place of the model.
    """
    from unibct.evaluation.protocols import embed_data
    from unibct.progress import terminal_progress

    with terminal_progress():
        result = embed_data(
            data,
            model=model,
            out=out,
            protocol=protocol,
            images=images,
            form=to,
            dtype=dtype,
            skip_bad_images=skip_bad_images,
            device=device,
        )
    print_once(f"{out}: {len(result):,} embeddings of dimension {result.vectors.shape[1]}")

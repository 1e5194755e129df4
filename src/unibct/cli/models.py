"""Commands that make or use a model: train, adapt, embed."""

from pathlib import Path
from typing import Annotated

import typer

from unibct.cli.options import (
    ADAPTER_NAMES,
    METHOD_NAMES,
    DataArgument,
    DeviceOption,
    ImagesOption,
    RecipeOption,
    SetOption,
    SkipOption,
    app,
    described,
    say,
)
from unibct.maps.table import ADAPTERS
from unibct.methods.table import DEFAULT_METHOD, METHODS, NO_METHOD, find_method


@app.command("train", epilog=described("Methods", METHODS))
def train_command(
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="the model's folder")],
    images: ImagesOption = None,
    old: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="the old model's folder")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"{METHOD_NAMES}  [default: {DEFAULT_METHOD} with --old, else {NO_METHOD}]"
        ),
    ] = None,
    recipe: RecipeOption = "glyphs",
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="the recipe's seed")] = None,
    warm_start: Annotated[
        bool, typer.Option("--warm-start", help="begin from the old model's weights")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")] = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(metavar="STEPS", min=1, help="checkpoints within an epoch, too"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="threads that read images ahead  [default: one per core]"),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="write TensorBoard's event files")
    ] = None,
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Train a model, with --old so that its queries search the old model's gallery.

    A checkpoint is kept after each epoch; a run that was stopped, by Ctrl-C too, goes on with
    --resume. metrics.csv in the model's folder has a line per epoch. Under torchrun the processes
    share each batch and the classes (docs/scaling.md); OUT/logs has a file for each.

    Examples: unibct train DATA --images split/old.txt --out models/old

    unibct train DATA --images split/new.txt --old models/old --out models/new
    --set epochs=20

    torchrun --nproc-per-node=4 -m unibct train DATA --out models/old
    """
    from unibct.data.readers.table import open_images
    from unibct.models.folder import load_model
    from unibct.progress import terminal_progress
    from unibct.training.recipe import load_recipe
    from unibct.training.train import train

    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    overrides += ["warm_start=true"] if warm_start else []
    settings = load_recipe(recipe, overrides)
    image_set = open_images(data, images)
    uses_classifier = (
        settings.warm_start or find_method(method or DEFAULT_METHOD).needs_old_classifier
    )
    old_model = None if old is None else load_model(old, with_classifier=uses_classifier)
    with terminal_progress(logs=out / "logs") as progress:
        model = train(
            image_set,
            settings,
            out,
            old=old_model,
            method=method,
            resume=resume,
            skip_bad=skip_bad_images,
            device=device,
            workers=workers,
            checkpoint_every=checkpoint_every,
            tensorboard=tensorboard,
            progress=progress,
        )
    say(f"{out}: {model.architecture}, dimension {model.dim}, fingerprint {model.fingerprint}")


@app.command("adapt", epilog=described("Maps", ADAPTERS))
def adapt_command(
    data: DataArgument,
    new: Annotated[Path, typer.Option(metavar="MODEL", help="the new model's folder")],
    old: Annotated[Path, typer.Option(metavar="MODEL", help="the old model's folder")],
    out: Annotated[Path, typer.Option(help="folder for the adapted model")],
    kind: Annotated[str, typer.Option(help=ADAPTER_NAMES)] = "linear",
    images: ImagesOption = None,
    seed: Annotated[int, typer.Option(min=0, help="of the mlp")] = 0,
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Map a finished new model's queries into the old space, without training it again.

    Fits a map on images that both models embed. Compatible training gives better queries; this
    is for a model that cannot be trained again.

    Example: unibct adapt DATA --new models/free --old models/old --out models/adapted
    """
    from unibct.data.readers.table import open_images
    from unibct.distributed.device import pick_device
    from unibct.files import require_absent
    from unibct.models.folder import load_model, save_model
    from unibct.progress import terminal_progress
    from unibct.training.mapped_model import adapt

    require_absent(out)
    target = pick_device(device)
    new_model, old_model = (load_model(path, device=target) for path in (new, old))
    image_set = open_images(data, images)
    with terminal_progress() as progress:
        adapted = adapt(
            new_model,
            old_model,
            image_set,
            kind=kind,
            seed=seed,
            skip_bad=skip_bad_images,
            progress=progress,
        )
    save_model(adapted, out)
    print(f"{out}: {kind} map of {new}, fingerprint {adapted.fingerprint}")


@app.command("embed")
def embed_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a model's folder")],
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="folder for the embeddings")],
    images: ImagesOption = None,
    dtype: Annotated[str, typer.Option(help="float32, or float16: half the size")] = "float32",
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Embed every image of a data set.

    The folder holds shards of L2-normalised rows, one per image, which are memory-mapped when it
    is opened, their ids and labels, and a description with the model's fingerprint. A command that
    was stopped goes on where it was when it is given again.

    Example: unibct embed models/new DATA --out emb/new
    """
    from unibct.data.readers.table import open_images
    from unibct.distributed.device import pick_device
    from unibct.distributed.ranks import current_ranks
    from unibct.embeddings.extraction import embed_images_to_store
    from unibct.models.folder import load_model
    from unibct.progress import terminal_progress

    loaded = load_model(model, device=pick_device(device))
    image_set = open_images(data, images)
    with terminal_progress() as progress:
        result = embed_images_to_store(
            loaded,
            image_set,
            out,
            skip_bad=skip_bad_images,
            dtype=dtype,
            progress=progress,
            ranks=current_ranks(),
        )
    say(f"{out}: {len(result):,} embeddings of dimension {loaded.dim}")

"""The commands that need no training: adapt fits a map, map applies one, blend mixes weights."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unibct.cli.options import (
    DeviceOption,
    ImagesOption,
    JsonOption,
    SkipOption,
    app,
    argument,
    examples,
    listing,
    option,
)
from unibct.data.readers import describe_data_briefly
from unibct.embedders import describe_embedders
from unibct.embeddings.forms import FOLDER_FORM, FORMS, describe_forms
from unibct.maps import DEFAULT_MAP, MAPS

if TYPE_CHECKING:
    from unibct.evaluation.weight_choice import WeightChoice
    from unibct.models.model import Model


_ADAPT_EXAMPLES = examples(
    "unibct adapt DATA --new models/free --old models/old --out models/adapted",
    "unibct adapt --new embeddings:new.parquet --old embeddings:old.npy --kind affine --out maps/a",
    "unibct adapt DATA --new onnx:new.onnx --old onnx:old.onnx --direction forward --out maps/b",
)


_KINDS = listing("Kinds", {name: entry.description for name, entry in MAPS.items()})


@app.command("adapt", epilog=f"{_ADAPT_EXAMPLES}\n\n{_KINDS}")
def adapt_command(
    new: str = option(f"the new model: {describe_embedders()}", "NEW", default=...),
    old: str = option("the old model, given in the same ways", "OLD", default=...),
    out: Path = option("folder for the adapted model or the map", default=...),
    data: str | None = argument(
        f"images that both models embed: {describe_data_briefly()}; not needed if both are "
        "stored embeddings",
        "DATA",
        default=None,
    ),
    kind: str = option("the kind of map; see the list below", default=DEFAULT_MAP),
    direction: str = option(
        "backward: new queries into the old space; forward: old rows into the new space",
        default="backward",
    ),
    images: ImagesOption = None,
    seed: int = option("chooses initial weights and batches", default=0, min=0),
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Map a finished model into another model's space.

    Fits a map on both models' embeddings of the same images. If NEW is a model folder and the map
    goes backward, saves the new model together with the map: its queries search the old gallery.
    Otherwise saves the map alone, for `unibct map`. Use it for a model that cannot be trained
    again, or to save the training. Compatible training (`unibct train --old`) usually finds more;
    docs/maps.md has numbers, and `unibct evaluate` tells how much yours finds.
    """
    from unibct.data.image_set import require_outside
    from unibct.data.readers import open_images
    from unibct.embedders import Opener
    from unibct.files import require_absent
    from unibct.progress import terminal_progress
    from unibct.training.mapped_model import adapt_embedders, save_adapted

    require_absent(out)
    image_set = None if data is None else open_images(data, images, skip_bad=skip_bad_images)
    if image_set is not None:
        require_outside(image_set, out)
    with terminal_progress():
        opener = Opener(device)
        result = adapt_embedders(
            opener.open(new),
            opener.open(old),
            image_set,
            listed=images if data is None else None,
            direction=direction,
            kind=kind,
            seed=seed,
        )
    print(f"{out}: {save_adapted(result, out)}")


@app.command(
    "map",
    epilog=examples(
        "unibct map maps/b embeddings:gallery.parquet --to parquet --out upgraded.parquet",
        "unibct map maps/b emb/gallery --known emb/new-queries --out emb/upgraded",
    ),
)
def map_command(
    map_: Path = argument("the map's folder, from `unibct adapt`", "MAP"),
    embeddings: str = argument(describe_forms(), "EMBEDDINGS"),
    out: Path = option("folder or file for the mapped embeddings", default=...),
    known: str | None = option(
        "embeddings of the space that the map leads to, with ids or classes in common, "
        "to try the map with  [default: images kept with the map]",
        "EMBEDDINGS",
    ),
    to: str = option(f"the form to write: {', '.join(FORMS)}", default=FOLDER_FORM),
) -> None:
    """Map stored embeddings into another space, without images.

    A forward map takes rows of the old gallery, a backward map takes new queries; any other use
    is refused. Before anything is written, known queries must find their mates among the mapped
    rows. The mapped rows carry the fingerprint of the map.
    """
    from unibct.embedders.own import open_stored
    from unibct.embeddings.forms import write_embeddings
    from unibct.embeddings.mapping import apply_map
    from unibct.maps.space_map import load_map

    FORMS.find(to).load().require_writable(out)
    mapped = apply_map(
        load_map(map_),
        open_stored(embeddings),
        known=None if known is None else open_stored(known),
        name=embeddings,
    )
    write_embeddings(mapped, out, to)
    print(f"{out}: {len(mapped):,} mapped embeddings of dimension {mapped.vectors.shape[1]}")


@app.command(
    "blend",
    epilog=examples(
        "unibct blend models/old models/new --out models/between",
        "unibct blend models/old models/new --alpha-from VALIDATION --out models/between",
    ),
)
def blend_command(
    old: Path = argument("the old model's folder", "OLD"),
    new: Path = argument("a model that was trained from its weights", "NEW"),
    out: Path = option("folder for the model between the two", default=...),
    alpha: float | None = option(
        "the share of the new weights  [default: 0.5, or as --alpha-from says]", min=0, max=1
    ),
    alpha_from: str | None = option(
        "images like the queries to come, of classes that no model was trained on, to "
        "choose the share on",
        "DATA",
    ),
    images: ImagesOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Blend the weights of an old and a new model.

    Makes a model between the two, without training: (1 − α)·old + α·new. It searches the old
    gallery with one encoder, and is nearer to the old model: for queries that are unlike the images
    of the new training, where new queries may find less than old ones. Its own gallery finds less
    than the new model's. NEW must have started from the weights of OLD, as with `unibct train
    --old` if the networks are of the same family. Then test it: `unibct evaluate`.
    """
    from unibct.distributed.device import pick_device
    from unibct.errors import UserError
    from unibct.evaluation.blending import MIDPOINT
    from unibct.files import require_absent
    from unibct.models.blended_weights import blend_weights
    from unibct.models.model_folder import load_model, save_model

    if alpha is not None and alpha_from is not None:
        raise UserError("--alpha and --alpha-from exclude each other: give one of them")
    if images is not None and alpha_from is None:
        raise UserError("--images lists images of --alpha-from, which is not given")
    require_absent(out)
    old_model, new_model = (load_model(path, device=pick_device(device)) for path in (old, new))
    told: dict[str, Any] = {"alpha": MIDPOINT if alpha is None else alpha}
    if alpha_from is None:
        model = blend_weights(old_model, new_model, told["alpha"])
    else:
        choice = _chosen_weights(old_model, new_model, alpha_from, images, quiet=as_json)
        model, told = choice.model, choice.as_json()
    save_model(model, out)
    told |= {"model": str(out), "fingerprint": model.fingerprint}
    line = f"{out}: {told['alpha']:g} of the new weights, fingerprint {model.fingerprint}"
    print(json.dumps(told) if as_json else line)


def _chosen_weights(
    old: "Model", new: "Model", alpha_from: str, images: Path | None, *, quiet: bool
) -> "WeightChoice":
    """Choose the share of the new weights, and print all that were tried."""
    from unibct.data.readers import open_images
    from unibct.evaluation.weight_choice import choose_weights
    from unibct.progress import terminal_progress
    from unibct.report.texts import weight_choice_text

    with terminal_progress():
        choice = choose_weights(open_images(alpha_from, images), old=old, new=new)
    if not quiet:
        print(weight_choice_text(choice))
    return choice

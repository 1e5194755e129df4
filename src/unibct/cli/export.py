"""The commands that hand a model over: export and card."""

import json
from pathlib import Path

from unibct.cli.options import ImagesOption, JsonOption, app, argument, examples, flag, option
from unibct.embedders import EMBEDDERS, describe_embedders, open_embedder, parse_reference


@app.command(
    "export",
    epilog=examples(
        "unibct export models/new --to onnx",
        "unibct export models/new --to onnx --data DATA --out new.onnx",
        "unibct export models/new --to onnx --int8 --data OTHERS --old models/old",
        "unibct export 'models/wide?space=old' --to onnx",
    ),
)
def export_command(
    model: str = argument(
        "folder of the model; MODEL?space=old: with its projection into the old space", "MODEL"
    ),
    to: str = option("the format: onnx", default="onnx"),
    out: Path | None = option(
        "the file  [default: in MODEL: model.onnx, model.int8.onnx, model.old-space.onnx]", "FILE"
    ),
    data: str | None = option(
        "images for the check  [default: embedded images and noise]; int8 needs them", "DATA"
    ),
    images: ImagesOption = None,
    int8: bool = flag("--int8", "write the int8 variant and measure what it loses"),
    old: str | None = option(
        f"with --int8: test its queries in this model's gallery: {describe_embedders()}", "OLD"
    ),
    as_json: JsonOption = False,
) -> None:
    """Write a model as a file that other programs run.

    The ONNX file takes `images`, uint8 (batch, height, width, channels) in RGB or grey, fitted to
    the model's size, and gives `embeddings`, float32 (batch, dim), L2-normalised. Everything else
    is inside. Its metadata says size, channels, fit, dimension and fingerprint (unibct.input,
    unibct.dim, unibct.fingerprint). It must agree with the model on 1,000 images (cosine at least
    0.99999); otherwise nothing is written. FILE.json keeps what was measured.

    --int8 makes a smaller file that is not quite the same. A quarter of the images of each class
    calibrates it; the others are queries, exact and int8, in the gallery of --old (the cross
    test), or of the exact file.

    A model with another dimension than its old one's has a projection into the old space.
    MODEL gives its own vectors, for rows that it has made itself; 'MODEL?space=old' gives the
    projected ones, for rows of the old model.
    """
    from unibct.data.readers import open_images
    from unibct.errors import UserError
    from unibct.export.export_model import default_file, export_model
    from unibct.models.model import Model
    from unibct.models.old_space import OldSpaceModel, old_space_dim
    from unibct.progress import terminal_progress
    from unibct.report.texts import export_text

    if to != "onnx":
        raise UserError(f"--to {to}: the only format is onnx")
    if images is not None and data is None:
        raise UserError(f"--images {images} needs the set that it is a list of: give --data DATA")
    image_set = None if data is None else open_images(data, images)
    with terminal_progress():
        loaded = open_embedder(model)
        if not isinstance(loaded, (Model, OldSpaceModel)):
            raise UserError(f"{model} is no model folder; only a model of unibct is exported")
        folder = parse_reference(model, EMBEDDERS).path
        path = out or folder / default_file(loaded, int8=int8)
        old_model = None if old is None else open_embedder(old)
        export = export_model(loaded, path, images=image_set, int8=int8, old=old_model)
    print(json.dumps(export.as_json(), indent=2) if as_json else export_text(export.as_json()))
    if isinstance(loaded, Model) and old_space_dim(loaded) is not None and not as_json:
        print(
            "these are its own vectors, for rows that it has made itself; for rows of the old "
            f"model: unibct export '{folder}?space=old' --to onnx"
        )


@app.command(
    "card",
    epilog=examples(
        "unibct evaluate OTHERS --query models/new --gallery models/old --json > evaluation.json",
        "unibct card models/new --evaluation evaluation.json",
    ),
)
def card_command(
    model: Path = argument("folder of the model", "MODEL"),
    evaluation: Path | None = option("what `unibct evaluate --json` printed", "FILE"),
    out: Path | None = option("the file  [default: MODEL_CARD.md in MODEL]", "FILE"),
) -> None:
    """Write a model card: origin, compatibility, thresholds, limits.

    The card is Markdown: input, training, the old model that it is compatible with, the verdict,
    thresholds and limits. What was not measured is said to be unknown.
    """
    from unibct.report.model_card import write_model_card

    print(f"{write_model_card(model, evaluation, out)}: written")

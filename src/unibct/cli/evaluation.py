"""The command that tests a new model against an old one: evaluate."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from unibct.cli.options import DataArgument, DeviceOption, ImagesOption, SkipOption, app
from unibct.evaluation.protocols.table import AUTO, PROTOCOLS

_PROTOCOL_HELP = ", ".join([AUTO, *(f"{name} ({p.says})" for name, p in PROTOCOLS.items())])

QueryOption = Annotated[
    Path, typer.Option(metavar="NEW", help="the new model's folder, or its embeddings'")
]
GalleryOption = Annotated[
    Path, typer.Option(metavar="OLD", help="the old model's folder, or its embeddings'")
]
ProtocolOption = Annotated[str, typer.Option(help=_PROTOCOL_HELP)]
FarOption = Annotated[float, typer.Option(help="false accept rate of the headline TAR")]
SeedOption = Annotated[
    int, typer.Option(min=0, help="chooses template images and bootstrap samples")
]
ThresholdRuleOption = Annotated[
    Literal["strict", "nearest"],
    typer.Option(
        help="threshold of a TAR: FAR never above the rate, or the field's nearest ROC corner"
    ),
]
FlipTestOption = Annotated[bool, typer.Option(help="IJB: add the mirrored image's embedding")]
DetectorScoresOption = Annotated[
    bool, typer.Option(help="IJB: weight images by the detector's score")
]
MediaMeanOption = Annotated[bool, typer.Option(help="IJB: average a media's images before summing")]
NormalizeImagesOption = Annotated[
    bool, typer.Option("--normalize-images", help="IJB: images count alike before pooling")
]
CacheOption = Annotated[Path, typer.Option(help="IJB: where embeddings of the images are kept")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


@app.command("evaluate")
def evaluate_command(
    data: DataArgument,
    query: QueryOption,
    gallery: GalleryOption,
    images: ImagesOption = None,
    protocol: ProtocolOption = AUTO,
    far: FarOption = 1e-4,
    seed: SeedOption = 0,
    threshold_rule: ThresholdRuleOption = "strict",
    flip_test: FlipTestOption = True,
    detector_scores: DetectorScoresOption = True,
    media_mean: MediaMeanOption = True,
    normalize_images: NormalizeImagesOption = False,
    cache: CacheOption = Path("runs/cache"),
    as_json: JsonOption = False,
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Test whether the new model's queries search the old model's gallery.

    A quarter of each class's images is pooled into the gallery's template, the rest are queries.
    Self test: both sides from one model. Cross test: new queries, old templates. Compatible:
    the cross test beats the old self test, and the bootstrap interval of the difference lies
    above zero. A .bin pair set gives 10-fold accuracy; a folder with the meta files of IJB-B or
    IJB-C gives that protocol, for which --query and --gallery may be what `unibct embed --protocol
    ijbc` wrote, or .npy files that hold the same: a row for each row of the meta files, the sum of
    the embeddings of the aligned face and its mirror image, not normalised.

    Examples: unibct evaluate DATA --query models/new --gallery models/old

    unibct evaluate ijbc/ --protocol ijbc --query models/new --gallery models/old
    """
    from unibct.evaluation.protocols.request import EvaluationRequest, PoolingRules
    from unibct.evaluation.protocols.table import evaluate_data
    from unibct.progress import terminal_progress
    from unibct.report.terminal import print_evaluation

    pooling = PoolingRules(flip_test, detector_scores, media_mean, normalize_images)
    with terminal_progress() as progress:
        request = EvaluationRequest(
            data,
            query,
            gallery,
            images=images,
            far=far,
            seed=seed,
            threshold_rule=threshold_rule,
            pooling=pooling,
            cache=cache,
            skip_bad=skip_bad_images,
            device=device,
            progress=progress,
        )
        evaluation = evaluate_data(request, protocol)
    if as_json:
        print(json.dumps(evaluation.as_json(), indent=2))
    else:
        print_evaluation(evaluation)

"""The command that tests a new model against an old one: evaluate."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unibct.cli.options import (
    DataArgument,
    DeviceOption,
    ImagesOption,
    JsonOption,
    SkipOption,
    app,
    examples,
)
from unibct.embedders import describe_embedders
from unibct.evaluation.protocols import AUTO, PROTOCOLS
from unibct.evaluation.templates import GalleryMode

if TYPE_CHECKING:
    from unibct.evaluation.certificate import Certificate
    from unibct.evaluation.protocols import EvaluationRequest
    from unibct.evaluation.upgrade import Evaluation

_PROTOCOL_HELP = f"how to test: {AUTO} recognises the data; or " + ", ".join(
    f"{name} ({protocol.says})" for name, protocol in PROTOCOLS.items()
)

QueryOption = Annotated[
    str, typer.Option(metavar="NEW", help=f"the new model: {describe_embedders()}")
]
GalleryOption = Annotated[
    str, typer.Option(metavar="OLD", help="the old model, given in the same ways")
]
ProtocolOption = Annotated[str, typer.Option(help=_PROTOCOL_HELP)]
FarOption = Annotated[
    float | None,
    typer.Option(help="false accept rate of the headline TAR  [default: the smallest measurable]"),
]
SeedOption = Annotated[
    int, typer.Option(min=0, help="chooses the gallery images and the bootstrap samples")
]
ThresholdRuleOption = Annotated[
    Literal["strict", "nearest"],
    typer.Option(
        help="threshold of a TAR: FAR never above the rate, or the field's nearest ROC corner"
    ),
]
FlipTestOption = Annotated[bool, typer.Option(help="IJB: add the embedding of the mirrored image")]
DetectorScoresOption = Annotated[
    bool, typer.Option(help="IJB: weight images by the score of the face detector")
]
MediaMeanOption = Annotated[
    bool, typer.Option(help="IJB: average the images of each media before summing")
]
NormalizeImagesOption = Annotated[
    bool,
    typer.Option("--normalize-images", help="IJB: normalise each image's embedding before pooling"),
]
CacheOption = Annotated[
    Path, typer.Option(help="IJB: folder that keeps embeddings for the next time")
]
QueriesOption = Annotated[
    Path | None,
    typer.Option(metavar="LIST", help="ids of the queries; with --gallery-images"),
]
GalleryImagesOption = Annotated[
    Path | None, typer.Option(metavar="LIST", help="ids of the gallery's images; with --queries")
]
GalleryModeOption = Annotated[
    GalleryMode, typer.Option(help="what the gallery holds: one template per class, or images")
]
BackfillCurveOption = Annotated[
    bool | None,
    typer.Option(
        help="measure partly backfilled galleries  [default: if it takes a minute at most]"
    ),
]
OldThresholdsOption = Annotated[
    bool, typer.Option("--old-thresholds", help="use the score map that is kept with NEW")
]
SaveScoreMapOption = Annotated[
    bool,
    typer.Option("--save-score-map", help="fit a score map on this data and keep it with NEW"),
]
AlphaOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="share of the new query in blended queries, which search the old gallery  "
        "[default: 0.5, or as --alpha-from says]",
    ),
]
AlphaFromOption = Annotated[
    str | None,
    typer.Option(metavar="DATA", help="images of other classes, on which alpha is chosen"),
]
SeenClassesOption = Annotated[
    bool,
    typer.Option(
        "--seen-classes",
        help="go on even if most test classes were trained on; a gallery then wants --force",
    ),
]
CertifyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="write a certificate; if it says compatible, NEW may search a gallery of OLD",
    ),
]


@app.command(
    "evaluate",
    epilog=examples(
        "unibct evaluate DATA --images split/test.txt --query models/new --gallery models/old",
        "unibct evaluate TEST --query emb/new --gallery emb/old --json",
        "unibct evaluate TEST --query onnx:new.onnx --gallery embeddings:old.parquet",
        "unibct evaluate TEST --query models/new --gallery models/old --certify upgrade.json",
        "unibct evaluate TEST --query models/new --gallery models/old --alpha-from VALIDATION",
        "unibct evaluate ijbc/ --protocol ijbc --query models/new --gallery models/old",
    ),
)
def evaluate_command(
    data: DataArgument,
    query: QueryOption,
    gallery: GalleryOption,
    images: ImagesOption = None,
    protocol: ProtocolOption = AUTO,
    far: FarOption = None,
    seed: SeedOption = 0,
    threshold_rule: ThresholdRuleOption = "strict",
    flip_test: FlipTestOption = True,
    detector_scores: DetectorScoresOption = True,
    media_mean: MediaMeanOption = True,
    normalize_images: NormalizeImagesOption = False,
    cache: CacheOption = Path("runs/cache"),
    queries: QueriesOption = None,
    gallery_images: GalleryImagesOption = None,
    gallery_mode: GalleryModeOption = "templates",
    backfill_curve: BackfillCurveOption = None,
    old_thresholds: OldThresholdsOption = False,
    save_score_map: SaveScoreMapOption = False,
    alpha: AlphaOption = None,
    alpha_from: AlphaFromOption = None,
    seen_classes: SeenClassesOption = False,
    certify: CertifyOption = None,
    as_json: JsonOption = False,
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Test whether the new model can search the old model's gallery.

    Use test classes that no model was trained on; `unibct split --hold-out` sets them aside. A
    quarter of the images of each class is pooled into a template of the gallery; the rest are
    queries. In a self test, queries and gallery come from the same model. In the cross test, the
    queries come from the new model and the gallery from the old one. The verdict is "compatible"
    if the bootstrap interval of cross test less old self test is above zero in every metric that
    decides, over ten classes or more that no model is known to have been trained on. Single images
    have a verdict of their own, which decides for a gallery. Blended queries search it too.

    A .bin pair set is tested by 10-fold accuracy instead, and a folder with the meta files of
    IJB-B or IJB-C by that protocol. For IJB, --query and --gallery may also be what `unibct embed
    --protocol ijbc` wrote, or .npy files with a row for each row of the meta files: the sum of the
    embeddings of the aligned face and of its mirror image, not normalised.
    """
    from unibct.evaluation.protocols import EvaluationRequest, PoolingRules, SearchRules
    from unibct.progress import terminal_progress

    pooling = PoolingRules(flip_test, detector_scores, media_mean, normalize_images)
    search = SearchRules(
        queries=queries, gallery_images=gallery_images, mode=gallery_mode, alpha_from=alpha_from,
        backfill_curve=backfill_curve, old_thresholds=old_thresholds, save_score_map=save_score_map,
    )  # fmt: skip
    with terminal_progress():
        request = EvaluationRequest(
            data=data, query=query, gallery=gallery, images=images, far=far, seed=seed, alpha=alpha,
            threshold_rule=threshold_rule, pooling=pooling, search=search, cache=cache,
            seen_classes=seen_classes, skip_bad=skip_bad_images, device=device)  # fmt: skip
        evaluation, certificate = _evaluated(request, certify, protocol, as_json=as_json)
    certified = None if certificate is None else f"{certify}: {certificate.summary()}"
    _print(evaluation, certified, as_json=as_json)


def _evaluated(
    request: "EvaluationRequest", certify: Path | None, protocol: str, *, as_json: bool
) -> "tuple[Evaluation, Certificate | None]":
    """Evaluate and certify; an evaluation that cannot be certified is printed before the error."""
    from unibct.evaluation.certificate import UncertifiedError, evaluate_and_certify

    try:
        return evaluate_and_certify(request, certify, protocol=protocol)
    except UncertifiedError as error:
        _print(error.evaluation, None, as_json=as_json)
        raise


def _print(evaluation: "Evaluation", certified: str | None, *, as_json: bool) -> None:
    """Print an evaluation, for machines or for people, and that a certificate was written."""
    from unibct.report.terminal import print_evaluation

    if as_json:
        print(json.dumps(evaluation.as_json(), indent=2))
    else:
        print_evaluation(evaluation)
    if certified is not None:
        typer.echo(certified, err=as_json)

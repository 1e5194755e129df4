"""One file or folder for each way to test two models, and the table that lists them.

A protocol reads its data and runs its tests. The metrics live in ``evaluation.metrics``.

The options of an evaluation, the same for every protocol.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unibct.errors import UserError
from unibct.evaluation.templates import GalleryMode

if TYPE_CHECKING:
    from unibct.embeddings.store import Embeddings
    from unibct.evaluation.upgrade import Evaluation
    from unibct.evaluation.verification import ThresholdRule


@dataclass(frozen=True)
class PoolingRules:
    """How the images of an IJB template become one vector; the defaults are those of the field.

    Attributes:
        flip_test: add the embedding of the mirrored image (models only).
        detector_scores: weight each image by its detector's score.
        media_mean: average the images of each media before the media are summed.
        normalize_images: scale each image's embedding to length 1 first.
    """

    flip_test: bool = True
    detector_scores: bool = True
    media_mean: bool = True
    normalize_images: bool = False


@dataclass(frozen=True)
class SearchRules:
    """How an image set is searched.

    Attributes:
        queries: a list of the ids of the queries.
        gallery_images: a list of the ids of the gallery's images. Both lists or none; by default
            a quarter of each class's images is in the gallery, and the others are queries.
        mode: the gallery's entries are ``templates``, one for each class, or ``images``.
        backfill_curve: measure the gallery while it is being embedded again. By default that is
            done where it takes a minute at most.
        old_thresholds: put the scores of the cross test on the old scale by the map that is kept
            with the new model, instead of maps fitted on other classes of this data.
        save_score_map: fit a map on all of this data and keep it with the new model.
        alpha_from: images of other classes, on which the share of the new query in blended
            queries is chosen.
    """

    queries: Path | None = None
    gallery_images: Path | None = None
    mode: GalleryMode = "templates"
    backfill_curve: bool | None = None
    old_thresholds: bool = False
    save_score_map: bool = False
    alpha_from: str | None = None


@dataclass(frozen=True)
class EvaluationRequest:
    """Two models, the data to test them on, and the options. Each protocol uses what it needs.

    Attributes:
        data: an image set, a ``.bin`` pair set, or a folder with IJB meta files.
        query: the new model, as ``open_embedder`` takes it: a model folder, ``onnx:FILE``,
            ``python:MODULE:ATTRIBUTE``, or ``embeddings:PATH``.
        gallery: the old model, likewise.
        images: a list of image ids; only these are used.
        far: false accept rate of the headline TAR; by default the smallest of 1e-4, … that the
            number of classes can measure.
        seed: chooses the gallery's images and the bootstrap samples.
        threshold_rule: how the thresholds of the reported TARs are set: ``strict`` or ``nearest``,
            see ``tar_at_far``. The verdict always uses the strict rule.
        pooling: how IJB templates are pooled.
        cache: where embeddings of IJB's images are kept.
        search: how an image set is searched.
        seen_classes: go on even if a model was trained on most of the test classes.
        skip_bad: leave unreadable images out instead of refusing.
        device: ``auto``, ``cpu``, ``cuda``, …
        alpha: the share of the new query in blended queries; by default the midpoint, or what is
            chosen on ``search.alpha_from``.
    """

    data: str
    query: str | Path
    gallery: str | Path
    images: Path | None = None
    far: float | None = None
    seed: int = 0
    threshold_rule: "ThresholdRule" = "strict"
    pooling: PoolingRules = PoolingRules()
    search: SearchRules = SearchRules()
    cache: Path = Path("runs/cache")
    seen_classes: bool = False
    skip_bad: bool = False
    device: str = "auto"
    alpha: float | None = None


@dataclass(frozen=True)
class EmbeddingRequest:
    """A model, the data that it embeds by the rules of a protocol, and the options.

    Attributes:
        data: what the protocol reads.
        model: the model, as ``open_embedder`` takes it.
        out: a new folder or file for the embeddings.
        images: a list of image ids; only these are embedded.
        form: a name from ``FORMS``: ``folder``, ``parquet``, ``npy`` or ``safetensors``.
        dtype: ``float32`` or ``float16``, on disk; a folder only.
        skip_bad: leave unreadable images out instead of refusing.
        device: ``auto``, ``cpu``, ``cuda``, …
    """

    data: str
    model: str | Path
    out: Path
    images: Path | None = None
    form: str = "folder"
    dtype: str = "float32"
    skip_bad: bool = False
    device: str = "auto"


# Each option of an evaluation, as the command line spells it when it is changed, and where a
# request has it.
OPTIONS: dict[str, Callable[[EvaluationRequest], Any]] = {
    "--images": lambda request: request.images,
    "--far": lambda request: request.far,
    "--seed": lambda request: request.seed,
    "--threshold-rule": lambda request: request.threshold_rule,
    "--no-flip-test": lambda request: request.pooling.flip_test,
    "--no-detector-scores": lambda request: request.pooling.detector_scores,
    "--no-media-mean": lambda request: request.pooling.media_mean,
    "--normalize-images": lambda request: request.pooling.normalize_images,
    "--cache": lambda request: request.cache,
    "--seen-classes": lambda request: request.seen_classes,
    "--skip-bad-images": lambda request: request.skip_bad,
    "--queries": lambda request: request.search.queries,
    "--gallery-images": lambda request: request.search.gallery_images,
    "--gallery-mode": lambda request: request.search.mode,
    "--backfill-curve": lambda request: request.search.backfill_curve,
    "--old-thresholds": lambda request: request.search.old_thresholds,
    "--save-score-map": lambda request: request.search.save_score_map,
    "--alpha": lambda request: request.alpha,
    "--alpha-from": lambda request: request.search.alpha_from,
}


def changed_options(request: EvaluationRequest) -> list[str]:
    """Return the options whose value is not the default."""
    default = EvaluationRequest(request.data, request.query, request.gallery)
    return [option for option, value in OPTIONS.items() if value(request) != value(default)]


# The table of evaluation protocols. To add one, write a file and add a line here.
#
# The table imports no protocol, so that the command line can read it without loading torch.

AUTO = "auto"


@dataclass(frozen=True)
class Protocol:
    """A way to test two models.

    Attributes:
        home: module and function that run it, ``pairs:evaluate_pair_set``. The function takes a
            request and returns an evaluation.
        recognises: whether some data is for this protocol. The first entry that agrees is used.
        says: what its data looks like, for help and messages.
        takes: the options from ``OPTIONS`` that it uses. Any other one is refused if a user
            changes it.
        embeds: module and function that write embeddings as the protocol needs them. The function
            takes an ``EmbeddingRequest``. Empty if the protocol takes models only.
    """

    home: str
    recognises: Callable[[str], bool]
    says: str
    takes: frozenset[str] = frozenset()
    embeds: str = ""


_SEARCH_OPTIONS = frozenset({"--far", "--seed", "--threshold-rule", "--alpha"})
_IMAGE_OPTIONS = frozenset(
    {
        "--images",
        "--seen-classes",
        "--skip-bad-images",
        "--queries",
        "--gallery-images",
        "--gallery-mode",
        "--backfill-curve",
        "--old-thresholds",
        "--save-score-map",
        "--alpha-from",
    }
)
_IJB_OPTIONS = _SEARCH_OPTIONS | {
    "--no-flip-test",
    "--no-detector-scores",
    "--no-media-mean",
    "--normalize-images",
    "--cache",
}


def _has_meta_files(benchmark: str) -> Callable[[str], bool]:
    return lambda data: (Path(data) / "meta" / f"{benchmark}_face_tid_mid.txt").is_file()


PROTOCOLS: dict[str, Protocol] = {
    "pairs": Protocol(
        "pairs:evaluate_pair_set",
        lambda data: data.endswith(".bin"),
        "a .bin pair set",
        frozenset({"--seed"}),
    ),
    "ijbc": Protocol(
        "ijb:evaluate_on_ijbc",
        _has_meta_files("ijbc"),
        "a folder with IJB-C's meta files",
        _IJB_OPTIONS,
        "ijb_faces:embed_ijbc",
    ),
    "ijbb": Protocol(
        "ijb:evaluate_on_ijbb",
        _has_meta_files("ijbb"),
        "a folder with IJB-B's meta files",
        _IJB_OPTIONS,
        "ijb_faces:embed_ijbb",
    ),
    "images": Protocol(
        "images:evaluate_images",
        lambda data: True,
        "all other data",
        _SEARCH_OPTIONS | _IMAGE_OPTIONS,
        "images:embed_image_set",
    ),
}


def recognised_protocol(data: str, protocol: str = AUTO) -> str:
    """Return the name of the protocol for some data; ``auto`` recognises it from the data."""
    if protocol == AUTO:
        return next(name for name, entry in PROTOCOLS.items() if entry.recognises(data))
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {protocol!r}; choose {AUTO}, {', '.join(PROTOCOLS)}")
    return protocol


def evaluate_data(request: EvaluationRequest, protocol: str = AUTO) -> "Evaluation":
    """Evaluate a new model against an old one with the protocol for the data.

    Args:
        request: the data, the two models, and the options.
        protocol: a name from ``PROTOCOLS``, or ``auto``.
    """
    from unibct.evaluation.blending import require_alpha
    from unibct.evaluation.templates import require_mode
    from unibct.evaluation.verification import require_rule

    name = recognised_protocol(request.data, protocol)
    _require_taken(request, name)
    if request.far is not None and not 0 < request.far <= 1:
        raise UserError(f"--far must lie in (0, 1], not {request.far}")
    if request.seed < 0:
        raise UserError(f"--seed must not be negative, not {request.seed}")
    require_rule(request.threshold_rule)
    require_mode(request.search.mode)
    if request.alpha is not None:
        if request.search.alpha_from is not None:
            raise UserError("--alpha and --alpha-from exclude each other: give one of them")
        require_alpha(request.alpha)
    return _function(PROTOCOLS[name].home)(request)


def embed_data(request: EmbeddingRequest, protocol: str = AUTO) -> "Embeddings":
    """Write a model's embeddings as the protocol that fits the data needs them.

    Args:
        request: the data, the model, and the options.
        protocol: a name from ``PROTOCOLS``, or ``auto``.
    """
    name = recognised_protocol(request.data, protocol)
    entry = PROTOCOLS[name]
    if not entry.embeds:
        raise UserError(
            f"{request.data} is {entry.says}, whose embeddings are not stored: give the models "
            "themselves to `unibct evaluate`"
        )
    for option, given in (("--images", request.images), ("--skip-bad-images", request.skip_bad)):
        if given and option not in entry.takes:
            raise UserError(f"{option} has no effect on --protocol {name}. Leave it out")
    return _function(entry.embeds)(request)


def _function(home: str) -> Callable[[Any], Any]:
    """Import the function that an entry of the table names."""
    module, _, function = home.partition(":")
    return getattr(import_module(f"unibct.evaluation.protocols.{module}"), function)


def _require_taken(request: EvaluationRequest, protocol: str) -> None:
    """Refuse options that the protocol would ignore."""
    for option in changed_options(request):
        if option not in PROTOCOLS[protocol].takes:
            others = [name for name, entry in PROTOCOLS.items() if option in entry.takes]
            raise UserError(
                f"{option} has no effect on --protocol {protocol}; it is for "
                f"{', '.join(others)} only. Leave it out"
            )

"""The options of an evaluation, the same for every protocol."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unibct.evaluation.gallery_split import GalleryMode
from unibct.progress import Progress, Silent

if TYPE_CHECKING:
    from unibct.evaluation.metrics.verification import ThresholdRule


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
        progress: reports progress per image.
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
    progress: Progress = field(default_factory=Silent)
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
        progress: reports progress per image.
    """

    data: str
    model: str | Path
    out: Path
    images: Path | None = None
    form: str = "folder"
    dtype: str = "float32"
    skip_bad: bool = False
    device: str = "auto"
    progress: Progress = field(default_factory=Silent)


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

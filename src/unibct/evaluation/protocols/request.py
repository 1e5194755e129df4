"""What a user asks of an evaluation, whatever the protocol."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unibct.evaluation.resolution import HEADLINE_FAR
from unibct.progress import Progress, Silent

if TYPE_CHECKING:
    from unibct.evaluation.metrics.verification import ThresholdRule


@dataclass(frozen=True)
class PoolingRules:
    """How the images of an IJB template become one vector; the defaults are the field's.

    Attributes:
        flip_test: add the embedding of the mirrored image (models only).
        detector_scores: weight each image by its detector's score.
        media_mean: average the images of a media before the media are summed.
        normalize_images: scale each image's embedding to length 1 first.
    """

    flip_test: bool = True
    detector_scores: bool = True
    media_mean: bool = True
    normalize_images: bool = False


@dataclass(frozen=True)
class EvaluationRequest:
    """Two models, the data to test them on, and the options. Each protocol uses what it needs.

    Attributes:
        data: what ``--protocol`` reads: images, a ``.bin`` pair set, a folder with IJB meta files.
        query: the new model's folder, or its embeddings.
        gallery: the old model's folder, or its embeddings.
        images: a list of image ids; only these are used.
        far: false accept rate of the headline TAR.
        seed: chooses the gallery's images and the bootstrap samples.
        threshold_rule: how the thresholds of the reported TARs are set: ``strict`` or ``nearest``,
            see ``tar_at_far``. The verdict always uses the strict rule.
        pooling: how IJB templates are pooled.
        cache: where embeddings of IJB's images are kept.
        skip_bad: leave unreadable images out instead of refusing.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: reports progress per image.
    """

    data: str
    query: Path
    gallery: Path
    images: Path | None = None
    far: float = HEADLINE_FAR
    seed: int = 0
    threshold_rule: "ThresholdRule" = "strict"
    pooling: PoolingRules = PoolingRules()
    cache: Path = Path("runs/cache")
    skip_bad: bool = False
    device: str = "auto"
    progress: Progress = field(default_factory=Silent)


@dataclass(frozen=True)
class EmbeddingRequest:
    """A model, the data that it embeds by the rules of a protocol, and the options.

    Attributes:
        data: what the protocol reads.
        model: the model's folder.
        out: a new folder for the embeddings.
        images: a list of image ids; only these are embedded.
        dtype: ``float32`` or ``float16``, on disk.
        skip_bad: leave unreadable images out instead of refusing.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: reports progress per image.
    """

    data: str
    model: Path
    out: Path
    images: Path | None = None
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
    "--skip-bad-images": lambda request: request.skip_bad,
}


def changed_options(request: EvaluationRequest) -> list[str]:
    """Return the options whose value is not the default."""
    default = EvaluationRequest(request.data, request.query, request.gallery)
    return [option for option, value in OPTIONS.items() if value(request) != value(default)]

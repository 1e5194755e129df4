"""The options of an evaluation, the same for every protocol."""

from dataclasses import dataclass, field
from pathlib import Path

from unibct.evaluation.resolution import HEADLINE_FAR
from unibct.progress import Progress, Silent


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
class EvaluationRequest:
    """Two models, the data to test them on, and the options. Each protocol uses what it needs.

    Attributes:
        data: an image set, a ``.bin`` pair set, or a folder with IJB meta files.
        query: the new model's folder, or its embeddings.
        gallery: the old model's folder, or its embeddings.
        images: a list of image ids; only these are used.
        far: false accept rate of the headline TAR.
        seed: chooses the gallery's images and the bootstrap samples.
        pooling: how IJB templates are pooled.
        cache: where embeddings of IJB's images are kept.
        skip_bad: leave out unreadable images instead of raising an error.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: reports progress per image.
    """

    data: str
    query: Path
    gallery: Path
    images: Path | None = None
    far: float = HEADLINE_FAR
    seed: int = 0
    pooling: PoolingRules = PoolingRules()
    cache: Path = Path("runs/cache")
    skip_bad: bool = False
    device: str = "auto"
    progress: Progress = field(default_factory=Silent)

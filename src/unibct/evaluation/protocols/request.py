"""What a user asks of an evaluation, whatever the protocol."""

from dataclasses import dataclass, field
from pathlib import Path

from unibct.progress import Progress, Silent


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
        far: false accept rate of the headline TAR; by default the smallest of 1e-4, … that the
            number of classes can measure.
        seed: chooses the gallery's images and the bootstrap samples.
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
    far: float | None = None
    seed: int = 0
    pooling: PoolingRules = PoolingRules()
    cache: Path = Path("runs/cache")
    skip_bad: bool = False
    device: str = "auto"
    progress: Progress = field(default_factory=Silent)

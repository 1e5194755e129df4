"""A small world for tests of galleries: images, models that are callables, and certificates."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import ImageSet
from unibct.evaluation.certificate import Certificate
from unibct.gallery.backfill import pause_backfill
from unibct.gallery.gallery_folder import GalleryFolder
from unibct.progress import Advance, Silent

SIDE, DIM = 6, 12


class Toy:
    """A model: a projection of the pixels; ``noise`` turns it away from the common one."""

    def __init__(self, noise: float, seed: int, dim: int = DIM) -> None:
        self.unibct_input = {"size": SIDE, "channels": 1}
        common = np.random.default_rng(0).standard_normal((SIDE * SIDE, dim))
        own = np.random.default_rng(seed).standard_normal((SIDE * SIDE, dim))
        self.weights = (1 - noise) * common + noise * own

    def __call__(self, pixels: Any) -> Any:
        return (pixels.reshape(len(pixels), -1) / 255.0 - 0.5) @ self.weights


old_model = Toy(0.35, 1)
new_model = Toy(0.1, 2)
newest_model = Toy(0.0, 3)
stranger = Toy(1.0, 4)  # the same dimension, another space
OLD, NEW, NEWEST, STRANGER = (
    f"python:tests.gallery.toys:{name}"
    for name in ("old_model", "new_model", "newest_model", "stranger")
)


def toy_images(classes: int = 6, per_class: int = 8, *, first: int = 0, seed: int = 0) -> ImageSet:
    """Noisy pictures of some patterns; ids are like ``c2/5``."""
    patterns = np.random.default_rng(7).integers(0, 256, (100, SIDE, SIDE))
    pixels: dict[str, Any] = {}
    labels: list[int] = []
    for label in range(classes):
        for number in range(first, first + per_class):
            noise = np.random.default_rng([seed, label, number]).normal(0, 40, (SIDE, SIDE))
            pixels[f"c{label}/{number}"] = np.clip(patterns[label] + noise, 0, 255).astype(np.uint8)
            labels.append(label)
    return ImageSet(
        "toys",
        tuple(pixels),
        np.array(labels, dtype=np.int64),
        tuple(f"c{label}" for label in range(classes)),
        pixels.__getitem__,
    )


def with_bad(images: ImageSet, *bad: str, encoded: bool = False) -> ImageSet:
    """The images, some of which cannot be decoded, or not even read as a file."""

    def read(image_id: str) -> Any:
        if image_id in bad:
            raise UnreadableImageError("broken")
        return images.read(image_id)

    def file(image_id: str) -> bytes:
        return b"broken" if image_id in bad else images.read(image_id).tobytes()

    return replace(images, read=read, encoded=file if encoded else None)


def skipping(images: ImageSet) -> ImageSet:
    """The images, of which unreadable ones are left out."""
    return replace(images, skip_bad=True)


class PauseAfterABatch(Silent):
    """The progress of a backfill that pauses it after its first batch."""

    def __init__(self, folder: GalleryFolder) -> None:
        self.folder = folder

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        yield lambda count, status=None: pause_backfill(self.folder)


def toy_certificate(old: str, new: str, **changes: Any) -> Certificate:
    """A certificate for two fingerprints."""
    knots = {"cross": [-1.0, 0.0, 1.0], "old": [-1.0, 0.2, 1.0]}
    far = {"0.1": 0.5, "0.01": 0.8}
    raw = {"choice": {"kind": "raw"}}
    content: dict[str, Any] = {
        "format": 2,
        "unibct": "0",
        "date": "2026-01-02T03:04:05Z",
        "old": {"fingerprint": old, "dim": DIM, "name": "old"},
        "new": {"fingerprint": new, "dim": DIM, "name": "new"},
        "data": {"name": "toys", "digest": "d", "images": 9, "classes": 3},
        "verdict": "compatible",
        "template_verdict": "compatible",
        "classes": {"basis": "unseen", "seen": 0, "tested": 3, "unknown": None},
        "metrics": {},
        "image_metrics": {"verdict": "compatible"},
        "thresholds": dict.fromkeys(("old→old", "new→old", "blend→old"), far)
        | {"new→new": {"0.1": 0.6, "0.01": 0.9}},
        "score_map": dict.fromkeys(("new→old", "blend→old"), knots)
        | {"new→new": knots | {"old": [-1.0, 0.1, 1.0]}},
        "further_calibrations": {"old→old": raw, "blend→old": raw},
        "calibration": {"choice": {"kind": "standardised", "slope": 2.0, "shift": -0.5}},
        "blend_alpha": 0.6,
        "flips": {},
    }
    return Certificate.sealed(content | changes)


def written(certificate: Certificate, folder: Path) -> Path:
    """The file of a certificate."""
    return certificate.write(folder / f"{certificate.digest[:8]}.json")

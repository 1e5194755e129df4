"""What a backfill would cost here, and what has been saved by not doing it."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np

from unibct.embeddings.stored import StoredEmbeddings
from unibct.models.embedder import Embedder, ImageEmbedder

_BATCH = 64
_SECONDS = 0.3


@dataclass(frozen=True)
class Savings:
    """The cost of embedding rows again.

    Attributes:
        rows: rows that older models made, and that need not be embedded again.
        rate: images a second that the model embeds on this device, without reading them; None if
            the model is not available.
    """

    rows: int
    rate: float | None

    @property
    def seconds(self) -> float | None:
        """How long embedding these rows again would take here."""
        return None if self.rate is None else self.rows / self.rate

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {"rows": self.rows, "images_per_second": self.rate, "seconds": self.seconds}

    def summary(self) -> str:
        """Return one line for people."""
        if not self.rows:
            return "no rows of older models are left"
        if self.seconds is None:
            return f"{self.rows:,} rows need not be embedded again"
        return (
            f"{self.rows:,} rows need not be embedded again: a backfill would take "
            f"{duration(self.seconds)} here ({self.rate:,.0f} images a second once read)"
        )


def measure_savings(embedder: Embedder, rows: int) -> Savings:
    """Measure how fast a model embeds on this device; a third of a second."""
    if isinstance(embedder, StoredEmbeddings) or not rows:
        return Savings(rows, None)
    return Savings(rows, embedding_rate(cast(ImageEmbedder, embedder)))


def embedding_rate(model: ImageEmbedder) -> float:
    """Return the images a second that a model embeds, pixels given."""
    pixels = np.random.default_rng(0).integers(0, 256, (_BATCH, *model.input.frame[:3]))
    batch = pixels.astype(np.uint8)
    model.embed_pixels(batch[:2])
    start, images, elapsed = perf_counter(), 0, 0.0
    while elapsed < _SECONDS:
        model.embed_pixels(batch)
        images += len(batch)
        elapsed = perf_counter() - start
    return images / elapsed


def duration(seconds: float) -> str:
    """Return a time span in words: 3 s, 4 min, 5 h or 6 days."""
    for size, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 1 else "less than a second"

"""What training, mapping and a backfill would take, extrapolated from measured rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unibct.advice.rates import Rates
from unibct.data.loader import fits_in_memory
from unibct.methods.table import find_method
from unibct.training.length import images_per_epoch, with_enough_epochs
from unibct.training.network import recipe_input
from unibct.training.recipe import Recipe


@dataclass(frozen=True)
class Cost:
    """The estimated time of one way to upgrade.

    The parts are added: where a GPU computes while the processor reads, it takes less.

    Attributes:
        what: in a few words.
        parts: seconds of each part.
    """

    what: str
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {"what": self.what, "estimated_seconds": self.seconds, "parts": dict(self.parts)}


def training_cost(recipe: Recipe, images: int, method: str, rates: Rates) -> Cost:
    """Estimate the training of the new model, compatible by ``method``.

    Args:
        recipe: as the user gives it.
        images: number of training images.
        method: a name from ``METHODS``.
        rates: measured with the recipe and the method.
    """
    used = with_enough_epochs(recipe, images)
    passed = used.epochs * images_per_epoch(images, used.batch_size)
    parts = {"reading": images / rates.reading}
    if find_method(method).needs_old_embeddings and rates.old_forward is not None:
        parts["old embeddings"] = (2 if used.flip else 1) * images / rates.old_forward
    if not fits_in_memory(images, recipe_input(used).frame):
        parts["reading in every epoch"] = passed / rates.reading
    parts["training steps"] = passed / rates.training
    return Cost(f"train for {used.epochs:,} epochs on {images:,} images", parts)


def mapping_cost(images: int, rates: Rates) -> Cost:
    """Estimate a linear map from a finished new model into the old space."""
    if rates.old_forward is None:  # they are stored
        parts = {"reading": images / rates.reading}
    else:
        parts = {
            "reading, once for each model": 2 * images / rates.reading,
            "old embeddings": images / rates.old_forward,
        }
    parts |= {"new embeddings": images / rates.new_forward, "fitting": images / rates.map_rows}
    return Cost(f"map a finished new model, fitted on {images:,} images", parts)


def backfill_cost(rows: int, rates: Rates) -> Cost:
    """Estimate how long it takes to embed a gallery again with the new model."""
    parts = {"reading": rows / rates.gallery_reading, "new embeddings": rows / rates.new_forward}
    return Cost(f"embed {rows:,} gallery images again", parts)

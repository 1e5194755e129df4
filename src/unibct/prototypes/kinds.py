"""The table of kinds of prototypes: how much each image of a class counts.

An entry names its function as text, so that the settings can check names without importing it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from unibct.prototypes.batching import ClassBatch
    from unibct.prototypes.inputs import PrototypeSettings


@dataclass(frozen=True)
class PrototypeKind:
    """A kind of prototype.

    Attributes:
        home: where the function is that weighs the images of a batch, as ``module:name`` within
            ``unibct.prototypes``. It returns (classes, m) weights.
        needs_new: whether the weights come from the new model's embeddings.
    """

    home: str
    needs_new: bool = False

    def load(self) -> "Callable[[ClassBatch, PrototypeSettings], Tensor]":
        """Import the function that weighs the images of a batch."""
        return resolve_name(f"unibct.prototypes.{self.home}")


PROTOTYPE_KINDS: dict[str, PrototypeKind] = {
    "centroid": PrototypeKind("weights:weigh_equally"),
    "drop": PrototypeKind("weights:weigh_by_distance"),
    "structural": PrototypeKind("weights:weigh_by_walk", needs_new=True),
}

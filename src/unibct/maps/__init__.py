"""Maps from a finished model's embeddings into another model's space: fit, apply, save.

``table`` lists them and each has a file. They work on arrays; the model that carries a map is in
``models``.

The table of maps, readable without torch.

An entry names the function that fits the map as text; it is imported when a map is fitted.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from unibct.errors import UserError

if TYPE_CHECKING:
    from unibct.maps.vector_map import FitFunction


@dataclass(frozen=True)
class MapEntry:
    """How to fit a kind of map.

    Attributes:
        home: where its function is, as ``module:name`` within ``unibct.maps``.
        description: one line for help texts.
    """

    home: str
    description: str

    def fit_function(self) -> "FitFunction":
        """Import the function that fits the map."""
        return resolve_name(f"unibct.maps.{self.home}")


MAPS: dict[str, MapEntry] = {
    "procrustes": MapEntry("vector_map:fit_procrustes", "the best orthogonal map"),
    "linear": MapEntry("vector_map:fit_linear", "the best linear map"),
    "mlp": MapEntry("vector_map:fit_mlp", "a network with one hidden layer"),
    "affine": MapEntry("vector_map:fit_affine", "the best linear map of centred embeddings"),
    "supervised": MapEntry(
        "vector_map:fit_supervised", "an affine map, trained by contrast with other classes"
    ),
}


DEFAULT_MAP = "affine"


def find_map_kind(name: str) -> MapEntry:
    """Return the kind of map called ``name``, or raise an error that lists the names."""
    if name not in MAPS:
        raise UserError(f"unknown map {name!r}; choose one of {', '.join(MAPS)}")
    return MAPS[name]

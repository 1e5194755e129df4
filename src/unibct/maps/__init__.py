"""Maps from a finished model's embeddings into another model's space: fit, apply, save.

They work on arrays; the model that carries a map is in ``models``. This table of them is readable
without torch: an entry names the function that fits the map, which is imported when it is used.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from unibct.registry import Registry

if TYPE_CHECKING:
    from unibct.maps.vector_map import FitFunction


@dataclass(frozen=True)
class MapEntry:
    """How to fit a kind of map."""

    home: str  # where its function is: ``module:attribute``
    description: str  # one line for help texts

    def fit_function(self) -> "FitFunction":
        """Import the function that fits the map."""
        return resolve_name(self.home)


_HERE = "unibct.maps.vector_map:"
MAPS: Registry[MapEntry] = Registry(
    "map",
    {
        "procrustes": MapEntry(_HERE + "fit_procrustes", "the best orthogonal map"),
        "linear": MapEntry(_HERE + "fit_linear", "the best linear map"),
        "mlp": MapEntry(_HERE + "fit_mlp", "a network with one hidden layer"),
        "affine": MapEntry(_HERE + "fit_affine", "the best linear map of centred embeddings"),
        "supervised": MapEntry(
            _HERE + "fit_supervised", "an affine map, trained by contrast with other classes"
        ),
    },
)
DEFAULT_MAP = "affine"

"""The table of maps, readable without torch.

An entry names the function that fits the map as text; it is imported when a map is fitted.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from unibct.errors import UserError

if TYPE_CHECKING:
    from unibct.maps.adapter import FitFunction


@dataclass(frozen=True)
class AdapterEntry:
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


ADAPTERS: dict[str, AdapterEntry] = {
    "procrustes": AdapterEntry("procrustes:fit_procrustes", "the best orthogonal map"),
    "linear": AdapterEntry("linear:fit_linear", "the best linear map"),
    "mlp": AdapterEntry("mlp:fit_mlp", "a network with one hidden layer"),
    "affine": AdapterEntry("affine:fit_affine", "the best linear map of centred embeddings"),
    "supervised": AdapterEntry(
        "supervised:fit_supervised", "an affine map, trained by contrast with other classes"
    ),
}


def find_adapter(name: str) -> AdapterEntry:
    """Return the kind of map called ``name``, or raise an error that lists the names."""
    if name not in ADAPTERS:
        raise UserError(f"unknown adapter {name!r}; choose one of {', '.join(ADAPTERS)}")
    return ADAPTERS[name]

"""Whether a run starts from the old model's weights instead of random ones.

A larger network of the same family can start from a smaller one: it grows from it.
"""

from unibct.errors import UserError
from unibct.methods.table import MethodEntry
from unibct.models.architectures.architecture import Architecture, without_library
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.training.network import recipe_input
from unibct.training.recipe import Recipe


def starts_from_old(
    recipe: Recipe,
    entry: MethodEntry,
    architecture: Architecture,
    dim: int,
    old: Embedder | None,
) -> bool | None:
    """Return whether training starts from the old weights; None if nobody asked for it.

    A recipe that asks for it gets it or an error. A method that starts so by itself does it
    only from the same or a smaller network of its family with the same input, and if no other
    first weights were chosen.
    """
    if recipe.warm_start is not None:
        obstacle = _obstacle(architecture, dim, old) if recipe.warm_start else None
        if obstacle is not None:
            raise UserError(f"warm_start {obstacle}")
        return recipe.warm_start
    if not entry.warm_starts:
        return None
    return (
        architecture.start is None
        and _obstacle(architecture, dim, old) is None
        and isinstance(old, Model)
        and recipe_input(recipe, architecture) == old.input
    )


def _obstacle(architecture: Architecture, dim: int, old: Embedder | None) -> str | None:
    """Say why training cannot start from the old weights, after "warm_start"; None if it can."""
    if old is None:
        return "begins from the old model's weights: give --old MODEL"
    if not isinstance(old, Model):
        return (
            f"begins from the old model's weights, which {old.name} does not give; "
            "leave warm_start out"
        )
    if old.vector_map is not None:
        return (
            "begins from a network, but the old model is an adapted one: its network's "
            "own embeddings are not those of its gallery; leave warm_start out"
        )
    same = architecture.name == old.architecture
    same = same and without_library(architecture.config) == without_library(old.architecture_config)
    if not same and old.architecture not in architecture.grows_from:
        return (
            f"needs the same architecture, or one that can grow from it, but the old model is a "
            f"{old.architecture} and the new one a {architecture.name}; leave warm_start out"
        )
    if dim != old.dim:
        return (
            f"needs the same dimension, but the old model has {old.dim} and the recipe "
            f"says dim = {dim}; leave dim out"
        )
    return None

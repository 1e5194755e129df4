"""What a recipe becomes for finished vectors instead of images."""

from unibct.data.image_set import ImageSet
from unibct.training.recipe import Recipe

VECTOR_NETWORKS = ("projection", "projection-mlp")


def fitted_recipe(recipe: Recipe, images: ImageSet) -> Recipe:
    """Return the recipe as it is for images; for vectors, with a network that takes them.

    Everything that changes images at random is off, and a network for images is replaced by
    ``projection``.
    """
    if images.vector_dim is None:
        return recipe
    is_for_vectors = recipe.architecture in VECTOR_NETWORKS
    return recipe.updated(
        architecture=recipe.architecture if is_for_vectors else VECTOR_NETWORKS[0],
        size=(1, images.vector_dim),
        channels=1,
        fit=None,
        mean=None,
        deviation=None,
        shift=0,
        flip=False,
        crop=0.0,
        colour=0.0,
        low_resolution=0.0,
        augment=None,
    )


def unused_settings(given: Recipe, fitted: Recipe, usual: Recipe | None = None) -> str | None:
    """Say which settings of a recipe have no effect on finished vectors; None if all have.

    Args:
        given: the recipe as it was asked for.
        fitted: what ``fitted_recipe`` has made of it.
        usual: a recipe whose own settings need no mention.
    """
    asked, used = given.model_dump(), fitted.model_dump()
    defaults = {} if usual is None else usual.model_dump()
    unused = [
        f"{name} = {value}"
        for name, value in asked.items()
        if value != used[name] and value is not None and value != defaults.get(name)
    ]
    if not unused:
        return None
    return f"settings for images are not used on finished vectors: {', '.join(unused)}"

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

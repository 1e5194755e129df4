"""A finished model whose embeddings are mapped into an old model's space."""

from unibct.data.image_set import ImageSet
from unibct.embeddings.extraction import embed_images
from unibct.errors import UserError
from unibct.maps.adapter import fit_adapter
from unibct.models.model import Model
from unibct.progress import Progress


def adapt(
    new: Model,
    old: Model,
    images: ImageSet,
    *,
    kind: str = "linear",
    seed: int = 0,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Fit a map from the new model's embeddings to the old model's; the network does not change.

    Args:
        new: the new model, trained without compatibility.
        old: the old model.
        images: any images with classes that both can embed, such as the new training set.
        kind: a name from ``ADAPTERS``.
        seed: for the weights and batches of the ``mlp`` map.
        skip_bad: leave unreadable images out instead of refusing.
        progress: reports progress per image.

    Returns:
        A model whose queries search the old gallery. For a gallery of its own, use ``new``.
    """
    if new.adapter is not None:
        raise UserError("the new model is adapted already; give the one it was made from")
    new_embeddings, old_embeddings = (
        embed_images(model, images, skip_bad=skip_bad, progress=progress) for model in (new, old)
    )
    if new_embeddings.ids != old_embeddings.ids:
        raise UserError(f"the two models cannot read the same images of {images.name}")
    adapter = fit_adapter(
        kind, new_embeddings.vectors, old_embeddings.vectors, new_embeddings.labels, seed=seed
    )
    return new.adapted(adapter, old, images)

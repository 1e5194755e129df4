"""A new model that was trained without compatibility, adapted to an old one's space."""

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
    """Fit a map from the new model's embeddings to the old one's; the network stays as it is.

    Args:
        new: the new model.
        old: the old model.
        images: any images with classes that both can embed, such as the new training set.
        kind: a name from ``ADAPTERS``.
        seed: of the MLP's weights and batches.
        skip_bad: leave unreadable images out instead of refusing.
        progress: told of each image.

    Returns:
        A model whose queries search the old gallery; for a gallery of its own, use ``new``.
    """
    if new.adapter is not None:
        raise UserError("the new model is adapted already; give the one it was made from")
    found = [embed_images(m, images, skip_bad=skip_bad, progress=progress) for m in (new, old)]
    if found[0].ids != found[1].ids:
        raise UserError(f"the two models cannot read the same images of {images.name}")
    adapter = fit_adapter(kind, found[0].vectors, found[1].vectors, found[0].labels, seed=seed)
    return new.adapted(adapter, old)

"""A finished model whose embeddings are mapped into an old model's space, and maps alone."""

from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.embeddings.extraction import embed_with_models
from unibct.embeddings.mapping import fit_map
from unibct.embeddings.score_scale import mapped_score_scale
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import StoredEmbeddings, require_stored
from unibct.errors import UserError
from unibct.maps import DEFAULT_MAP, MAPS
from unibct.maps.space_map import BACKWARD, BEST_SHARE, SpaceMap, checked_direction, save_map
from unibct.maps.vector_map import fit_vector_map
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.models.model_folder import save_model
from unibct.models.old_space import old_space_dim

MAPPED_IMAGES = "images that the map was fitted on"  # what its score scale is measured on


def adapt(
    new: Model,
    old: Embedder,
    images: ImageSet,
    *,
    kind: str = DEFAULT_MAP,
    seed: int = 0,
) -> Model:
    """Fit a map from the new model's embeddings to the old model's; the network does not change.

    Args:
        new: the new model, trained without compatibility.
        old: the old model, or anything else that ``open_embedder`` opens.
        images: any images with classes that both can embed, such as the new training set.
        kind: a name from ``MAPS``.
        seed: for the weights and batches of maps that are trained.

    Returns:
        A model whose queries search the old gallery. For a gallery of its own, use ``new``.
    """
    MAPS.find(kind)
    if new.vector_map is not None:
        raise UserError("the new model is adapted already; give the one it was made from")
    if old_space_dim(new) is not None:
        raise UserError(
            "the new model has a projection into the space of its old model; to map it into "
            "another space, give its embeddings: --new embeddings:PATH"
        )
    new_embeddings, old_embeddings = _both_embeddings(new, old, images)
    pairs = new_embeddings.vectors, old_embeddings.vectors, new_embeddings.labels
    vector_map = fit_vector_map(kind, new=pairs[0], old=pairs[1], labels=pairs[2], seed=seed)
    scale = mapped_score_scale(vector_map, *pairs)
    return new.adapted(vector_map, old, images).with_score_scale(scale, MAPPED_IMAGES)


def adapt_embedders(
    new: Embedder,
    old: Embedder,
    images: ImageSet | None = None,
    *,
    listed: Path | None = None,
    direction: str = BACKWARD,
    kind: str = DEFAULT_MAP,
    seed: int = 0,
) -> Model | SpaceMap:
    """Fit a map between any two embedders.

    Args:
        new: the new model, as ``open_embedder`` opens it.
        old: the old model.
        images: images that both can embed; None if both are stored embeddings, whose ids then say
            which rows belong together.
        listed: without images, a file with the ids of the rows to fit the map on, one per line.
        direction: ``backward`` or ``forward``, see ``fit_map``.
        kind: a name from ``MAPS``.
        seed: for the weights and batches of maps that are trained.

    Returns:
        For a new model in its folder and a backward map, the model with the map. Otherwise the map.
    """
    checked = checked_direction(direction)
    MAPS.find(kind)  # before hours of embedding
    if images is None:
        if not (isinstance(new, StoredEmbeddings) and isinstance(old, StoredEmbeddings)):
            raise UserError(
                "give DATA, images that both models embed, or stored embeddings of both"
            )
        sides = new.embeddings, old.embeddings
        if listed is not None:
            sides = tuple(side.listed(listed) for side in sides)
    elif isinstance(new, Model) and checked == BACKWARD:
        return adapt(new, old, images, kind=kind, seed=seed)
    else:
        sides = _both_embeddings(new, old, images)
    return fit_map(*sides, direction=checked, kind=kind, seed=seed)


def save_adapted(result: Model | SpaceMap, folder: Path) -> str:
    """Write what ``adapt_embedders`` returned, and return a line that says what it is."""
    if isinstance(result, Model):
        save_model(result, folder)
        kind = result.training["adapter"]
        return f"{kind} map of a {result.architecture}, fingerprint {result.fingerprint}"
    save_map(result, folder)
    return (
        f"{result.direction} {result.vector_map.kind} map, fingerprint {result.fingerprint}; "
        f"{result.found_share:.0%} of {len(result.known.ids)} known queries find their own image "
        f"among the best {BEST_SHARE:.0%}"
    )


def _both_embeddings(
    new: Embedder, old: Embedder, images: ImageSet
) -> tuple[Embeddings, Embeddings]:
    if not images.skip_bad:
        require_stored((new, old), images)
    new_embeddings, old_embeddings = embed_with_models([new, old], images)
    if new_embeddings.ids == old_embeddings.ids:
        return new_embeddings, old_embeddings
    in_both = {*new_embeddings.ids} & {*old_embeddings.ids}
    rows = [row for row, image_id in enumerate(images.ids) if image_id in in_both]
    if not rows:
        raise UserError(f"the two models can read no image of {images.name} in common")
    common = images.select(rows)
    return new_embeddings.of_images(common), old_embeddings.of_images(common)

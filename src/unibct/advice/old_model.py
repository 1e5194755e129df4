"""What is known of the old model, whatever stands in its place: its classes and its strength."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from unibct.advice.rates import read_sample
from unibct.advice.scenario import FoundScenario, find_scenario_of, unknown_scenario
from unibct.data.decoding import Frame
from unibct.data.image_set import ImageSet
from unibct.data.training_classes import identity_digests
from unibct.embeddings.recall import sample_classes
from unibct.embeddings.stored import StoredEmbeddings
from unibct.embeddings.strength import Strength, model_strength
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.training.plan import unknown_identities

STRENGTH_IMAGES = 500  # on which the old model is measured
_CLASSES_NEEDED = 10  # unseen classes, for a measurement on them alone
_BATCH = 64


def usable_images(old: Embedder, images: ImageSet) -> ImageSet:
    """Return the images that the old model can embed, or whose old embeddings are stored."""
    return old.known_images(images) if isinstance(old, StoredEmbeddings) else images


def unknown_classes(old: Embedder, images: ImageSet) -> str | None:
    """Say why it is unknown which classes of a set the old model has learnt; None if known."""
    if isinstance(old, Model):
        return unknown_identities(old, images)
    if not old.training_classes.complete:
        return f"which classes {old.name} was trained on is not recorded; give --old-data"
    if not old.training_classes.named_as(images.class_source):
        return (
            f"{old.name} was trained on a set that names its classes differently, or one of the "
            "two only numbers them"
        )
    return None


def scenario_of(old: Embedder, images: ImageSet, old_set: ImageSet | None) -> FoundScenario:
    """Compare the new set with the old one, or with the classes that the old model has learnt."""
    if old_set is None:
        unknown = unknown_classes(old, images)
    else:
        unknown = unknown_identities(old_set, images)
    if unknown is not None:
        return unknown_scenario(_class_count(old_set or old), len(images.class_names), unknown)
    if old_set is not None:
        old_classes, old_ids = old_set.class_identities, old_set.ids
        return find_scenario_of(old_classes, images.class_identities, old_ids, images.ids)
    if isinstance(old, Model):
        return find_scenario_of(old.class_identities, images.class_identities, None, images.ids)
    digests = identity_digests(images.class_identities)
    return find_scenario_of(old.training_classes.digests, digests, None, images.ids)


def old_strength(old: Embedder, images: ImageSet, frame: Frame) -> tuple[Strength | None, str]:
    """Measure the old model on classes that it has not seen, if there are enough of them.

    Args:
        old: the old model.
        images: with an old embedding each, see ``usable_images``.
        frame: in which raw pixels are compared if the old model takes none.

    Returns:
        The strength, None if no class has two images; and on which images it was measured.
    """
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    is_unseen = ~_learnt(old, images)
    unseen_classes = np.flatnonzero(is_unseen & (sizes > 1))
    on = "classes that it was trained on, so it is better there than elsewhere"
    rows = np.arange(len(images))
    learnt = old.training_classes
    if not learnt.complete or not learnt.named_as(images.class_source):
        on = "classes that it may have been trained on"
    elif len(unseen_classes) >= _CLASSES_NEEDED:
        rows, on = np.flatnonzero(np.isin(images.labels, unseen_classes)), "classes new to it"
    elif is_unseen.any():
        on = "classes, some of which it was trained on"
    rows = rows[sample_classes(images.labels[rows], STRENGTH_IMAGES)]
    if not len(rows):
        return None, "nothing: no class has two images"
    is_stored = isinstance(old, StoredEmbeddings)
    sample = read_sample(
        images.select(rows), frame if is_stored else cast(ImageEmbedder, old).input.frame
    )
    if is_stored:
        vectors = old.vectors_of(sample.images.ids)
    else:
        starts = range(0, len(sample.pixels), _BATCH)
        batches = (sample.pixels[i : i + _BATCH] for i in starts)
        vectors = np.concatenate([cast(ImageEmbedder, old).embed_pixels(b) for b in batches])
    strength = model_strength(vectors, sample.images.labels, sample.pixels.__getitem__)
    return strength, f"{len(sample.images):,} images of {on}"


def _learnt(old: Embedder, images: ImageSet) -> NDArray[np.bool_]:
    """Return (classes,) whether the old model is known to have learnt each class of a set."""
    digests = old.training_classes.digests
    return np.array([identity_digests([name]) <= digests for name in images.class_identities])


def _class_count(old: Embedder | ImageSet) -> int | None:
    if isinstance(old, (Model, ImageSet)):
        return len(old.class_names)
    return len(old.training_classes.digests) if old.training_classes.complete else None

"""Maps fitted on, and applied to, embeddings of two models: no image is needed."""

from collections.abc import Sequence

import numpy as np

from unibct import progress
from unibct.arrays import require_same_dim
from unibct.data.image_set import class_identities
from unibct.data.training_classes import (
    UNKNOWN_CLASSES,
    UNKNOWN_SOURCE,
    TrainingClasses,
    training_classes,
)
from unibct.embeddings.score_scale import mapped_score_scale
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import BLOCK, checked_lengths, require_usable
from unibct.errors import UserError
from unibct.maps import DEFAULT_MAP
from unibct.maps.space_map import (
    BACKWARD,
    Direction,
    FoundMates,
    KnownPairs,
    SpaceMap,
    checked_direction,
    found_mates,
)
from unibct.maps.vector_map import fit_vector_map

_FEWEST_IMAGES = 16
_MOST_KNOWN = 64  # pairs that are kept to try the map with


def fit_map(
    new: Embeddings,
    old: Embeddings,
    *,
    direction: Direction = BACKWARD,
    kind: str = DEFAULT_MAP,
    seed: int = 0,
) -> SpaceMap:
    """Fit a map between the spaces of two models on embeddings of the same images.

    A tenth of the images, at most 64, is not used for the fit and kept with the map: with them it
    is tried, now and before it is used.

    Args:
        new: the new model's embeddings, rows of length 1.
        old: the old model's embeddings; the images that both have are found by their ids.
        direction: ``backward`` maps new embeddings into the old space, ``forward`` old ones into
            the new space.
        kind: a name from ``MAPS``.
        seed: chooses the known images, initial weights and batches.
    """
    direction = checked_direction(direction)
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    for side, name in ((new, "new"), (old, "old")):
        require_usable(side, name)
    new_rows, old_rows = _common_rows(new, old)
    labels, fitted_on = _classes(new, new_rows, old, old_rows)
    new_vectors, old_vectors = new.vectors[new_rows], old.vectors[old_rows]
    # The rows that are kept to try the map with, and the others.
    order = np.random.default_rng([seed, 11]).permutation(len(new_rows))
    known_count = min(_MOST_KNOWN, max(4, len(order) // 10))
    known: list[int] = sorted(order[:known_count].tolist())
    fitted: list[int] = sorted(order[known_count:].tolist())
    source, target = new_vectors[fitted], old_vectors[fitted]
    if direction != BACKWARD:
        source, target = target, source
    vector_map = fit_vector_map(kind, new=source, old=target, labels=labels[fitted], seed=seed)
    ids = [new.ids[row] for row in new_rows]
    known_ids = tuple(ids[row] for row in known)
    queries, gallery = new_vectors[known], old_vectors
    if direction == BACKWARD:
        queries = vector_map(queries)
    else:
        gallery = vector_map(gallery)
    trial = found_mates(queries, known_ids, gallery, ids)
    assert trial is not None
    if not trial.is_useful:
        raise UserError(
            f"the map finds nothing: {trial.share:.0%} of {trial.queries} known queries find their "
            f"own image ({trial.chance:.0%} by chance); do the ids of both mean the same images?"
        )
    pairs = KnownPairs(known_ids, new_vectors[known], old_vectors[known])
    scale = None
    if direction == BACKWARD:
        scale = mapped_score_scale(vector_map, source, target, labels[fitted])
    fingerprints = new.fingerprint, old.fingerprint
    return SpaceMap(vector_map, direction, *fingerprints, pairs, trial.share, scale, fitted_on)


def apply_map(
    space_map: SpaceMap, embeddings: Embeddings, *, known: Embeddings | None = None, name: str = ""
) -> Embeddings:
    """Map embeddings, after known queries have found their mates.

    Args:
        space_map: the map.
        embeddings: made by the model whose embeddings the map takes, rows of length 1.
        known: embeddings of the space that the map leads to, with ids or classes in common. By
            default the pairs that are kept with the map are used, as far as ``embeddings`` has
            their images.
        name: what the user called ``embeddings``, for messages.

    Returns:
        The mapped rows. Their fingerprint is the map's: they are a kind of their own.
    """
    name = name or "these embeddings"
    space_map.require_source(embeddings.fingerprint, name)
    vectors = np.empty(
        (len(embeddings), space_map.vector_map.layers[-1][0].shape[0]), dtype=np.float32
    )
    for start in range(0, len(embeddings), BLOCK):
        checked_lengths(embeddings, start, name)
        part = slice(start, start + BLOCK)
        vectors[part] = space_map.vector_map(embeddings.vectors[part])
    mapped = embeddings.changed(
        vectors=vectors,
        fingerprint=space_map.fingerprint,
        training_classes=embeddings.training_classes | space_map.fitted_on,
    )
    trial = _tried(space_map, mapped, known)
    if trial is None:
        raise UserError(
            f"{name} has none of the {len(space_map.known.ids)} images by which the map can be "
            f"tried, first {space_map.known.ids[0]!r}; give embeddings of the space that it leads "
            "to, with ids or classes in common (--known)"
        )
    trial.require(space_map.found_share, name)
    return mapped


def _tried(space_map: SpaceMap, mapped: Embeddings, known: Embeddings | None) -> FoundMates | None:
    """Search mapped rows with known queries, or the other way round for mapped queries."""
    if known is None:
        pairs = space_map.known
        other_vectors = pairs.old if space_map.direction == BACKWARD else pairs.new
        other_keys, mapped_keys = pairs.ids, mapped.ids
    else:
        if known.fingerprint != space_map.target:
            raise UserError(
                f"--known was made by model {known.fingerprint}; this map leads into the space of "
                f"model {space_map.target}"
            )
        require_usable(known, "--known")
        other_vectors = np.asarray(known.vectors)
        require_same_dim(other_vectors, "--known", mapped.vectors, "what the map makes")
        other_keys, mapped_keys = _common_keys(known, mapped)
    if space_map.direction == BACKWARD:
        keys = set(other_keys)
        rows = [row for row, key in enumerate(mapped_keys) if key in keys]
        queries = np.asarray(mapped.vectors)[rows]
        return found_mates(queries, [mapped_keys[row] for row in rows], other_vectors, other_keys)
    return found_mates(other_vectors, other_keys, np.asarray(mapped.vectors), mapped_keys)


def _common_keys(first: Embeddings, second: Embeddings) -> tuple[Sequence[str], Sequence[str]]:
    """Return the ids of both, or the class of each row if no id is in both."""
    if not set(first.ids).isdisjoint(second.ids) or not (first.class_names and second.class_names):
        return first.ids, second.ids
    first_names, second_names = (
        class_identities(
            side.class_names, None if side.class_source == UNKNOWN_SOURCE else side.class_source
        )
        for side in (first, second)
    )
    first_keys = [first_names[int(label)] for label in first.labels]
    return first_keys, [second_names[int(label)] for label in second.labels]


def _common_rows(new: Embeddings, old: Embeddings) -> tuple[list[int], list[int]]:
    """Return the rows of the images that both have; count the others and name the first."""
    new_rows = [row for row, image_id in enumerate(new.ids) if image_id in old.position]
    if len(new_rows) < _FEWEST_IMAGES:
        example = f", such as {new.ids[0]!r} and {old.ids[0]!r}" if new.ids and old.ids else ""
        raise UserError(
            f"the two have {len(new_rows)} ids in common{example}; a map needs {_FEWEST_IMAGES} "
            "images or more that both have embedded"
        )
    in_both = {new.ids[row] for row in new_rows}
    for side, ids in (("new", new.ids), ("old", old.ids)):
        alone = [image_id for image_id in ids if image_id not in in_both]
        if alone:
            progress.note(
                f"{len(alone)} images have {'an' if side == 'old' else 'a'} {side} embedding only, "
                f"first {alone[0]!r}; they are not used"
            )
    return new_rows, [old.position[new.ids[row]] for row in new_rows]


def _classes(
    new: Embeddings, new_rows: Sequence[int], old: Embeddings, old_rows: Sequence[int]
) -> tuple[np.ndarray, TrainingClasses]:
    """Return the class of each image, and which classes these are.

    Without classes, each image is one of its own.
    """
    for side, rows in ((new, new_rows), (old, old_rows)):
        if side.class_names:
            labels = side.labels[list(rows)]
            if side.class_source == UNKNOWN_SOURCE:
                return labels, UNKNOWN_CLASSES
            used: list[int] = np.unique(labels).tolist()
            names = [side.class_names[label] for label in used]
            return labels, training_classes(names, side.class_source)
    return np.arange(len(new_rows)), UNKNOWN_CLASSES

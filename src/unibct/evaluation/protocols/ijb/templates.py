"""Embeddings of images, pooled into one vector per template."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import checked_labels, normalized, to_numpy
from unibct.errors import UserError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.floating[Any]]

_ROWS_AT_ONCE = 4096


class Pooled(NamedTuple):
    """Template ids, ascending, and (templates, dim) float32 vectors of length 1."""

    ids: Ints
    vectors: NDArray[np.float32]


def pool_templates(
    embeddings: Any,
    templates: Any,
    media: Any,
    *,
    flipped: Any = None,
    scores: Any = None,
    media_mean: bool = True,
    normalize_images: bool = False,
) -> Pooled:
    """One vector per template, by the field's steps, each of which can be left out.

    Args:
        embeddings: (images, dim).
        templates: (images,) template ids.
        media: (images,) media ids; the same id in another template is another media.
        flipped: (images, dim) embeddings of the mirrored images, which are added; None: not.
        scores: (images,) the detector's, by which each embedding is multiplied; None: not.
        media_mean: whether the images of a media are averaged before the template's media are
            summed; otherwise the template's images are summed.
        normalize_images: whether an image's embedding (its mirrored twin added) is first scaled
            to length 1.
    """
    given = _checked(embeddings, "embeddings")
    sources = [_rows_reader(given, "embeddings")]
    if flipped is not None:
        twin = _checked(flipped, "flipped")
        if twin.shape != given.shape:
            raise UserError(f"flipped has the shape {twin.shape}, but embeddings {given.shape}")
        sources.append(_rows_reader(twin, "flipped"))
    images, dim = given.shape
    weights = _weights(scores, images)
    templates = checked_labels(templates, images, "templates")
    media = checked_labels(media, images, "media")
    ids, template = np.unique(templates, return_inverse=True)
    if media_mean:
        weights = weights / _media_sizes(template, media)

    order = np.argsort(template, kind="stable")
    sums = np.zeros((len(ids), dim))
    for start in range(0, images, _ROWS_AT_ONCE):
        rows = order[start : start + _ROWS_AT_ONCE]
        block = sources[0](rows)
        for more in sources[1:]:
            block = block + more(rows)
        if normalize_images:
            block = normalized(block)
        block *= weights[rows, None]
        starts = np.flatnonzero(np.diff(template[rows], prepend=-1))
        sums[template[rows[starts]]] += np.add.reduceat(block, starts, axis=0)
    zero = ~sums.any(axis=1)
    if zero.any():
        raise UserError(
            f"the pooled vector of template {int(ids[zero.argmax()])} is zero; "
            "look at its images' embeddings and detector scores"
        )
    return Pooled(ids, normalized(sums).astype(np.float32))


def _checked(value: Any, name: str) -> Floats:
    array = to_numpy(value)
    if array.ndim != 2 or not array.shape[0] or not array.shape[1]:
        raise UserError(f"{name} must have the shape (images, dim), not {array.shape}")
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"{name} must be floating point, not {array.dtype}")
    return array


def _rows_reader(array: Floats, name: str) -> Callable[[Ints], NDArray[np.float64]]:
    """Some rows in double precision, checked; never a copy of the whole array."""

    def read(rows: Ints) -> NDArray[np.float64]:
        block = array[rows].astype(np.float64)
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            row = int(rows[finite.argmin()])
            raise UserError(
                f"{name} has NaN or infinite values in row {row}; embed that image again"
            )
        return block

    return read


def _weights(scores: Any, images: int) -> NDArray[np.float64]:
    if scores is None:
        return np.ones(images)
    weights = to_numpy(scores).astype(np.float64)
    if weights.shape != (images,):
        raise UserError(f"scores must have the shape ({images},), not {weights.shape}")
    if not np.isfinite(weights).all():
        row = int((~np.isfinite(weights)).argmax())
        raise UserError(f"scores has a NaN or infinite value in row {row}; detect the face again")
    return weights


def _media_sizes(template: Ints, media: Ints) -> Ints:
    """(images,) how many images the media has, within the template."""
    order = np.lexsort((media, template))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(template[order]) != 0) | (np.diff(media[order]) != 0)
    group = np.cumsum(new) - 1
    sizes = np.empty(len(order), dtype=np.int64)
    sizes[order] = np.bincount(group)[group]
    return sizes

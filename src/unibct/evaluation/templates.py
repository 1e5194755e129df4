"""Embeddings of several images, pooled into one vector per template."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, checked_labels, normalized, to_numpy
from unibct.errors import UserError

Doubles: TypeAlias = NDArray[np.float64]
RowReader: TypeAlias = Callable[[Ints], Doubles]

_ROWS_AT_ONCE = 4096


class Pooled(NamedTuple):
    """Template ids in ascending order, and (templates, dim) float32 vectors of length 1."""

    ids: Ints
    vectors: NDArray[np.float32]


def class_templates(embeddings: Floats, labels: Ints) -> NDArray[np.float32]:
    """Return (classes, dim): the normalised mean of each class's normalised embeddings.

    Args:
        embeddings: (images, dim).
        labels: (images,) 0…C-1, each of them in use.
    """
    rows = normalized(embeddings)
    ids, template = np.unique(labels, return_inverse=True)
    sums = _pooled_sums([lambda index: rows[index].astype(np.float64)], template, len(ids))
    return normalized(sums).astype(np.float32)


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
    """Return one vector per template, by the steps of the IJB protocols. Each step is optional.

    Args:
        embeddings: (images, dim).
        templates: (images,) template ids.
        media: (images,) media ids; the same id in another template is another media.
        flipped: (images, dim) embeddings of the mirrored images, which are added if given.
        scores: (images,) the detector's scores, which multiply each embedding if given.
        media_mean: average the images of a media before the template's media are summed;
            otherwise the template's images are summed.
        normalize_images: scale each image's embedding (with its mirrored twin added) to length 1
            first.
    """
    given = _checked(embeddings, "embeddings")
    readers = [_row_reader(given, "embeddings")]
    if flipped is not None:
        twin = _checked(flipped, "flipped")
        if twin.shape != given.shape:
            raise UserError(f"flipped has the shape {twin.shape}, but embeddings {given.shape}")
        readers.append(_row_reader(twin, "flipped"))
    weights = _image_weights(scores, len(given))
    templates = checked_labels(templates, len(given), "templates")
    media = checked_labels(media, len(given), "media")
    ids, template = np.unique(templates, return_inverse=True)
    if media_mean:
        weights = weights / _media_sizes(template, media)
    sums = _pooled_sums(readers, template, len(ids), weights, normalize_images=normalize_images)
    zero = ~sums.any(axis=1)
    if zero.any():
        raise UserError(
            f"the pooled vector of template {int(ids[zero.argmax()])} is zero; "
            "look at its images' embeddings and detector scores"
        )
    return Pooled(ids, normalized(sums).astype(np.float32))


def _pooled_sums(
    readers: Sequence[RowReader],
    template: Ints,
    templates: int,
    weights: Doubles | None = None,
    *,
    normalize_images: bool = False,
) -> Doubles:
    """Sum the rows of each template, some rows at a time.

    Args:
        readers: each returns the rows of some images in double precision; the results are added.
        template: (images,) the template of each image, 0…templates-1.
        templates: how many there are.
        weights: (images,) a factor for each image.
        normalize_images: scale each image's row to length 1 before it is weighted.
    """
    order = np.argsort(template, kind="stable")
    sums: Doubles | None = None
    for start in range(0, len(order), _ROWS_AT_ONCE):
        rows = order[start : start + _ROWS_AT_ONCE]
        block = readers[0](rows)
        for more in readers[1:]:
            block = block + more(rows)
        if normalize_images:
            block = normalized(block)
        if weights is not None:
            block *= weights[rows, None]
        if sums is None:
            sums = np.zeros((templates, block.shape[1]))
        starts = np.flatnonzero(np.diff(template[rows], prepend=-1))
        sums[template[rows[starts]]] += np.add.reduceat(block, starts, axis=0)
    assert sums is not None, "there is at least one image"
    return sums


def _checked(value: Any, name: str) -> Floats:
    array = to_numpy(value)
    if array.ndim != 2 or not array.shape[0] or not array.shape[1]:
        raise UserError(f"{name} must have the shape (images, dim), not {array.shape}")
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"{name} must be floating point, not {array.dtype}")
    return array


def _row_reader(array: Floats, name: str) -> RowReader:
    """Return a function that returns checked rows and never copies the whole array."""

    def read(rows: Ints) -> Doubles:
        block = array[rows].astype(np.float64)
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            row = int(rows[finite.argmin()])
            raise UserError(
                f"{name} has NaN or infinite values in row {row}; embed that image again"
            )
        return block

    return read


def _image_weights(scores: Any, images: int) -> Doubles:
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
    """Return (images,): how many images the image's media has within its template."""
    order = np.lexsort((media, template))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(template[order]) != 0) | (np.diff(media[order]) != 0)
    group = np.cumsum(is_first) - 1
    sizes = np.empty(len(order), dtype=np.int64)
    sizes[order] = np.bincount(group)[group]
    return sizes

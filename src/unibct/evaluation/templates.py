"""Which images of a test set are in the gallery, which are queries, and how images are pooled."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    Floats,
    Ints,
    checked_labels,
    normalized,
    require_contiguous_labels,
    to_numpy,
)
from unibct.data.scenarios import sample_images
from unibct.errors import UserError

GalleryMode: TypeAlias = Literal["templates", "images"]

GALLERY_SHARE = 0.25


def require_mode(mode: str) -> None:
    """Refuse entries that a gallery cannot have."""
    if mode not in get_args(GalleryMode):
        modes = " or ".join(get_args(GalleryMode))
        raise UserError(f"unknown mode of the gallery {mode!r}; choose {modes}")


@dataclass(frozen=True)
class GallerySplit:
    """The images that are pooled into the gallery's templates, and those that are queries."""

    labels: Ints  # (images,) the class of each image of the test set, 0…C-1
    gallery: Ints  # indices of the gallery's images
    query: Ints  # indices of the queries

    @property
    def query_labels(self) -> Ints:
        """(queries,) the class of each query, which is also the column of its template."""
        return self.labels[self.query]

    @property
    def gallery_labels(self) -> Ints:
        """(gallery images,) the class of each gallery image."""
        return self.labels[self.gallery]

    @property
    def classes(self) -> int:
        """How many classes there are, each with one template."""
        return int(self.labels.max()) + 1

    @property
    def query_classes(self) -> int:
        """How many classes have queries."""
        return len(np.unique(self.query_labels))

    @property
    def compared_classes(self) -> int:
        """How many classes, all with queries, would have as many pairs of classes as this split.

        In a long-tailed set most classes have one image, which is in the gallery. Such classes are
        compared with those that have queries, but not with each other.
        """
        asking, classes = self.query_classes, self.classes
        pairs = asking * (asking - 1) // 2 + asking * (classes - asking)
        return (1 + math.isqrt(1 + 8 * pairs)) // 2

    def of_images(self, chosen: Ints) -> "GallerySplit":
        """Return the same split of some images: all those of some classes.

        Their ascending places become 0, 1, …, and the numbers of their classes too.
        """
        labels = np.unique(self.labels[chosen], return_inverse=True)[1]
        gallery, query = (
            np.flatnonzero(np.isin(chosen, places)) for places in (self.gallery, self.query)
        )
        return GallerySplit(labels, gallery=gallery, query=query)


def split_gallery(labels: Any, *, seed: int = 0, share: float = GALLERY_SHARE) -> GallerySplit:
    """Choose max(1, floor(share · size)) images of each class for the gallery; the rest query it.

    ``labels`` are (images,) integers 0…C-1; ``seed`` chooses the images.
    """
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    labels = checked_labels(labels)
    classes = require_contiguous_labels(labels)
    if classes < 2:
        raise UserError("a search test needs at least two classes")
    sizes = np.bincount(labels)
    if (sizes >= 2).sum() < 2:
        raise UserError(
            "fewer than two classes have two images or more: a class needs one image for its "
            "template and another one as a query"
        )
    quota = np.maximum((sizes * share + 1e-9).astype(np.int64), 1)
    in_gallery = sample_images(labels, quota, np.random.default_rng(seed))
    return GallerySplit(
        labels, gallery=np.flatnonzero(in_gallery), query=np.flatnonzero(~in_gallery)
    )


def require_searchable(labels: Any, name: str) -> None:
    """Raise an error that names the images if ``split_gallery`` cannot split them."""
    try:
        split_gallery(labels)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def split_for(labels: Any, split: GallerySplit | None, *, seed: int = 0) -> GallerySplit:
    """Return the split that was given for these labels; without one, that of ``split_gallery``."""
    if split is None:
        return split_gallery(labels, seed=seed)
    if not np.array_equal(split.labels, checked_labels(labels)):
        raise UserError("the split was made for other labels than these; make it again")
    return split


def chosen_gallery(labels: Any, query: Any, gallery: Any) -> GallerySplit:
    """Use some images as queries and others, at least one of each class, as the gallery.

    ``labels`` are (images,) integers 0…C-1 of all test images, of which the others are indices.
    """
    labels = checked_labels(labels)
    classes = require_contiguous_labels(labels)
    query = _checked_places(query, "query", len(labels))
    gallery = _checked_places(gallery, "gallery", len(labels))
    both = np.intersect1d(query, gallery)
    if len(both):
        raise UserError(f"image {int(both[0])} is a query and in the gallery; choose one")
    if not len(query):
        raise UserError("there is no query")
    enrolled = np.zeros(classes, dtype=bool)
    enrolled[labels[gallery]] = True
    if not enrolled.all():
        raise UserError(
            f"class {int(enrolled.argmin())} has no image in the gallery; add one, or leave its "
            "queries out"
        )
    if len(np.unique(labels[query])) < 2:
        raise UserError(
            "all queries are of one class: there is no interval over one class; give queries "
            "of two classes or more"
        )
    return GallerySplit(labels, gallery=gallery, query=query)


def _checked_places(places: Any, name: str, images: int) -> Ints:
    """Return the indices of images in ascending order, each once."""
    rows = np.unique(checked_labels(places, name=name))
    if len(rows) and not 0 <= rows[0] <= rows[-1] < images:
        outside = rows[0] if rows[0] < 0 else rows[-1]
        raise UserError(f"{name} has the index {outside}; the {images} images count from 0")
    return rows


# Embeddings of several images, pooled into one vector per template.

Doubles: TypeAlias = NDArray[np.float64]

_ROWS_AT_ONCE = 4096


class Pooled(NamedTuple):
    """Template ids in ascending order, and (templates, dim) float32 vectors of length 1."""

    ids: Ints
    vectors: NDArray[np.float32]


def class_templates(embeddings: Floats, labels: Ints) -> NDArray[np.float32]:
    """Return (classes, dim): the normalised mean of each class's normalised embeddings.

    ``labels`` are (images,) 0…C-1, each of them in use.
    """
    rows = normalized(embeddings)
    ids, template = np.unique(labels, return_inverse=True)
    sums = _pooled_sums(lambda index: rows[index].astype(np.float64), template, len(ids))
    return normalized(sums).astype(np.float32)


def pool_templates(
    embeddings: Any,
    templates: Any,
    media: Any,
    *,
    scores: Any = None,
    media_mean: bool = True,
    normalize_images: bool = False,
) -> Pooled:
    """Return one vector per template, by the steps of the IJB protocols. Each step is optional.

    ``embeddings`` are (images, dim), normally sums of those of an image and its mirror image. With
    ``normalize_images`` each is first scaled to length 1. The detector's (images,) scores multiply
    them. With ``media_mean`` the images of a media are averaged before the template's media are
    summed; otherwise its images are summed. ``templates`` and ``media`` are (images,) ids; the same
    id of a media in another template is another media.
    """
    given = to_numpy(embeddings)
    if given.ndim != 2 or not given.shape[0] or not given.shape[1]:
        raise UserError(f"embeddings must have the shape (images, dim), not {given.shape}")
    if not np.issubdtype(given.dtype, np.floating):
        raise UserError(f"embeddings must be floating point, not {given.dtype}")
    weights = _image_weights(scores, len(given))
    templates = checked_labels(templates, len(given), "templates")
    media = checked_labels(media, len(given), "media")
    ids, template = np.unique(templates, return_inverse=True)
    if media_mean:
        weights = weights / _media_sizes(template, media)
    read = partial(_finite_rows, given)
    sums = _pooled_sums(read, template, len(ids), weights, normalize_images=normalize_images)
    zero = ~sums.any(axis=1)
    if zero.any():
        raise UserError(
            f"the pooled vector of template {int(ids[zero.argmax()])} is zero; "
            "look at its images' embeddings and detector scores"
        )
    return Pooled(ids, normalized(sums).astype(np.float32))


def _pooled_sums(
    read: Callable[[Ints], Doubles],
    template: Ints,
    templates: int,
    weights: Doubles | None = None,
    *,
    normalize_images: bool = False,
) -> Doubles:
    """Return (templates, dim): the sums of the rows of each template, some rows at a time.

    ``read`` returns the rows of some images in double precision; they are scaled to length 1 if
    ``normalize_images``, and multiplied by the (images,) weights. ``template`` is (images,) the
    template of each image, 0…templates-1.
    """
    order = np.argsort(template, kind="stable")
    sums: Doubles | None = None
    for start in range(0, len(order), _ROWS_AT_ONCE):
        rows = order[start : start + _ROWS_AT_ONCE]
        block = read(rows)
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


def _finite_rows(embeddings: Floats, rows: Ints) -> Doubles:
    """Return checked rows; the whole array, which may be a memory map, is never copied."""
    block = embeddings[rows].astype(np.float64)
    finite = np.isfinite(block).all(axis=1)
    if not finite.all():
        row = int(rows[finite.argmin()])
        raise UserError(
            f"embeddings has NaN or infinite values in row {row}; embed that image again"
        )
    return block


def _image_weights(scores: Any, images: int) -> Doubles:
    """Return (images,): the detector's scores, or ones."""
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

"""Which images of a test set are in the gallery, and which are queries."""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from unibct.arrays import Ints, checked_labels, require_contiguous_labels
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
    """The images that are pooled into the gallery's templates, and those that are queries.

    Attributes:
        labels: (images,) the class of each image of the test set, 0…C-1.
        gallery: indices of the gallery's images.
        query: indices of the queries.
    """

    labels: Ints
    gallery: Ints
    query: Ints

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

        Args:
            chosen: their places, ascending. They get the places 0, 1, …, and their classes the
                numbers 0, 1, …, in the same order.
        """
        labels = np.unique(self.labels[chosen], return_inverse=True)[1]
        gallery, query = (
            np.flatnonzero(np.isin(chosen, places)) for places in (self.gallery, self.query)
        )
        return GallerySplit(labels, gallery=gallery, query=query)


def split_gallery(labels: Any, *, seed: int = 0, share: float = GALLERY_SHARE) -> GallerySplit:
    """Choose max(1, floor(share · size)) images of each class for the gallery; the rest query it.

    Args:
        labels: (images,) integers 0…C-1.
        seed: chooses the images.
        share: the share of each class's images that goes into the gallery.
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
    """Use these images as queries and those as the gallery.

    Args:
        labels: (images,) integers 0…C-1 of all test images.
        query: indices of the queries.
        gallery: indices of the gallery's images; each class has one, and no query is among them.
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

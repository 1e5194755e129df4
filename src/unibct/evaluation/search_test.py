"""One query model against one gallery model: the scores from which every metric is computed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints, checked_embeddings, normalized, require_same_dim
from unibct.errors import UserError
from unibct.evaluation.gallery_split import GalleryMode, GallerySplit
from unibct.evaluation.metrics.identification import mate_ranks
from unibct.evaluation.metrics.open_set import OpenSearch
from unibct.evaluation.metrics.verification import Roc, ThresholdRule, roc_curve, tar_at_far
from unibct.evaluation.templates import class_templates

Groups: TypeAlias = NDArray[np.integer[Any]]

TOP_KS = (1, 5)
_CLASSES_FOR_OPEN_SET = 8  # half of them must be enough to refuse a stranger


@dataclass(frozen=True)
class ScoredPairs:
    """1:1: the scores of all pairs, and the class of each pair's query.

    Attributes:
        genuine: scores of pairs of the same class.
        impostor: scores of pairs of different classes.
        genuine_classes: (genuine,) the query's class, 0…C-1.
        impostor_classes: (impostor,) the query's class.
    """

    genuine: Floats
    impostor: Floats
    genuine_classes: Groups
    impostor_classes: Groups

    def tars(self, fars: Iterable[float], *, rule: ThresholdRule = "strict") -> dict[float, float]:
        """Return the TAR at each FAR."""
        return tar_at_far(self.genuine, self.impostor, fars, rule=rule)

    def roc(self) -> Roc:
        """Return the whole curve."""
        return roc_curve(self.genuine, self.impostor)


class ImageSearch(NamedTuple):
    """An image-level gallery: its rows are images, not pooled templates.

    Attributes:
        query: (queries, dim) normalised.
        query_labels: (queries,) the class of each query.
        gallery: (images, dim) normalised; no query is among them.
        gallery_labels: (images,) with at least one mate for each query.
    """

    query: Floats
    query_labels: Ints
    gallery: Floats
    gallery_labels: Ints


@dataclass(frozen=True)
class SearchTest:
    """The outcome of searching one model's queries in another model's gallery.

    A metric uses the parts that it needs and does not apply to tests that lack them. The classes
    (subjects, for faces) are what the bootstrap draws.

    Attributes:
        pairs: for 1:1, every query against every template, or the pairs of a list.
        ranks: (queries,) entries of other classes that score at least as high as the mate.
        query_classes: (queries,) the class of each query, 0…C-1.
        classes: C, how many classes there are.
        templates: how many entries the gallery has.
        ks: the k of top-k that are worth reporting.
        open_searches: the open-set search in each gallery, by the gallery's name.
        images: the search among single images, if there is one.
        scores: (queries, templates) all scores, if they are kept.
        per_query: values that metrics have computed for each query, for the intervals.
    """

    pairs: ScoredPairs
    ranks: Ints
    query_classes: Ints
    classes: int
    templates: int
    ks: tuple[int, ...] = TOP_KS
    open_searches: Mapping[str, OpenSearch] = field(default_factory=dict[str, OpenSearch])
    images: ImageSearch | None = None
    scores: Floats | None = None
    per_query: dict[str, Floats] = field(default_factory=dict[str, Floats], repr=False)

    @property
    def genuine(self) -> Floats:
        """Scores of pairs of the same class."""
        return self.pairs.genuine

    @property
    def impostor(self) -> Floats:
        """Scores of pairs of different classes."""
        return self.pairs.impostor

    def tar(self, far: float, *, rule: ThresholdRule = "strict") -> float:
        """Return the TAR at a FAR."""
        return self.pairs.tars([far], rule=rule)[far]

    def top(self, k: int) -> float:
        """Return the share of queries whose mate is among the k best entries."""
        if k < 1:
            raise UserError(f"k must be at least 1, not {k}")
        return float(np.mean(self.ranks < k))

    def tpir(self, fpir: float) -> float:
        """Return the TPIR at an FPIR in the open set, averaged over the galleries."""
        return float(np.mean([search.tpir(fpir) for search in self.open_searches.values()]))


def search_test(
    query: Any, gallery: Any, split: GallerySplit, *, mode: GalleryMode = "templates"
) -> SearchTest:
    """Search one model's queries in another model's gallery.

    Args:
        query: (images, dim) embeddings of all test images by the query model.
        gallery: (images, dim) embeddings of all test images by the gallery model.
        split: which rows are queries and which are in the gallery.
        mode: the gallery's entries are ``templates``, one for each class, or ``images``.
    """
    query = checked_embeddings(query, "query")
    gallery = checked_embeddings(gallery, "gallery")
    require_same_dim(query, "query", gallery, "gallery")
    for rows, side in ((query, "query"), (gallery, "gallery")):
        if len(rows) != len(split.labels):
            raise UserError(
                f"the {side} model has {len(rows)} embeddings for {len(split.labels)} images"
            )
    enrolled = gallery[split.gallery]
    queries = normalized(query[split.query]).astype(np.float32)
    images = ImageSearch(
        queries,
        split.query_labels,
        normalized(enrolled).astype(np.float32),
        split.gallery_labels,
    )
    if mode == "images":
        scores = queries @ images.gallery.T
        test = scored_test(scores, split.query_labels, split.gallery_labels)
    else:
        scores = queries @ class_templates(enrolled, split.gallery_labels).T
        test = scored_test(scores, split.query_labels)
    return replace(test, images=images)


def scored_test(
    scores: Floats, query_labels: Ints, gallery_labels: Ints | None = None
) -> SearchTest:
    """Take the scores of all queries against all entries of the gallery apart.

    Args:
        scores: (queries, entries).
        query_labels: (queries,) the class of each query, 0…C-1.
        gallery_labels: (entries,) the class of each entry. By default entry c is the template of
            class c.
    """
    entry_labels: Ints = np.arange(int(scores.shape[1]))
    if gallery_labels is not None:
        entry_labels = gallery_labels
    classes, entries = int(entry_labels.max()) + 1, len(entry_labels)
    mates = query_labels[:, None] == entry_labels[None, :]
    pair_classes = np.broadcast_to(query_labels.astype(np.int32)[:, None], mates.shape)
    return SearchTest(
        ScoredPairs(scores[mates], scores[~mates], pair_classes[mates], pair_classes[~mates]),
        ranks=mate_ranks(scores, query_labels, entry_labels),
        query_classes=query_labels,
        classes=classes,
        templates=entries,
        ks=tuple(k for k in TOP_KS if k < entries),  # among k entries all are found
        open_searches=_open_searches(scores, query_labels, entry_labels),
        scores=scores if gallery_labels is None else None,
    )


def _open_searches(scores: Floats, query_labels: Ints, entry_labels: Ints) -> dict[str, OpenSearch]:
    """Search two galleries with half of the classes each, as IJB does.

    Every query has a mate in one of them and none in the other.
    """
    searches: dict[str, OpenSearch] = {}
    classes = int(entry_labels.max()) + 1
    if classes < _CLASSES_FOR_OPEN_SET:
        return searches
    for number in range(2):
        columns = entry_labels % 2 == number
        part, labels = scores[:, columns], entry_labels[columns]
        mates = query_labels[:, None] == labels[None, :]
        mate = np.where(mates, part, -np.inf).max(axis=1)
        other = np.where(mates, -np.inf, part).max(axis=1)
        has_mate = mates.any(axis=1)
        searches[f"half {number + 1}"] = OpenSearch(
            mate[has_mate],
            other[has_mate],
            other[~has_mate],
            query_labels[has_mate],
            query_labels[~has_mate],
        )
    return searches

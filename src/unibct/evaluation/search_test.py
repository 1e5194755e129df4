"""One query model against one gallery model: the scores from which every metric is computed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from unibct.arrays import Floats, Ints, checked_embeddings, normalized, require_same_dim
from unibct.errors import UserError
from unibct.evaluation.identification import OpenSearch
from unibct.evaluation.impostors import Impostors, as_impostors
from unibct.evaluation.score_table import (
    Groups,
    NormalizedRows,
    ProductScores,
    ScoreBlock,
    Scores,
    ScoreTable,
)
from unibct.evaluation.templates import GalleryMode, GallerySplit, class_templates, require_mode
from unibct.evaluation.verification import Roc, ThresholdRule, roc_curve, tar_at_far


class Direction(str):
    """Which model's queries search which model's gallery, by the roles of the two models.

    As text it is the name of the test in tables and in JSON, such as ``new→old``.
    """

    query: str
    gallery: str
    label: str  # a few words, for a table's row
    meaning: str  # one line, for a report

    def __new__(cls, query: str, gallery: str, label: str = "", meaning: str = "") -> Self:
        """Make the text of the two roles."""
        direction = super().__new__(cls, f"{query}→{gallery}")
        direction.query, direction.gallery = query, gallery
        direction.label, direction.meaning = label, meaning
        return direction

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy, also in another process, is made of."""
        return Direction, (self.query, self.gallery, self.label, self.meaning)


OLD_SELF = Direction("old", "old", "old self test", "before the upgrade")
CROSS = Direction(
    "new", "old", "cross test", "cross test: new queries, the old gallery as it stands"
)
BLEND = Direction(
    "blend", "old", "blended queries", "blends of old and new queries, the old gallery"
)
REVERSED_CROSS = Direction(
    "old", "new", "cross test, reversed", "old queries, a gallery of the new model"
)
NEW_SELF = Direction("new", "new", "new self test", "new self test: after a backfill")
FREE_SELF = Direction(
    "free", "free", "free self test", "a new model without compatibility, after a backfill"
)
FREE_CROSS = Direction("free", "old", "free, old gallery", "the same without a backfill")
# In the order in which tables show them.
DIRECTIONS = (OLD_SELF, CROSS, BLEND, REVERSED_CROSS, NEW_SELF, FREE_SELF, FREE_CROSS)


TOP_KS = (1, 5)
_CLASSES_FOR_OPEN_SET = 8  # half of them must be enough to refuse a stranger


@dataclass(frozen=True)
class ScoredPairs:
    """1:1: the scores of all pairs, and the class of each pair's query."""

    genuine: Floats  # scores of pairs of the same class
    impostor: Impostors  # the pairs of different classes; not all of their scores are in memory
    genuine_classes: Groups  # (genuine,) the query's class, 0…C-1

    def tars(self, fars: Iterable[float], *, rule: ThresholdRule = "strict") -> dict[float, float]:
        """Return the TAR at each FAR."""
        return tar_at_far(self.genuine, self.impostor, fars, rule=rule)

    def roc(self) -> Roc:
        """Return the whole curve."""
        return roc_curve(self.genuine, self.impostor)


def listed_pairs(
    genuine: Floats, impostor: Floats, genuine_classes: Groups, impostor_classes: Groups
) -> ScoredPairs:
    """Return the pairs of a list, whose scores are all in memory."""
    return ScoredPairs(genuine, as_impostors(impostor, impostor_classes), genuine_classes)


class ImageSearch(NamedTuple):
    """An image-level gallery: its rows are images, not pooled templates."""

    query: NormalizedRows  # (queries, dim)
    query_labels: Ints  # (queries,) the class of each query
    gallery: Floats  # (images, dim) normalised; no query is among them
    gallery_labels: Ints  # (images,) with at least one mate for each query

    def part(self, queries: Ints, rows: Ints) -> "ImageSearch":
        """Return the search of some queries among some images, given by their places."""
        return ImageSearch(
            NormalizedRows(self.query.embeddings, self.query.rows[queries]),
            self.query_labels[queries],
            self.gallery[rows],
            self.gallery_labels[rows],
        )


@dataclass(frozen=True)
class SearchTest:
    """The outcome of searching one model's queries in another model's gallery.

    A metric uses the parts that it needs and does not apply to tests that lack them. The classes
    (subjects, for faces) are what the bootstrap draws.
    """

    pairs: ScoredPairs  # for 1:1, every query against every template, or the pairs of a list
    ranks: Ints  # (queries,) entries of other classes that score at least as high as the mate
    query_classes: Ints  # (queries,) the class of each query, 0…C-1
    classes: int  # C, how many classes there are
    templates: int  # how many entries the gallery has
    ks: tuple[int, ...] = TOP_KS  # the k of top-k that are worth reporting
    # the open-set search in each gallery, by the gallery's name
    open_searches: Mapping[str, OpenSearch] = field(default_factory=dict[str, OpenSearch])
    images: ImageSearch | None = None  # the search among single images, if there is one
    # (queries, templates) made where they are read; None if the gallery's entries are no templates
    scores: Scores | None = None
    # values that metrics have computed for each query, for the intervals
    per_query: dict[str, Floats] = field(default_factory=dict[str, Floats], repr=False)

    @property
    def genuine(self) -> Floats:
        """Scores of pairs of the same class."""
        return self.pairs.genuine

    @property
    def impostor(self) -> Impostors:
        """The pairs of different classes."""
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

    Both are (images, dim) embeddings of all test images. The gallery's entries are ``templates``,
    one for each class, or ``images``.
    """
    require_mode(mode)
    query = checked_embeddings(query, "query")
    gallery = checked_embeddings(gallery, "gallery")
    require_same_dim(query, "query", gallery, "gallery")
    for rows, side in ((query, "query"), (gallery, "gallery")):
        if len(rows) != len(split.labels):
            raise UserError(
                f"the {side} model has {len(rows)} embeddings for {len(split.labels)} images"
            )
    enrolled = gallery[split.gallery]
    images = ImageSearch(
        NormalizedRows(query, split.query),
        split.query_labels,
        normalized(enrolled).astype(np.float32, copy=False),
        split.gallery_labels,
    )
    if mode == "images":
        return image_test(images)
    templates = class_templates(enrolled, split.gallery_labels)
    test = scored_test(ProductScores(images.query, templates), split.query_labels)
    return replace(test, images=images)


def image_test(images: ImageSearch) -> SearchTest:
    """Search queries among single images: every image is an entry of the gallery."""
    scores = ProductScores(images.query, images.gallery)
    test = scored_test(scores, images.query_labels, images.gallery_labels)
    return replace(test, images=images)


def scored_test(
    scores: Scores, query_labels: Ints, gallery_labels: Ints | None = None
) -> SearchTest:
    """Go once through the (queries, entries) scores of all queries and the gallery's entries.

    ``query_labels`` are (queries,) classes 0…C-1, ``gallery_labels`` (entries,). By default entry c
    is the template of class c.
    """
    entry_labels: Ints = np.arange(int(scores.shape[1]))
    if gallery_labels is not None:
        entry_labels = gallery_labels
    classes, entries = int(entry_labels.max()) + 1, len(entry_labels)
    table = ScoreTable(scores, query_labels, entry_labels)
    highest = Impostors.highest_of(int(table.impostor_counts().sum()))
    parts: list[_BlockSummary] = []
    for block in table.blocks():
        highest.add(block.others, block.classes)
        parts.append(_summary(block, entry_labels))
    mates, mate_classes, best, ranks = (
        np.concatenate(part) for part in list(zip(*parts, strict=True))[:4]
    )
    best_others = np.concatenate([part.best_others for part in parts], axis=1)
    return SearchTest(
        ScoredPairs(mates, Impostors(table, highest), mate_classes),
        ranks=ranks,
        query_classes=query_labels,
        classes=classes,
        templates=entries,
        ks=tuple(k for k in TOP_KS if k < entries),  # among k entries all are found
        open_searches=_open_searches(best, best_others, query_labels, classes),
        scores=scores if gallery_labels is None else None,
    )


class _BlockSummary(NamedTuple):
    """What is taken from a block of scores."""

    mates: Floats  # the scores of all mates
    mate_classes: Groups  # the query's class of each
    best_mate: Floats  # (queries,)
    ranks: Ints  # (queries,)
    # (2, queries) the best score of another class, among classes with even and with odd numbers
    best_others: Floats


def _summary(block: ScoreBlock, entry_labels: Ints) -> _BlockSummary:
    queries = len(block.others)
    best_mate = np.full(queries, -np.inf, dtype=block.others.dtype)
    np.maximum.at(best_mate, block.mate_rows, block.mates)
    ranks = np.count_nonzero(block.others >= best_mate[:, None], axis=1)
    halves = [block.others[:, entry_labels % 2 == number] for number in range(2)]
    best_others = np.stack([half.max(axis=1, initial=-np.inf) for half in halves])
    mate_classes = block.classes[block.mate_rows].astype(np.int32)
    return _BlockSummary(block.mates, mate_classes, best_mate, ranks, best_others)


def _open_searches(
    best_mate: Floats, best_others: Floats, query_labels: Ints, classes: int
) -> dict[str, OpenSearch]:
    """Search two galleries with half of the classes each, as IJB does.

    Every query has a mate in one of them and none in the other. There is no such search if few
    classes are tested, or if the classes of one half have no queries.
    """
    searches: dict[str, OpenSearch] = {}
    if classes < _CLASSES_FOR_OPEN_SET or len(np.unique(query_labels % 2)) < 2:
        return searches
    for number, other in enumerate(best_others):
        has_mate = query_labels % 2 == number
        searches[f"half {number + 1}"] = OpenSearch(
            best_mate[has_mate],
            other[has_mate],
            other[~has_mate],
            query_labels[has_mate],
            query_labels[~has_mate],
        )
    return searches

"""The tests of IJB-B and IJB-C on pooled templates, and the compatibility criterion.

- 1:1: every pair of the list is scored, for TAR at FAR.
- 1:N, closed set: each probe searches the merged galleries, for top-1, top-5 and top-10.
- 1:N, open set: each probe searches each gallery on its own, for TPIR at FPIR; the galleries are
  averaged.

In a cross test the queries come from the new model and the gallery from the old one.
"""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    Floats,
    Ints,
    checked_embeddings,
    checked_labels,
    lowered,
    normalized,
    require_same_dim,
    to_numpy,
)
from unibct.distributed.cpus import usable_cpus
from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT, blended
from unibct.evaluation.bootstrap import REPEATS
from unibct.evaluation.criterion import few_classes_note
from unibct.evaluation.evaluation import SampledTests, SearchEvaluation, joined_notes
from unibct.evaluation.identification import OpenSearch, mate_ranks
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.protocols.ijb_files import Meta, TemplateSubjects, rows_of
from unibct.evaluation.score_table import mate_places
from unibct.evaluation.search_test import (
    BLEND,
    CROSS,
    NEW_SELF,
    OLD_SELF,
    REVERSED_CROSS,
    SearchTest,
    listed_pairs,
)
from unibct.evaluation.seen_classes import SeenClasses
from unibct.evaluation.verification import ThresholdRule, carried_fars, far_note, headline_far

Rows: TypeAlias = NDArray[np.integer[Any]]
Floats32: TypeAlias = NDArray[np.float32]

_PRODUCT_ENTRIES = 40_000_000  # largest number of scores in a block's matrix product
_PAIRS_AT_ONCE = 1 << 18
_GATHERED_AT_ONCE = 1 << 10
_PRODUCT_GAIN = 64  # a score from a matrix product is this many times cheaper than a gathered one


def pair_scores(first: Any, second: Any, first_rows: Any, second_rows: Any) -> Floats32:
    """Return the dot products of ``first[first_rows]`` and ``second[second_rows]``.

    The pair lists of the protocols contain a large share of all combinations of templates. So we
    multiply the two matrices, a block of rows at a time, and look the scores up: that is far
    cheaper than to gather the rows of each pair. Only blocks with few pairs are gathered. The
    shapes are (templates, dim), (templates′, dim), (pairs,) and (pairs,) -> (pairs,).
    """
    first = checked_embeddings(first, "first").astype(np.float32, copy=False)
    second = checked_embeddings(second, "second").astype(np.float32, copy=False)
    require_same_dim(first, "first", second, "second")
    left: Rows = _checked_rows(first_rows, len(first), "first_rows")
    right: Rows = _checked_rows(second_rows, len(second), "second_rows")
    if len(left) != len(right):
        raise UserError(f"first_rows has {len(left)} entries but second_rows has {len(right)}")
    used_seconds, column_of = _used_rows(right, len(second))
    columns = second[used_seconds]
    height = max(1, _PRODUCT_ENTRIES // max(1, len(columns)))
    # Where the scores of each row of ``first`` begin in the flattened product of its block.
    row_start = np.empty(len(first), dtype=np.int64)
    product = np.empty((min(height, len(first)), len(columns)), dtype=np.float32)
    scores = np.empty(len(left), dtype=np.float32)

    def look_up(pairs: slice | Ints) -> None:
        cells = row_start.take(left[pairs]) + column_of.take(right[pairs])
        scores[pairs] = product.take(cells)

    def gather(pairs: slice | Ints) -> None:
        rows = first[left[pairs]], second[right[pairs]]
        scores[pairs] = np.einsum("ij,ij->i", *rows)

    with ThreadPoolExecutor(usable_cpus()) as threads:
        for rows, pairs in _blocks(left, len(first), height):
            if len(pairs) * _PRODUCT_GAIN >= len(rows) * len(columns):
                np.matmul(first[rows], columns.T, out=product[: len(rows)])
                row_start[rows] = np.arange(len(rows)) * len(columns)
                list(threads.map(look_up, _parts(pairs, _PAIRS_AT_ONCE)))
            else:
                list(threads.map(gather, _parts(pairs, _GATHERED_AT_ONCE)))
    return scores


def _checked_rows(rows: Any, limit: int, name: str) -> Rows:
    array = to_numpy(rows)
    if array.dtype != np.int32 or array.ndim != 1:  # int32 saves memory
        array = checked_labels(array, name=name)
    if len(array) and (array.min() < 0 or array.max() >= limit):
        outside = (array < 0) | (array >= limit)
        raise UserError(
            f"{name} has {int(array[outside.argmax()])} in pair {int(outside.argmax())}, "
            f"but there are {limit} templates"
        )
    return array


def _parts(pairs: range | Ints, size: int) -> Generator[slice | Ints]:
    """Divide pairs into short parts, so that a part's data stays in the processor's cache."""
    for begin in range(0, len(pairs), size):
        part = pairs[begin : begin + size]
        # Indexing with a slice copies nothing.
        yield slice(part.start, part.stop) if isinstance(part, range) else part


def _used_rows(rows: Rows, limit: int) -> tuple[Ints, Ints]:
    """Return the rows that occur, and (limit,) the place of each row among them."""
    occurs = np.zeros(limit, dtype=bool)
    occurs[rows] = True
    return np.flatnonzero(occurs), np.cumsum(occurs) - 1


def _blocks(rows: Rows, limit: int, height: int) -> Generator[tuple[Rows, range | Ints]]:
    """Yield blocks of ``height`` of the ``limit`` rows, each with the indices of its pairs.

    ``rows`` are (pairs,) the row of each pair. The last block may have fewer. The indices are a
    range if equal rows are next to each other in the list of pairs.
    """
    if not len(rows):
        return
    starts = np.concatenate([[0], np.flatnonzero(rows[1:] != rows[:-1]) + 1])
    if len(starts) <= limit and len(used := rows[starts]) == len(np.unique(used)):
        ends = [*starts[height::height].tolist(), len(rows)]
        pairs = range(len(rows))
    else:
        used, place = _used_rows(rows, limit)
        dtype = np.int32 if len(used) > height << 16 else np.uint16  # 16 bits are sorted faster
        block = (place // height).astype(dtype)[rows]
        pairs = np.argsort(block, kind="stable")
        ends = np.cumsum(np.bincount(block)).tolist()
    begin = 0
    for number, end in enumerate(ends):
        yield used[number * height : (number + 1) * height], pairs[begin:end]
        begin = end


# 1:N identification in several galleries, as a closed and as an open set.

_SCORES_AT_ONCE = 1 << 21


class GallerySearch(NamedTuple):
    """The outcome of a search in several galleries."""

    # (probes,) entries of other subjects that score at least as high as the mate, in the merged
    # galleries.
    ranks: Ints
    open_searches: dict[str, OpenSearch]  # the open-set search in each gallery, by its name


def search_galleries(
    query: Any, query_subjects: Any, galleries: dict[str, tuple[Any, Any]]
) -> GallerySearch:
    """Search each probe's vector, (probes, dim), in every gallery.

    Each of the (probes,) subjects has a mate in one of the galleries: name -> (templates, dim)
    vectors and (templates,) subjects.
    """
    query = normalized(checked_embeddings(query, "query")).astype(np.float32)
    query_subjects = checked_labels(query_subjects, len(query), "query_subjects")
    parts = [checked_embeddings(vectors, name) for name, (vectors, _) in galleries.items()]
    for name, array in zip(galleries, parts, strict=True):
        require_same_dim(query, "query", array, name)
    merged = normalized(np.concatenate(parts)).astype(np.float32)
    subjects = np.concatenate(
        [
            checked_labels(labels, len(array), f"subjects of {name}")
            for (name, (_, labels)), array in zip(galleries.items(), parts, strict=True)
        ]
    )
    without_mate = ~np.isin(query_subjects, subjects)
    if without_mate.any():
        row = int(without_mate.argmax())
        raise UserError(
            f"probe row {row} has the subject {int(query_subjects[row])}, which no gallery has; "
            "the closed set needs a mate for each probe"
        )
    ends = np.cumsum([len(array) for array in parts])
    slices = [slice(end - len(array), end) for array, end in zip(parts, ends, strict=True)]
    ranks: list[Ints] = []
    best_scores: list[Floats] = []
    block = max(1, _SCORES_AT_ONCE // len(merged))
    for start in range(0, len(query), block):
        scores = query[start : start + block] @ merged.T
        block_subjects = query_subjects[start : start + block]
        mates = mate_places(block_subjects, subjects)
        scores[mates] = lowered(scores[mates])
        ranks.append(mate_ranks(scores, block_subjects, subjects))
        best_scores.append(_best_scores(scores, mates, slices))
    mate, other = np.concatenate(best_scores, axis=2)
    open_searches = {
        name: OpenSearch(
            mate[i][mated],
            other[i][mated],
            other[i][~mated],
            query_subjects[mated],
            query_subjects[~mated],
        )
        for i, name in enumerate(galleries)
        for mated in [np.isfinite(mate[i])]
    }
    return GallerySearch(np.concatenate(ranks), open_searches)


def _best_scores(scores: Floats, mates: tuple[Ints, Ints], slices: Sequence[slice]) -> Floats:
    """Return (2, galleries, probes): the best mate's score and the best other's, -inf if none.

    ``scores`` are (probes, entries) in the merged galleries, of which ``slices`` are the entries of
    each; ``mates`` are the probe and the entry of each pair of the same subject.
    """
    best = np.full((2, len(slices), len(scores)), -np.inf, dtype=np.float32)
    probes, entries = mates
    mate_scores = scores[mates]
    others = scores.copy()
    others[mates] = -np.inf
    for number, gallery in enumerate(slices):
        inside = (entries >= gallery.start) & (entries < gallery.stop)
        np.maximum.at(best[0, number], probes[inside], mate_scores[inside])
        best[1, number] = others[:, gallery].max(axis=1)
    return best


# All tests of two models, and the verdict.

TOP_KS = (1, 5, 10)
TESTS = (OLD_SELF, CROSS, NEW_SELF, REVERSED_CROSS)
_REVERSED_NOTE = (
    f"{REVERSED_CROSS} has the enrolled side from the new model; "
    "its TAR is the paper's cross test of 1:1"
)

_SEEN = SeenClasses(None, None, "they have numbers of their own", "subjects")


@dataclass(frozen=True, kw_only=True)
class IjbEvaluation(SearchEvaluation):
    """The tests of two models on one benchmark, and the criterion per metric.

    The tests are old→old, new→old (as in deployment, the probes from the new model), new→new and
    old→new (the enrolled side from the new model, which is the paper's cross test of 1:1), and
    blend→old (the probes are blends of both models' templates).
    """

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        pairs = self.tests[OLD_SELF].pairs
        return super().as_json() | {
            "pairs": {"genuine": len(pairs.genuine), "impostor": len(pairs.impostor)},
        }


def evaluate_templates(
    meta: Meta,
    *,
    old: tuple[Any, Any],
    new: tuple[Any, Any],
    far: float | None = None,
    rule: ThresholdRule = "strict",
    seed: int = 0,
    repeats: int = REPEATS,
    alpha: float = MIDPOINT,
    score_scale: float | None = None,
    fingerprints: dict[str, str] | None = None,
    note: str | None = None,
) -> IjbEvaluation:
    """Run the self tests and the cross test in both directions, and give a verdict.

    A model is given as template ids and (templates, dim) vectors, see ``pool_templates``. ``far``
    is the false accept rate of the criterion's TAR (by the strict rule), by default the smallest of
    1e-4, 1e-3, … that the number of subjects can measure; ``rule`` is that of the reported TARs.
    ``seed`` chooses the ``repeats`` bootstrap samples. ``alpha`` is the share of the new template
    in blended probes, ``score_scale`` the new model's, ``note`` what else a reader must know.
    """
    if seed < 0 or repeats < 1:
        raise UserError(f"seed must be at least 0 and repeats at least 1, not {seed}, {repeats}")
    models = {"old": _ModelTemplates.of("old", *old), "new": _ModelTemplates.of("new", *new)}
    require_same_dim(models["new"].vectors, "new", models["old"].vectors, "old")
    lists = _SubjectLists.of(meta)
    tests: dict[str, SearchTest] = {
        direction: _template_test(meta, lists, models[direction.query], models[direction.gallery])
        for direction in TESTS
    }
    blend = models["new"].blended_with(models["old"], alpha)
    tests[BLEND] = _template_test(meta, lists, blend, models["old"])
    used_far = headline_far(lists.subjects, far)
    carried = tuple(carried_fars(lists.subjects))
    fars = sorted({used_far, *carried})  # of the reported TARs
    samples = SampledTests.of(tests, far=used_far, seed=seed, repeats=repeats)
    return IjbEvaluation(
        values={name: measured_metrics(test, fars, rule=rule) for name, test in tests.items()},
        note=joined_notes(
            far_note(used_far, far, lists.subjects, "subjects"),
            few_classes_note(lists.subjects, "subjects"),
            _REVERSED_NOTE,
            _SEEN.note,
            note,
            rule=rule,
        ),
        compared=samples.difference(CROSS, OLD_SELF),
        seen=_SEEN,
        fingerprints=fingerprints or {},
        tests=tests,
        samples=samples,
        far=used_far,
        carried_fars=carried,
        rule=rule,
        alpha=alpha,
        score_map=None,
        score_scale=score_scale,
        seed=seed,
        repeats=repeats,
    )


@dataclass(frozen=True)
class _SubjectLists:
    """The two templates of each pair, and the subjects of the queries as numbers 0…S-1."""

    gallery_side: Ints  # (pairs,) template ids of the enrolled side
    query_side: Ints  # (pairs,) template ids of the query's side
    genuine_subjects: NDArray[np.int32]  # (genuine pairs,) the query's subject
    impostor_subjects: NDArray[np.int32]  # (impostor pairs,) the query's subject
    probe_subjects: Ints  # (probes,)
    subject_ids: Ints  # (S,) the id of each subject, ascending

    @property
    def subjects(self) -> int:
        """How many subjects there are."""
        return len(self.subject_ids)

    def number(self, subjects: Ints | None) -> Ints:
        """Return the numbers 0…S-1 of subjects' ids."""
        assert subjects is not None
        return np.searchsorted(self.subject_ids, subjects)

    @classmethod
    def of(cls, meta: Meta) -> "_SubjectLists":
        gallery_side, query_side = _sides(meta)
        pair_subjects = _subjects_of(query_side, meta)
        subjects = np.unique(np.concatenate([pair_subjects, meta.probes.subjects]))
        pair_subjects = np.searchsorted(subjects, pair_subjects).astype(np.int32)
        return cls(
            gallery_side,
            query_side,
            pair_subjects[meta.same],
            pair_subjects[~meta.same],
            np.searchsorted(subjects, meta.probes.subjects),
            subjects,
        )


def _template_test(
    meta: Meta, lists: _SubjectLists, query: "_ModelTemplates", gallery: "_ModelTemplates"
) -> SearchTest:
    """Score the pairs and search the galleries with one query model and one gallery model."""
    scores = pair_scores(
        gallery.vectors,
        query.vectors,
        gallery.rows(lists.gallery_side),
        query.rows(lists.query_side),
    )
    pairs = listed_pairs(
        lowered(scores[meta.same]),
        scores[~meta.same],
        lists.genuine_subjects,
        lists.impostor_subjects,
    )
    del scores
    search = search_galleries(
        query.vectors[query.rows(meta.probes.templates)],
        meta.probes.subjects,
        {
            name: (gallery.vectors[gallery.rows(part.templates)], part.subjects)
            for name, part in meta.galleries.items()
        },
    )
    return SearchTest(
        pairs,
        ranks=search.ranks,
        query_classes=lists.probe_subjects,
        classes=lists.subjects,
        templates=sum(len(part.templates) for part in meta.galleries.values()),
        ks=TOP_KS,
        open_searches={
            name: replace(
                open_search,
                mate_classes=lists.number(open_search.mate_classes),
                unmated_classes=lists.number(open_search.unmated_classes),
            )
            for name, open_search in search.open_searches.items()
        },
    )


@dataclass(frozen=True)
class _ModelTemplates:
    """The template vectors of one model."""

    name: str  # ``old`` or ``new``, for messages
    ids: Ints  # (templates,) in ascending order
    vectors: Floats  # (templates, dim) normalised

    @classmethod
    def of(cls, name: str, ids: Any, vectors: Any) -> "_ModelTemplates":
        vectors = normalized(checked_embeddings(vectors, name)).astype(np.float32)
        ids = checked_labels(ids, len(vectors), f"template ids of {name}")
        order = np.argsort(ids, kind="stable")
        repeated = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(repeated):
            raise UserError(
                f"{name} has the template {int(ids[order[repeated[0]]])} twice; pool each one once"
            )
        return cls(name, ids[order], vectors[order])

    def blended_with(self, old: "_ModelTemplates", alpha: float) -> "_ModelTemplates":
        """Return blends of the old model's templates and these, for templates of both."""
        ids = np.intersect1d(self.ids, old.ids)
        vectors = blended(
            old=old.vectors[old.rows(ids)], new=self.vectors[self.rows(ids)], alpha=alpha
        )
        return _ModelTemplates("blended", ids, vectors)

    def rows(self, templates: Ints) -> NDArray[np.int32]:
        rows = rows_of(self.ids, templates)
        if len(rows) and rows.min() < 0:
            raise UserError(
                f"the {self.name} model has no vector of template "
                f"{int(templates[rows.argmin()])}; embed and pool all images of the benchmark"
            )
        return rows.astype(np.int32)


def _sides(meta: Meta) -> tuple[Ints, Ints]:
    """Return the gallery's template and the query's template of each pair.

    Most lists give the enrolled template first. The files of the galleries show which templates
    are enrolled; if they are mostly in the second column, the two columns are swapped.
    """
    enrolled = np.unique(np.concatenate([g.templates for g in meta.galleries.values()]))
    shares = [float(np.mean(rows_of(enrolled, side) >= 0)) for side in (meta.first, meta.second)]
    return (meta.first, meta.second) if shares[0] >= shares[1] else (meta.second, meta.first)


def _subjects_of(templates: Ints, meta: Meta) -> Ints:
    """Return the subject of each template, from the files of probes and galleries."""
    files: list[TemplateSubjects] = [meta.probes, *meta.galleries.values()]
    ids, first = np.unique(np.concatenate([file.templates for file in files]), return_index=True)
    subjects = np.concatenate([file.subjects for file in files])[first]
    rows = rows_of(ids, templates)
    if len(rows) and rows.min() < 0:
        raise UserError(
            f"template {int(templates[rows.argmin()])} of the pairs is in no file of probes or "
            "galleries, so its subject is unknown; all files must come from the same release"
        )
    return subjects[rows]

"""One search over rows that several models made.

Each kind of rows is searched with a query that fits it. The scores of older rows are put on the
scale of the searching model's own rows by the calibration in the certificate, and one ranking
holds them all. If all rows are of one kind, scores are the plain similarities.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unibct import progress
from unibct.errors import UserError
from unibct.gallery.engines import Found, Search
from unibct.gallery.gallery_folder import GalleryFolder
from unibct.gallery.queries import (
    OtherModelError,
    Queries,
    make_queries,
    query_vectors,
    require_fitting,
)
from unibct.gallery.rows import (
    MAPPED_ROW,
    OLDER_ROW,
    OWN_ROW,
    Metadata,
    row_type,
    searchable_kinds,
    user_metadata,
)
from unibct.gallery.score_scales import RAW, Scale, require_one_old_model, scale_for
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import Source
from unibct.gallery.state import ROLLBACK, GalleryState, RowMaker, Standing

_TRIES = 5  # of a search during which the state changes


@dataclass(frozen=True)
class Hit:
    """A row that a query has found."""

    id: str  # of the row
    label: str | None  # of the row
    score: float  # what the ranking is made by; comparable between rows of all kinds
    model: str  # the fingerprint of the model or map that made the row
    similarity: float  # the plain cosine of query and row
    row: str  # `own` (made by the searching model), `older` or `mapped`
    metadata: Metadata  # of the row

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


def search_source(
    folder: GalleryFolder,
    source: Source | None,
    request: SearchRequest,
    queries: Queries | None = None,
) -> tuple[Queries, list[list[Hit]]]:
    """Embed queries and search; embed them again if another model searches by then.

    Without a source, only the queries are known.
    """
    for _ in range(_TRIES):
        if queries is None:
            assert source is not None
            _scales(folder, folder.state, request)  # refuses before anything is embedded
            queries = make_queries(folder, source, request)
        try:
            return queries, search_gallery(folder, queries, request)
        except OtherModelError:
            if source is None:
                raise
            queries = None
    raise UserError(f"{folder.path} keeps changing; try again")


def note_useless_filter(
    folder: GalleryFolder, queries: Queries, request: SearchRequest, hit_lists: list[list[Hit]]
) -> None:
    """Say so if a search found nothing because no row fits its filter."""
    state = folder.state
    kinds = searchable_kinds(state, state.standing)
    if not request.where or any(hit_lists) or not any(folder.has_live(kind) for kind in kinds):
        return
    with_any_score = replace(request, k=1, threshold=None, far=None)
    try:
        row_fits = any(search_gallery(folder, queries, with_any_score))
    except OtherModelError:  # since the search; nothing is known of its filter
        return
    if not row_fits:
        keys = ", ".join(request.where)
        progress.note(f"no row fits the filter on {keys}; a search without it shows rows")


def note_guessed_threshold(folder: GalleryFolder, request: SearchRequest) -> None:
    """Say so if a threshold is where a certificate's test has hardly seen impostors."""
    far, searching = request.far, folder.state.standing.searching
    papers = [] if far is None else folder.certificates()
    if any(far in paper.rough_fars for paper in papers if searching in (paper.new, paper.old)):
        progress.note(
            f"the threshold for the false accept rate {far:g} is rough: the test of its "
            "certificate has too few classes to measure it"
        )
    if request.threshold is None or not request.old_scores:
        return
    for scale in _scales(folder, folder.state, request).values():
        if scale.report is not None and request.threshold > scale.report.reach:
            progress.note(
                f"the threshold {request.threshold:g} is above {scale.report.reach:.4g}, where "
                "fewer than ten impostor pairs of the certificate's score map are: its false "
                "accept rate is a guess; --far takes measured thresholds"
            )
            return


def search_gallery(
    folder: GalleryFolder,
    queries: Queries,
    request: SearchRequest,
    standing: Standing | None = None,
) -> list[list[Hit]]:
    """Search all rows that the searching model may search.

    The queries are by that model; those of another one are refused. By default as things stand now.
    """
    for _ in range(_TRIES):
        state = folder.state
        searched = replace(state, standing=standing or state.standing)
        kinds = _filled_kinds(folder, searched, request)
        require_fitting(queries, searched.standing, request, kinds)
        hit_lists = _search_once(folder, searched, kinds, queries, request)
        # While a step is under way, the first row of a kind may have come in between.
        is_same = state.unfinished is None or _filled_kinds(folder, searched, request) == kinds
        if is_same and folder.state is state:  # otherwise an upgrade or a rollback came
            return hit_lists
    raise UserError(f"{folder.path} keeps changing; try again")


def _search_once(
    folder: GalleryFolder,
    state: GalleryState,
    kinds: list[str],
    queries: Queries,
    request: SearchRequest,
) -> list[list[Hit]]:
    standing = state.standing
    scales = _scales(folder, state, request, kinds)
    merged: list[dict[str, tuple[float, Hit]]] = [{} for _ in queries.ids]
    # The newest find of an id stays.
    for kind, scale in scales.items():
        maker = state.makers[kind]
        vectors = query_vectors(folder, standing, maker, queries, request)
        search = Search(request.k, request.where, request.approximate, request.with_superseded)
        rows_by_query = folder.engine.search(kind, vectors, search)
        for hits, rows in zip(merged, rows_by_query, strict=True):
            for place, (rank, hit) in enumerate(_hits(rows, scale, maker, standing)):
                if scale.least is not None and rows[place].similarity <= scale.least:
                    continue
                hits[hit.id] = (rank, hit)
    best = [
        sorted(hits.values(), key=lambda pair: (-pair[0], pair[1].id))[: request.k]
        for hits in merged
    ]
    least = -np.inf if request.threshold is None else request.threshold
    return [[hit for _, hit in hits if hit.score >= least] for hits in best]


def _scales(
    folder: GalleryFolder,
    state: GalleryState,
    request: SearchRequest,
    kinds: list[str] | None = None,
) -> dict[str, Scale]:
    """Return how the scores of each kind are ranked; refuse what no certificate can answer.

    The kinds are those that have rows, in the order in which they are searched; None to look.
    """
    kinds = _filled_kinds(folder, state, request) if kinds is None else kinds
    if request.old_scores:
        require_one_old_model(folder, state, kinds)
    standing, makers = state.standing, state.makers
    return {kind: scale_for(folder, standing, makers[kind], request, kinds) for kind in kinds}


def _filled_kinds(folder: GalleryFolder, state: GalleryState, request: SearchRequest) -> list[str]:
    """Return the kinds that have rows to search, in the order in which they are searched.

    Older rows come first, then mapped ones, then the searching model's own: a row that a backfill
    replaces meanwhile is then found twice, not never. A rollback brings older rows back, so while
    one is under way they come last.
    """
    standing = state.standing
    kinds = searchable_kinds(state, standing)
    if len(kinds) < 2:
        return kinds
    order = (OLDER_ROW, MAPPED_ROW, OWN_ROW)
    is_going_back = any(step.action == ROLLBACK and not step.done for step in state.steps)
    kinds.sort(key=lambda kind: order.index(row_type(state.makers[kind], standing)))
    if is_going_back:
        kinds.reverse()
    return [kind for kind in kinds if _has_rows(folder, kind, request)]


def _has_rows(folder: GalleryFolder, kind: str, request: SearchRequest) -> bool:
    if request.with_superseded:
        return folder.engine.count(kind).rows > 0
    return folder.has_live(kind)


def _hits(
    rows: list[Found], scale: Scale, maker: RowMaker, standing: Standing
) -> list[tuple[float, Hit]]:
    """Return each row's place on the scale of the ranking, and the hit."""
    similarities = [row.similarity for row in rows]
    ranks = similarities if scale.rank == RAW else scale.rank(similarities).tolist()
    scores = ranks if scale.report is None else scale.report(similarities).tolist()
    row = row_type(maker, standing)
    return [
        (
            rank,
            Hit(
                f.id,
                f.label,
                score,
                maker.fingerprint,
                f.similarity,
                row,
                user_metadata(f.metadata),
            ),
        )
        for rank, score, f in zip(ranks, scores, rows, strict=True)
    ]

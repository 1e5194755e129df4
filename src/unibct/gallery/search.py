"""One search over rows that several models made.

Each kind of rows is searched with a query that fits it. The scores of older rows are put on the
scale of the searching model's own rows by the calibration in the certificate, and one ranking
holds them all. If all rows are of one kind, scores are the plain similarities.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT, blended, require_alpha
from unibct.evaluation.directions import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.evaluation.score_map import ScoreMap
from unibct.gallery.calibration import Calibration
from unibct.gallery.certificate import Certificate
from unibct.gallery.encoders import BLENDED_QUERY, ENCODERS, NEW_QUERY, TWO_QUERIES
from unibct.gallery.engines.engine import Found, Search
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.rows import Metadata, Where, checked_filter, user_metadata
from unibct.gallery.shelf import ONLY_STORED, query_view
from unibct.gallery.sources import Source
from unibct.gallery.state import ROLLBACK, GalleryState, RowMaker, Standing

OWN_ROW, OLDER_ROW, MAPPED_ROW = "own", "older", "mapped"
_TRIES = 5  # of a search during which the state changes


class OtherModelError(UserError):
    """The queries are not those of the model that searches."""


@dataclass(frozen=True)
class SearchRequest:
    """What is searched for.

    Attributes:
        k: how many rows per query.
        where: a filter on the metadata.
        approximate: use the index, if there is one.
        threshold: leave out rows with a lower score.
        far: leave out rows below the threshold for this false accept rate, for each kind of rows.
        old_scores: give scores on the scale of the old model, for clients with a fixed threshold.
        encoders: whose query searches older rows, a name from ``ENCODERS``.
        alpha: share of the searching model in a blend. By default that of the certificate, and
            half where there is none.
        with_superseded: search rows that have been replaced too; to try a rollback.
    """

    k: int = 10
    where: Where = field(default_factory=dict[str, Any])
    approximate: bool = False
    threshold: float | None = None
    far: float | None = None
    old_scores: bool = False
    encoders: str = NEW_QUERY
    alpha: float | None = None
    with_superseded: bool = False

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.k < 1:
            raise UserError(f"k is the number of rows per query, at least 1, not {self.k}")
        if self.encoders not in ENCODERS:
            raise UserError(f"unknown encoders {self.encoders!r}; choose {', '.join(ENCODERS)}")
        if self.alpha is not None:
            require_alpha(self.alpha)
        if self.threshold is not None and math.isnan(self.threshold):
            raise UserError("the threshold is not a number")
        if self.threshold is not None and self.far is not None:
            raise UserError("give a threshold or a false accept rate (--far), not both")
        checked_filter(self.where)


@dataclass(frozen=True)
class Hit:
    """A row that a query has found.

    Attributes:
        id: of the row.
        label: of the row.
        score: what the ranking is made by; comparable between rows of all kinds.
        model: the fingerprint of the model or map that made the row.
        similarity: the plain cosine of query and row.
        row: ``own`` (made by the searching model), ``older`` or ``mapped``.
        metadata: of the row.
    """

    id: str
    label: str | None
    score: float
    model: str
    similarity: float
    row: str
    metadata: Metadata

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


@dataclass(frozen=True)
class Queries:
    """Queries as vectors.

    Attributes:
        ids: one per query.
        vectors: (queries, dim) by the searching model.
        made_by: the fingerprint of that model.
        older: fingerprint of an older model -> (queries, dim) by that model.
        labels: one per query; None where there is none.
    """

    ids: tuple[str, ...]
    vectors: NDArray[np.float32]
    made_by: str
    older: Mapping[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    labels: tuple[str | None, ...] = ()


def make_queries(folder: GalleryFolder, source: Source, request: SearchRequest) -> Queries:
    """Embed queries by the searching model, and by older ones where the request needs them."""
    state = folder.state
    searching = state.searching
    older: dict[str, NDArray[np.float32]] = {}
    if source.embeddings is not None:
        made_by = source.embeddings.fingerprint
        if made_by != searching.fingerprint:
            raise UserError(
                f"{source.name} was made by model {made_by}, but model {searching.fingerprint} "
                "searches this gallery; embed the queries with that one"
            )
        if request.encoders != NEW_QUERY:
            raise UserError("two encoders need images as queries, not embeddings")
        vectors = source.vectors(None, folder.progress)
    else:
        vectors = source.vectors(folder.model(searching.fingerprint).embedder, folder.progress)
        if request.encoders != NEW_QUERY:
            for kind in state.standing.access:
                model = folder.model(kind).embedder
                older[kind] = source.vectors(model, folder.progress)
    return Queries(source.ids, vectors, searching.fingerprint, older, source.labels)


def search_source(
    folder: GalleryFolder,
    source: Source | None,
    request: SearchRequest,
    queries: Queries | None = None,
) -> tuple[Queries, list[list[Hit]]]:
    """Embed queries and search; embed them again if another model searches by then.

    Args:
        folder: the gallery.
        source: images or embeddings; None if only the queries are known.
        request: what is searched for.
        queries: the same, embedded already.
    """
    for _ in range(_TRIES):
        if queries is None:
            assert source is not None
            queries = make_queries(folder, source, request)
        try:
            return queries, search_gallery(folder, queries, request)
        except OtherModelError:
            if source is None:
                raise
            queries = None
    raise UserError(f"{folder.path} keeps changing; try again")


def search_gallery(
    folder: GalleryFolder,
    queries: Queries,
    request: SearchRequest,
    standing: Standing | None = None,
) -> list[list[Hit]]:
    """Search all rows that the searching model may search.

    Args:
        folder: the gallery.
        queries: by the searching model; those of another one are refused.
        request: what is searched for.
        standing: who searches what; by default as it is now.
    """
    for _ in range(_TRIES):
        state = folder.state
        searched = replace(state, standing=standing or state.standing)
        _require_fitting(queries, searched.standing, request)
        kinds = _filled_kinds(folder, searched, request)
        hit_lists = _search_once(folder, searched, kinds, queries, request)
        # While a step is under way, the first row of a kind may have come in between.
        is_same = state.unfinished is None or _filled_kinds(folder, searched, request) == kinds
        if is_same and folder.state is state:  # otherwise an upgrade or a rollback came
            return hit_lists
    raise UserError(f"{folder.path} keeps changing; try again")


@dataclass(frozen=True)
class _Scale:
    """How similarities of a kind of rows become scores.

    Attributes:
        rank: puts them on the common scale of the ranking.
        report: puts them on the scale of the result; None if that is the scale of the ranking.
        least: similarities above it pass the wanted false accept rate.
    """

    rank: Calibration
    report: ScoreMap | Calibration | None
    least: float | None


def _require_fitting(queries: Queries, standing: Standing, request: SearchRequest) -> None:
    """Refuse queries that are not those of the models that search."""
    if queries.made_by != standing.searching:
        raise OtherModelError(
            f"the queries were made by model {queries.made_by}, but model {standing.searching} "
            "searches this gallery; embed the queries with that one"
        )
    if request.encoders != NEW_QUERY and not standing.access.keys() <= queries.older.keys():
        raise OtherModelError(
            "the queries lack those by an older model whose rows are searched; embed them again"
        )


def _search_once(
    folder: GalleryFolder,
    state: GalleryState,
    kinds: list[str],
    queries: Queries,
    request: SearchRequest,
) -> list[list[Hit]]:
    standing = state.standing
    if request.old_scores:
        _require_one_old_model(folder, state, kinds)
    merged: list[dict[str, tuple[float, Hit]]] = [{} for _ in queries.ids]
    # The newest find of an id stays.
    for kind in kinds:
        maker = state.makers[kind]
        scale = _scale(folder, standing, maker, request, kinds)
        vectors = _query_vectors(folder, standing, maker, queries, request)
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


def searchable_kinds(state: GalleryState, standing: Standing) -> list[str]:
    """Return the kinds of rows that may be searched, the oldest first."""
    return [
        kind
        for kind, maker in state.makers.items()
        if maker.space == standing.searching or kind in standing.access
    ]


def row_type(maker: RowMaker, standing: Standing) -> str:
    """Return whether rows of a maker are own, older or mapped ones."""
    if maker.fingerprint == standing.searching:
        return OWN_ROW
    return MAPPED_ROW if maker.space == standing.searching else OLDER_ROW


def _hits(
    rows: list[Found], scale: _Scale, maker: RowMaker, standing: Standing
) -> list[tuple[float, Hit]]:
    """Return each row's place on the scale of the ranking, and the hit."""
    similarities = [row.similarity for row in rows]
    ranks = similarities if scale.rank == _RAW else scale.rank(similarities).tolist()
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


_RAW = Calibration()
# What searches older rows -> the direction of the test that says how to read the scores.
_OLDER_DIRECTIONS = {NEW_QUERY: CROSS, TWO_QUERIES: OLD_SELF, BLENDED_QUERY: BLEND}


def _scale(
    folder: GalleryFolder,
    standing: Standing,
    maker: RowMaker,
    request: SearchRequest,
    kinds: Sequence[str],
) -> _Scale:
    """Return how similarities with rows of a maker become scores, if these kinds have rows."""
    is_older = maker.space != standing.searching
    direction = _OLDER_DIRECTIONS[request.encoders] if is_older else NEW_SELF
    certificate = _certificate(folder, standing, maker, kinds)
    if direction == BLEND and certificate is not None:
        _require_tested_blend(certificate, request)
    rank = _RAW
    if is_older and len(kinds) > 1 and certificate is not None:
        rank = certificate.calibration_of(direction)
    report = None
    # A model that searches no older rows is the old model itself: its scale is the old one.
    if request.old_scores and direction == OLD_SELF:
        report = _RAW
    elif request.old_scores and standing.access:
        if certificate is None:
            raise UserError(
                f"no certificate says how scores of {maker.name} become old ones (--old-scores)"
            )
        report = certificate.score_map_of(direction)
    least = None
    if request.far is not None:
        least = _threshold(folder, standing, maker, direction, request.far)
    return _Scale(rank, report, least)


def _require_one_old_model(folder: GalleryFolder, state: GalleryState, kinds: list[str]) -> None:
    """Refuse old scores where rows would be on the scales of several old models."""
    old_models: dict[str, str] = {}
    for kind in kinds:
        maker = state.makers[kind]
        if maker.space != state.standing.searching:
            old_models[kind] = maker.name
        elif certificate := _certificate(folder, state.standing, maker, kinds):
            known = state.makers.get(certificate.old)
            old_models[certificate.old] = certificate.old if known is None else known.name
    if len(old_models) > 1:
        raise UserError(
            f"--old-scores: there are several old models, {', '.join(old_models.values())}, each "
            "with a scale of its own; use --far, or backfill the rows of all but one of them"
        )


def _blend_share(certificate: Certificate | None, request: SearchRequest) -> float:
    """Return the share of the searching model in blended queries for rows of one maker."""
    if request.alpha is not None:
        return request.alpha
    return MIDPOINT if certificate is None else certificate.blend_alpha


def _require_tested_blend(certificate: Certificate, request: SearchRequest) -> None:
    """Refuse thresholds and old scores for a blend that the certificate has not tested."""
    asks_for_scale = request.far is not None or request.old_scores
    if asks_for_scale and _blend_share(certificate, request) != certificate.blend_alpha:
        raise UserError(
            "the certificate's thresholds and scales are those of blends with alpha "
            f"{certificate.blend_alpha:g}, not {request.alpha:g}: leave alpha out, or certify "
            "again with `unibct evaluate … --alpha`"
        )


def _certificate(
    folder: GalleryFolder, standing: Standing, maker: RowMaker, kinds: Sequence[str] = ()
) -> Certificate | None:
    """Return the certificate for rows of a maker.

    For own rows it is that of the oldest other kind: of one that has rows, if any has.

    Args:
        folder: the gallery.
        standing: who searches what.
        maker: of the rows.
        kinds: the kinds that have rows.
    """
    if maker.space != standing.searching:
        digest = standing.access[maker.fingerprint].certificate
    else:
        access = sorted(standing.access.items(), key=lambda pair: pair[0] not in kinds)
        digest = next(filter(None, (allowed.certificate for _, allowed in access)), "")
    return folder.certificate(digest) if digest else None


def _threshold(
    folder: GalleryFolder, standing: Standing, maker: RowMaker, direction: str, far: float
) -> float:
    """Return the threshold for a kind of rows, from any certificate that knows it."""
    certificate = _certificate(folder, standing, maker)
    if certificate is not None:
        return certificate.threshold(direction, far)
    if direction == NEW_SELF:
        for known in folder.certificates():
            if known.new == standing.searching:
                return known.threshold(NEW_SELF, far)
            if known.old == standing.searching:
                return known.threshold(OLD_SELF, far)
    raise UserError(
        f"no certificate gives a threshold for rows of {maker.name}: --far needs one; "
        "unibct evaluate … --certify FILE writes it, unibct gallery create takes it"
    )


def _query_vectors(
    folder: GalleryFolder,
    standing: Standing,
    maker: RowMaker,
    queries: Queries,
    request: SearchRequest,
) -> NDArray[np.float32]:
    """Return the queries for rows of a maker."""
    is_older = maker.space != standing.searching
    if is_older and request.encoders == TWO_QUERIES:
        return queries.older[maker.fingerprint]
    view = view_for(folder, standing.searching, queries.vectors, maker.dim)
    if is_older and request.encoders == BLENDED_QUERY:
        old = queries.older[maker.fingerprint]
        share = _blend_share(_certificate(folder, standing, maker), request)
        return np.asarray(blended(old, view, share), dtype=np.float32)
    return view


def view_for(
    folder: GalleryFolder, model: str, vectors: NDArray[np.float32], row_dim: int
) -> NDArray[np.float32]:
    """Return a model's vectors as queries for rows of a dimension, projected if need be."""
    maker = folder.state.makers[model]
    embedder = None
    if vectors.shape[1] != row_dim and maker.source != ONLY_STORED:
        embedder = folder.model(model).embedder
    return query_view(embedder, vectors, row_dim, maker.name)

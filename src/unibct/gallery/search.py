"""One search over rows that several models made.

Each kind of rows is searched with a query that fits it: by the searching model, by the older one,
or by both. Their similarities differ, so one ranking needs one scale: the calibration in the
certificate puts those of older rows on the scale of the searching model's own. Old thresholds need
the old scale, and a false accept rate has a threshold for each kind. If all rows are of one kind,
scores are the plain similarities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.data.checked_set import NoReadableImageError
from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT, blended
from unibct.evaluation.certificate import Certificate
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.search_test import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.gallery.engines import Found, Search
from unibct.gallery.gallery_folder import (
    ONLY_STORED,
    DamagedCertificateError,
    GalleryFolder,
    query_view,
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
from unibct.gallery.search_request import BLENDED_QUERY, NEW_QUERY, TWO_QUERIES, SearchRequest
from unibct.gallery.sources import Source, vector_fault
from unibct.gallery.state import ROLLBACK, GalleryState, RowKind, Standing

_TRIES = 5  # of a search during which the state changes


# Queries as vectors, made by each model whose query the rows need.


class OtherModelError(UserError):
    """The queries are not those of the model that searches."""


@dataclass(frozen=True)
class Queries:
    """Queries as vectors."""

    ids: tuple[str, ...]  # one per query
    vectors: NDArray[np.float32]  # (queries, dim) by the searching model
    made_by: str  # the fingerprint of that model
    # kind of older rows -> (queries, dim) by the model in whose space these are
    older: Mapping[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    labels: tuple[str | None, ...] = ()  # one per query; None where there is none


def checked_queries(queries: Queries) -> Queries:
    """Return queries that a program has made, with float32 vectors, or refuse them."""
    vectors = np.asarray(queries.vectors, dtype=np.float32)
    count = len(queries.ids)
    if vectors.ndim != 2 or len(vectors) != count:
        raise UserError(
            f"queries: {count} ids need vectors of the shape ({count}, dim), not {vectors.shape}"
        )
    _require_length_1(vectors, queries.ids, "queries")
    return replace(queries, vectors=vectors)


def make_queries(folder: GalleryFolder, source: Source, request: SearchRequest) -> Queries:
    """Embed queries by the searching model, and by older ones where the request needs them."""
    state = folder.state
    searching = state.searching
    if source.embeddings is not None:
        made_by = source.embeddings.fingerprint
        if made_by != searching.fingerprint:
            raise UserError(
                f"{source.name} was made by model {made_by}, but model {searching.fingerprint} "
                "searches this gallery; embed the queries with that one"
            )
        if request.encoders != NEW_QUERY:
            raise UserError("two encoders need images as queries, not embeddings")
        vectors = source.vectors(None)
        _require_length_1(vectors, source.ids, source.name)
        return Queries(source.ids, vectors, made_by, labels=source.labels)
    embedder = folder.model(searching.fingerprint)
    if source.skip_bad:
        given = source
        source, vectors = given.readable_vectors(embedder)
        if not len(source):
            raise NoReadableImageError(given.name, len(given))
    else:
        vectors = source.vectors(embedder)
    older = {
        kind: source.vectors(folder.model(space))
        for kind, space in older_spaces(folder, state.standing, request).items()
    }
    return Queries(source.ids, vectors, searching.fingerprint, older, source.labels)


def older_spaces(
    folder: GalleryFolder, standing: Standing, request: SearchRequest
) -> dict[str, str]:
    """Return kind -> model whose queries its rows need beside those of the searching model.

    A map embeds nothing: its rows need those of the model in whose space they are.
    """
    if request.encoders == NEW_QUERY:
        return {}
    return {
        kind: folder.state.kinds[kind].space
        for kind in standing.access
        if request.with_superseded or folder.has_live(kind)
    }


def _require_length_1(vectors: NDArray[np.float32], ids: Sequence[str], name: str) -> None:
    fault = vector_fault(vectors, ids)
    if fault:
        raise UserError(f"{name}: {fault}; a query must have length 1")


# How similarities with rows of each kind become scores, as the certificates say.

RAW = ScoreMap()
# What searches older rows -> the direction of the test that says how to read the scores.
_OLDER_DIRECTIONS = {NEW_QUERY: CROSS, TWO_QUERIES: OLD_SELF, BLENDED_QUERY: BLEND}


@dataclass(frozen=True)
class Scale:
    """How similarities of a kind of rows become scores."""

    rank: ScoreMap  # puts them on the common scale of the ranking
    # puts them on the scale of the result; None if that is the scale of the ranking
    report: ScoreMap | None
    least: float | None  # similarities above it pass the wanted false accept rate


@dataclass(frozen=True)
class SearchPlan:
    """What is searched, and how: the queries and the scale for each kind of rows."""

    folder: GalleryFolder
    state: GalleryState  # who searches what
    request: SearchRequest
    kinds: Sequence[str]  # those that have rows, in the order in which they are searched

    def scales(self) -> dict[str, Scale]:
        """Return how the scores of each kind are ranked; refuse what no certificate can answer."""
        if self.request.old_scores:
            self._require_one_old_model()
        return {kind: self.scale(kind) for kind in self.kinds}

    def scale(self, kind: str) -> Scale:
        """Return how similarities with rows of a kind become scores."""
        row_kind, request, standing = self.state.kinds[kind], self.request, self.state.standing
        is_older, is_mixed = self._is_older(row_kind), len(self.kinds) > 1
        direction = _OLDER_DIRECTIONS[request.encoders] if is_older else NEW_SELF
        certificate = None
        if (is_older and is_mixed) or direction == BLEND or request.old_scores:
            certificate = self._certificate(row_kind)
        if direction == BLEND and certificate is not None:
            self._require_tested_blend(certificate)
        rank, report, least = RAW, None, None
        if is_older and is_mixed and certificate is not None:
            rank = certificate.calibration_of(direction)
        # A model that searches no older rows is the old model itself: its scale is the old one.
        if request.old_scores and direction == OLD_SELF:
            report = RAW
        elif request.old_scores and standing.access:
            if certificate is None:
                raise UserError(
                    f"no certificate says how scores of {row_kind.name} become old ones "
                    f"(old_scores); {self._how_to_record()}"
                )
            report = certificate.score_map_of(direction)
        if request.far is not None:
            least = self._threshold(row_kind, direction, request.far)
        return Scale(rank, report, least)

    def query_vectors(self, kind: str, queries: Queries) -> NDArray[np.float32]:
        """Return the queries for rows of a kind, projected into their space if need be."""
        row_kind, request = self.state.kinds[kind], self.request
        is_older = self._is_older(row_kind)
        if is_older and request.encoders == TWO_QUERIES:
            return queries.older[kind]
        searching = self.state.searching
        embedder = None
        if queries.vectors.shape[1] != row_kind.dim and searching.source != ONLY_STORED:
            embedder = self.folder.model(searching.fingerprint)
        view = query_view(embedder, queries.vectors, row_kind.dim, searching.name)
        if is_older and request.encoders == BLENDED_QUERY:
            share = self._new_share(self._certificate(row_kind))
            mixed = blended(old=queries.older[kind], new=view, alpha=share)
            return np.asarray(mixed, dtype=np.float32)
        return view

    def require_fitting(self, queries: Queries) -> None:
        """Refuse queries that are not those of the models that search these kinds of rows."""
        standing = self.state.standing
        if queries.made_by != standing.searching:
            raise OtherModelError(
                f"the queries were made by model {queries.made_by}, but model {standing.searching} "
                "searches this gallery; embed the queries with that one"
            )
        older = standing.access.keys() & set(self.kinds)
        if self.request.encoders != NEW_QUERY and not older <= queries.older.keys():
            raise OtherModelError(
                "the queries lack those by an older model whose rows are searched; embed them again"
            )

    def _is_older(self, row_kind: RowKind) -> bool:
        return row_kind.space != self.state.standing.searching

    def _certificate(self, row_kind: RowKind) -> Certificate | None:
        """Return the certificate for rows of a kind.

        For own rows it is that of the oldest other kind: of one that has rows, if any has.
        """
        access = self.state.standing.access
        if self._is_older(row_kind):
            digest = access[row_kind.fingerprint].certificate
        else:
            by_age = sorted(access.items(), key=lambda pair: pair[0] not in self.kinds)
            digest = next(filter(None, (allowed.certificate for _, allowed in by_age)), "")
        try:
            return self.folder.certificate(digest) if digest else None
        except DamagedCertificateError as error:
            raise DamagedCertificateError(
                f"{error}; record the certificate again: unibct gallery upgrade "
                f"{self.folder.path} --model {self.state.searching.name} --certificate FILE"
            ) from error

    def _threshold(self, row_kind: RowKind, direction: str, far: float) -> float:
        """Return the threshold for a kind of rows, from any certificate that knows it."""
        certificate = replace(self, kinds=())._certificate(row_kind)
        if certificate is not None:
            return certificate.threshold(direction, far)
        if direction == NEW_SELF:
            searching = self.state.standing.searching
            for known in self.folder.certificates():
                if known.new == searching:
                    return known.threshold(NEW_SELF, far)
                if known.old == searching:
                    return known.threshold(OLD_SELF, far)
        raise UserError(
            f"no certificate gives a threshold for rows of {row_kind.name}: a false accept rate "
            f"(far) needs one; {self._how_to_record()}"
        )

    def _new_share(self, certificate: Certificate | None) -> float:
        """Return the share of the searching model in blended queries."""
        if self.request.alpha is not None:
            return self.request.alpha
        return MIDPOINT if certificate is None else certificate.blend_alpha

    def _require_tested_blend(self, certificate: Certificate) -> None:
        """Refuse thresholds and old scores for a blend that the certificate has not tested."""
        asks_for_scale = self.request.far is not None or self.request.old_scores
        if asks_for_scale and self._new_share(certificate) != certificate.blend_alpha:
            raise UserError(
                "the certificate's thresholds and scales are those of blends with alpha "
                f"{certificate.blend_alpha:g}, not {self.request.alpha:g}: leave alpha out, or "
                "certify again with `unibct evaluate … --alpha`"
            )

    def _require_one_old_model(self) -> None:
        """Refuse old scores where rows would be on the scales of several old models."""
        old_models: dict[str, str] = {}
        for kind in self.kinds:
            row_kind = self.state.kinds[kind]
            if self._is_older(row_kind):
                old_models[kind] = row_kind.name
            elif certificate := self._certificate(row_kind):
                known = self.state.kinds.get(certificate.old)
                old_models[certificate.old] = certificate.old if known is None else known.name
        if len(old_models) > 1:
            raise UserError(
                f"old_scores: there are several old models, {', '.join(old_models.values())}, each "
                "with a scale of its own; give a false accept rate (far), or backfill the rows of "
                "all but one of them"
            )

    def _how_to_record(self) -> str:
        """Return how a gallery gets a certificate for the model that searches."""
        return (
            "unibct evaluate … --certify FILE writes one, unibct gallery upgrade "
            f"{self.folder.path} --model {self.state.searching.name} --certificate FILE records it"
        )


def planned_search(
    folder: GalleryFolder, state: GalleryState, request: SearchRequest
) -> SearchPlan:
    """Return the kinds that have rows to search, in the order in which they are searched.

    Older rows come first, then mapped ones, then the searching model's own: a row that a backfill
    replaces meanwhile is then found twice, not never. A rollback brings older rows back, so while
    one is under way they come last.
    """

    def has_rows(kind: str) -> bool:
        if request.with_superseded:
            return folder.engine.count(kind).rows > 0
        return folder.has_live(kind)

    standing = state.standing
    kinds = searchable_kinds(state, standing)
    if len(kinds) > 1:
        order = (OLDER_ROW, MAPPED_ROW, OWN_ROW)
        is_going_back = any(step.action == ROLLBACK and not step.done for step in state.steps)
        kinds.sort(key=lambda kind: order.index(row_type(state.kinds[kind], standing)))
        if is_going_back:
            kinds.reverse()
        kinds = [kind for kind in kinds if has_rows(kind)]
    return SearchPlan(folder, state, request, kinds)


# The search itself.


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
            planned_search(folder, folder.state, request).scales()  # refuses before embedding
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

    The queries are by that model; those of another one are refused. By default as things stand now.
    """
    for _ in range(_TRIES):
        state = folder.state
        searched = replace(state, standing=standing or state.standing)
        plan = planned_search(folder, searched, request)
        plan.require_fitting(queries)
        hit_lists = _search_once(plan, queries)
        # While a step is under way, the first row of a kind may have come in between.
        is_same = state.unfinished is None or planned_search(folder, searched, request) == plan
        if is_same and folder.state is state:  # otherwise an upgrade or a rollback came
            return hit_lists
    raise UserError(f"{folder.path} keeps changing; try again")


def _search_once(plan: SearchPlan, queries: Queries) -> list[list[Hit]]:
    request = plan.request
    merged: list[dict[str, tuple[float, Hit]]] = [{} for _ in queries.ids]
    # The newest find of an id stays.
    for kind, scale in plan.scales().items():
        vectors = plan.query_vectors(kind, queries)
        search = Search(request.k, request.where, request.approximate, request.with_superseded)
        rows_by_query = plan.folder.engine.search(kind, vectors, search)
        row = row_type(plan.state.kinds[kind], plan.state.standing)
        for hits, rows in zip(merged, rows_by_query, strict=True):
            for rank, hit in _hits(rows, scale, kind, row):
                if scale.least is None or hit.similarity > scale.least:
                    hits[hit.id] = (rank, hit)
    best = [
        sorted(hits.values(), key=lambda pair: (-pair[0], pair[1].id))[: request.k]
        for hits in merged
    ]
    least = -np.inf if request.threshold is None else request.threshold
    return [[hit for _, hit in hits if hit.score >= least] for hits in best]


def _hits(rows: list[Found], scale: Scale, kind: str, row: str) -> list[tuple[float, Hit]]:
    """Return each row's place on the scale of the ranking, and the hit."""
    similarities = [f.similarity for f in rows]
    ranks = similarities if scale.rank == RAW else scale.rank(similarities).tolist()
    scores = ranks if scale.report is None else scale.report(similarities).tolist()
    return [
        (rank, Hit(f.id, f.label, score, kind, f.similarity, row, user_metadata(f.metadata)))
        for rank, score, f in zip(ranks, scores, rows, strict=True)
    ]


# What a search says about itself.


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
    held = [] if far is None else folder.certificates()
    if any(far in one.rough_fars for one in held if searching in (one.new, one.old)):
        progress.note(
            f"the threshold for the false accept rate {far:g} is rough: the test of its "
            "certificate has too few classes to measure it"
        )
    if request.threshold is None or not request.old_scores:
        return
    for scale in planned_search(folder, folder.state, request).scales().values():
        if scale.report is not None and request.threshold > scale.report.reach:
            progress.note(
                f"the threshold {request.threshold:g} is above {scale.report.reach:.4g}, where "
                "fewer than ten impostor pairs of the certificate's score map are: its false "
                "accept rate is a guess; a false accept rate (far) takes measured thresholds"
            )
            return

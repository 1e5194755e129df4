"""Queries as vectors, made by each model whose query the rows need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from unibct.data.checked_set import NoReadableImageError
from unibct.errors import UserError
from unibct.evaluation.blending import blended
from unibct.gallery.gallery_folder import ONLY_STORED, GalleryFolder, query_view
from unibct.gallery.score_scales import blend_share, certificate_for
from unibct.gallery.search_request import BLENDED_QUERY, NEW_QUERY, TWO_QUERIES, SearchRequest
from unibct.gallery.sources import Source, vector_fault
from unibct.gallery.state import RowMaker, Standing


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
    fault = vector_fault(vectors, queries.ids)
    if fault:
        raise UserError(f"queries: {fault}; a query must have length 1")
    return replace(queries, vectors=vectors)


def make_queries(folder: GalleryFolder, source: Source, request: SearchRequest) -> Queries:
    """Embed queries by the searching model, and by older ones where the request needs them.

    Args:
        folder: the gallery.
        source: images or embeddings.
        request: what is searched for.
    """
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
        vectors = source.vectors(None)
        fault = vector_fault(vectors, source.ids)
        if fault:
            raise UserError(f"{source.name}: {fault}; a query must have length 1")
    else:
        embedder = folder.model(searching.fingerprint).embedder
        if source.skip_bad:
            given = source
            source, vectors = given.readable_vectors(embedder)
            if not len(source):
                raise NoReadableImageError(given.name, len(given))
        else:
            vectors = source.vectors(embedder)
        if request.encoders != NEW_QUERY:
            for kind in state.standing.access:
                if not (request.with_superseded or folder.has_live(kind)):
                    continue
                model = folder.model(state.makers[kind].space).embedder  # a map embeds nothing
                older[kind] = source.vectors(model)
    return Queries(source.ids, vectors, searching.fingerprint, older, source.labels)


def require_fitting(
    queries: Queries, standing: Standing, request: SearchRequest, kinds: Sequence[str]
) -> None:
    """Refuse queries that are not those of the models that search these kinds of rows."""
    if queries.made_by != standing.searching:
        raise OtherModelError(
            f"the queries were made by model {queries.made_by}, but model {standing.searching} "
            "searches this gallery; embed the queries with that one"
        )
    older = standing.access.keys() & set(kinds)
    if request.encoders != NEW_QUERY and not older <= queries.older.keys():
        raise OtherModelError(
            "the queries lack those by an older model whose rows are searched; embed them again"
        )


def query_vectors(
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
        share = blend_share(certificate_for(folder, standing, maker), request)
        return np.asarray(blended(old=old, new=view, alpha=share), dtype=np.float32)
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

"""The gate of a step: known queries that found their mates before it must find them after it.

A few rows are kept as known queries, as images where there are images. A query finds a mate if its
own row, or another row with its label, is among the first ten of an exact search. Most known
queries are pictures of rows themselves. That they find their mates says that queries and rows are
in one space; it does not say how well new pictures are found.

A wrong model or a map that is applied the wrong way round passes every count and finds nothing;
here it is stopped, if a known query tests the step: one that found a mate before and can be asked
after it. Where there are few labels, a row has the right one by chance, and the gate proves little.
Without an image, or a vector by the searching model, it cannot be asked. If none tests
an upgrade, a backfill or a rollback, the step says so.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.data.decoding import UnreadableImageError, decode, encode_png
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.files import atomic_file, mapped_array, read_json, write_json
from unibct.gallery.gallery_folder import ONLY_STORED, DamagedCertificateError, GalleryFolder
from unibct.gallery.rows import GalleryRows, searchable_kinds
from unibct.gallery.search import Hit, Queries, SearchPlan, search_gallery
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import Source, vector_fault
from unibct.gallery.state import Standing
from unibct.models.embedder import Embedder

KNOWN_FOLDER = "known"
LIST_FILE = "queries.json"
USUAL_COUNT = 32
WHY_UNTESTED = "none found a mate before it and can be asked after it"
_FIRST_ROWS = 10
_MAY_BE_LOST = 0.1  # share of the known queries that test a step


@dataclass(frozen=True)
class KnownQuery:
    """A query whose mate is known."""

    id: str  # of its row
    label: str | None  # of its row
    image: str  # the name of its image file in the gallery; empty if only vectors are known
    # it was made from a row; otherwise it is the user's own, and rows with its label are its mates
    has_row: bool = True


@dataclass(frozen=True)
class FoundMates:
    """Which known queries find their mates."""

    asked_ids: frozenset[str]  # of those whose own rows can be searched
    successful_ids: frozenset[str]  # of those that find a mate

    def allows(self, after: "FoundMates") -> bool:
        """Return whether almost all queries that test a step find their mates after it.

        So it does if none tests it: see ``note_untested``.
        """
        return len(self._lost(after)) <= _MAY_BE_LOST * len(self.testing(after))

    def testing(self, after: "FoundMates") -> frozenset[str]:
        """Return the queries that test a step: they found mates before, and are asked after it."""
        return self.successful_ids & after.asked_ids

    def refusal(self, after: "FoundMates", step: str) -> UserError:
        """Return the error for a step after which known queries find nothing any more."""
        lost = sorted(self._lost(after))
        return UserError(
            f"{step} was undone: {len(lost)} of {len(self.testing(after))} known queries no "
            f"longer find their mates among the first {_FIRST_ROWS} rows, first {lost[0]!r} (a "
            f"tenth may be lost); check what was given: the model, the images, the ids"
        )

    def _lost(self, after: "FoundMates") -> frozenset[str]:
        return self.testing(after) - after.successful_ids


def note_untested(folder: GalleryFolder, before: FoundMates, after: FoundMates, step: str) -> None:
    """Say so if no known query tests a step: that it passed the gate means nothing then."""
    if not before.testing(after):
        progress.note(f"no known query has tested {step}: {WHY_UNTESTED}")


def read_known_queries(folder: Path) -> list[KnownQuery]:
    """Return the known queries of a gallery."""
    path = folder / KNOWN_FOLDER / LIST_FILE
    if not path.is_file():
        return []
    try:
        return [KnownQuery(**entry) for entry in read_json(path)]
    except (UserError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}): put it back from a backup, or remove it; then no known "
            "query is asked until the next add keeps new ones"
        ) from error


def keep_queries(
    folder: GalleryFolder,
    source: Source,
    count: int,
    *,
    images: bool,
    rows: bool = True,
    model: Embedder | None = None,
) -> None:
    """Keep some rows of a source as known queries, spread over them, until there are ``count``.

    The gallery has these rows, unless they are queries of the user's own (``rows`` is False). With
    images any model can be asked; where they are not kept, vectors by the model that searches now
    are.
    """
    known = read_known_queries(folder.path)
    ids = {query.id for query in known}
    places = [place for place in range(len(source)) if source.ids[place] not in ids]
    wanted = min(count - len(known), len(places))
    if wanted <= 0:
        return
    spread: list[int] = np.linspace(0, len(places) - 1, wanted).astype(int).tolist()
    chosen = source.select(sorted({places[place] for place in spread}))
    names = _free_names(known)
    for place, row_id in enumerate(chosen.ids):
        image = ""
        if images and chosen.images is not None:
            image = next(names)
            with atomic_file(folder.path / KNOWN_FOLDER / image) as temporary:
                temporary.write_bytes(encode_png(_read(chosen, row_id)))
        known.append(KnownQuery(row_id, chosen.labels[place], image, rows))
    if chosen.embeddings is not None:
        _remember_vectors(folder, chosen.embeddings.fingerprint, chosen.ids, chosen.vectors(None))
    elif not images and model is not None and not isinstance(model, StoredEmbeddings):
        with progress.silenced():
            _remember_vectors(folder, model.fingerprint, chosen.ids, chosen.vectors(model))
    _write(folder.path, known)


def _read(source: Source, row_id: str) -> Any:
    assert source.images is not None
    try:
        return source.images.read(row_id)
    except UnreadableImageError as error:
        raise UserError(
            f"{source.name}: {row_id} cannot be read ({error}); repair it, or leave it out with "
            "skip_bad"
        ) from error


def damaged_queries(folder: GalleryFolder) -> list[str]:
    """Return which files of known queries cannot be read, one line each."""
    place = folder.path / KNOWN_FOLDER
    problems: list[str] = []
    try:
        known = read_known_queries(folder.path)
    except UserError as error:
        known = []
        problems.append(str(error))
    for query in known:
        if query.image and (place / query.image).is_file():
            try:
                _kept_image(place / query.image)
            except UserError as error:
                problems.append(str(error))
    for path in sorted(place.glob("*.npy")):
        try:
            _read_vectors(folder, path)
        except UserError as error:
            problems.append(str(error))
    return problems


def _kept_image(path: Path) -> Any:
    try:
        return decode(path.read_bytes())
    except UnreadableImageError as error:
        raise UserError(
            f"{path} is damaged ({error}): put it back from a backup, or remove it; its known "
            "query is not asked then"
        ) from error


def drop_queries(folder: GalleryFolder, ids: Sequence[str]) -> None:
    """Forget known queries, with their images and vectors; may be repeated after a kill."""
    gone = set(ids)
    known = read_known_queries(folder.path)
    stays = [query for query in known if query.id not in gone]
    if len(stays) < len(known):
        _write(folder.path, stays)  # first: a query of the list has its image
    images = {query.image for query in stays}
    for path in (folder.path / KNOWN_FOLDER).glob("*.png"):
        if path.name not in images:
            path.unlink()
    for path in (folder.path / KNOWN_FOLDER).glob("*.npy"):
        _drop_vectors(folder, path, stays, gone)


def _drop_vectors(
    folder: GalleryFolder, path: Path, known: Sequence[KnownQuery], gone: set[str]
) -> None:
    """Forget the vectors of some known queries by one model, and all that are damaged for good."""
    try:
        vectors = _known_vectors(folder, known, path.stem)
    except UserError as error:
        progress.note(f"known queries lose their vectors by {path.stem}: {error}")
        vectors = dict.fromkeys(gone, np.empty(0, dtype=np.float32))
    stays = {row_id: vector for row_id, vector in vectors.items() if row_id not in gone}
    if len(stays) < len(vectors):
        _write_vectors(path, stays)


def found_mates(
    folder: GalleryFolder, standing: Standing | None = None, *, with_superseded: bool = False
) -> FoundMates:
    """Search with the known queries, and return which of them find their mates.

    By default as things stand now; with replaced rows too, it is as after a rollback.
    """
    standing = standing or folder.state.standing
    asked, queries = queries_to_ask(folder, standing, with_superseded=with_superseded)
    if queries is None:
        return FoundMates(frozenset(), frozenset())
    request = SearchRequest(k=_FIRST_ROWS, with_superseded=with_superseded)  # exact
    hits = search_gallery(folder, queries, request, standing)
    successful = {
        query.id
        for query, row in zip(asked, hits, strict=True)
        if any(_is_mate(query, hit) for hit in row)
    }
    return FoundMates(frozenset(queries.ids), frozenset(successful))


def found_mates_before(folder: GalleryFolder, step: str) -> FoundMates:
    """Ask the known queries before a step that lets others search.

    If a certificate is damaged without which nothing can be searched now, none of them is asked:
    the step may be the way out.
    """
    try:
        return found_mates(folder)
    except DamagedCertificateError as error:
        progress.note(f"known queries cannot be asked before {step}: {error}")
        return FoundMates(frozenset(), frozenset())


def queries_to_ask(
    folder: GalleryFolder, standing: Standing | None = None, *, with_superseded: bool = False
) -> tuple[list[KnownQuery], Queries | None]:
    """Return the known queries that can be asked, and their vectors; None if there are none.

    The arguments are those of ``ask``.
    """
    known = read_known_queries(folder.path)
    standing = standing or folder.state.standing
    vectors = _vectors(folder, known, standing.searching)
    here = _searchable_ids(folder, standing, sorted(vectors), with_superseded=with_superseded)
    asked = [q for q in known if q.id in here or (q.id in vectors and not q.has_row)]
    if not asked:
        return [], None
    stacked = np.stack([vectors[query.id] for query in asked])
    return asked, Queries(tuple(query.id for query in asked), stacked, standing.searching)


def _searchable_ids(
    folder: GalleryFolder, standing: Standing, ids: Sequence[str], *, with_superseded: bool
) -> set[str]:
    """Return those ids that have a row which may be searched."""
    here: set[str] = set()
    for kind in searchable_kinds(folder.state, standing):
        rows = folder.engine.read(kind, ids, vectors=False)
        marks = zip(rows.ids, rows.superseded, strict=True)
        here |= {row_id for row_id, mark in marks if with_superseded or not mark}
    return here


def _is_mate(query: KnownQuery, hit: Hit) -> bool:
    same_label = query.label is not None and hit.label == query.label
    return same_label or (query.has_row and hit.id == query.id)


def _vectors(
    folder: GalleryFolder, known: Sequence[KnownQuery], fingerprint: str
) -> dict[str, NDArray[np.float32]]:
    """Return id -> vector by a model; made from the kept images if they are not known yet."""
    vectors = _known_vectors(folder, known, fingerprint)
    row_kind = folder.state.kinds.get(fingerprint)
    files = {q.id: folder.path / KNOWN_FOLDER / q.image for q in known if q.image}
    missing = [i for i, file in files.items() if i not in vectors and file.is_file()]
    if missing and row_kind is not None and row_kind.source != ONLY_STORED:
        images: list[Any] = [_kept_image(files[row_id]) for row_id in missing]
        embedded = np.asarray(folder.model(fingerprint).embed(images), dtype=np.float32)
        vectors |= dict(zip(missing, embedded, strict=True))
    return vectors


def _known_vectors(
    folder: GalleryFolder, known: Sequence[KnownQuery], fingerprint: str
) -> dict[str, NDArray[np.float32]]:
    """Return id -> vector by a model that are kept.

    Damaged ones are taken from their rows again.
    """
    path = folder.path / KNOWN_FOLDER / f"{fingerprint}.npy"
    try:
        return _read_vectors(folder, path)
    except UserError as error:
        wanted = [query for query in known if not query.image]
        with_row = [query.id for query in wanted if query.has_row]
        rows = folder.engine.read(fingerprint, with_row)
        if len(rows) < len(wanted):
            raise
        progress.note(f"vectors of known queries are taken from their rows again: {error}")
        vectors = dict(zip(rows.ids, rows.vectors, strict=True))
        _write_vectors(path, vectors)
        return vectors


def _read_vectors(folder: GalleryFolder, path: Path) -> dict[str, NDArray[np.float32]]:
    if not path.is_file():
        return {}
    try:
        ids, vectors = read_json(path.with_suffix(".json")), np.array(mapped_array(path))
        row_kind = folder.state.kinds.get(path.stem)
        dim = vectors.shape[-1] if row_kind is None else row_kind.dim
        if vectors.shape != (len(ids), dim) or vectors.dtype != np.float32:
            raise UserError(f"it has not one vector of dimension {dim} for each id beside it")
        fault = vector_fault(vectors, ids)
        if fault:
            raise UserError(fault)
    except (UserError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}): put it back from a backup, or remove it; the known "
            "queries whose vectors it holds are not asked then"
        ) from error
    return dict(zip(ids, vectors, strict=True))


def _remember_vectors(
    folder: GalleryFolder, fingerprint: str, ids: Sequence[str], vectors: NDArray[np.float32]
) -> None:
    path = folder.path / KNOWN_FOLDER / f"{fingerprint}.npy"
    earlier: dict[str, NDArray[np.float32]] = {}
    if path.is_file():
        earlier = _known_vectors(folder, read_known_queries(folder.path), fingerprint)
    _write_vectors(path, earlier | dict(zip(ids, vectors, strict=True)))


def _write_vectors(path: Path, vectors: Mapping[str, NDArray[np.float32]]) -> None:
    path.unlink(missing_ok=True)  # a kill now loses known queries, and never mixes them up
    if not vectors:
        path.with_suffix(".json").unlink(missing_ok=True)
        return
    write_json(path.with_suffix(".json"), list(vectors))
    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, np.stack(list(vectors.values())), allow_pickle=False)


def _free_names(known: Sequence[KnownQuery]) -> Iterator[str]:
    """Yield names of image files that no known query uses."""
    used = {query.image for query in known}
    names = (f"{number:04}.png" for number in itertools.count())
    return (name for name in names if name not in used)


def _write(folder: Path, known: Sequence[KnownQuery]) -> None:
    write_json(folder / KNOWN_FOLDER / LIST_FILE, [vars(query) for query in known])


# The gate for single rows that come or go: known queries are asked only if these can matter.
#
# A row that a query ranks below the query's own row decides nothing. If the own row is among the
# first rows, it stays there; if it is not, the other one is not either. So the vectors of a few
# rows say whether a step can change what a query finds by exact search, and a small step does not
# need a search through all rows. Each calibration is strictly monotone, so this also holds if the
# step brings the first row of a kind, or takes the last one.

_ROUNDING = 1e-4  # more than similarities of two engines differ by


@dataclass(frozen=True)
class _QueryRows:
    """The rows of known queries that are of one kind."""

    kind: str  # of the rows
    places: NDArray[np.int64]  # of their queries
    similarities: NDArray[np.float32]  # of each query and its row


class RowChangeCheck:
    """Asks the known queries before and after a step that adds or removes rows, if need be."""

    def __init__(self, folder: GalleryFolder) -> None:
        """Look up what is known before the step; needs the lock."""
        self._folder = folder
        self._before: FoundMates | None = None
        self._ids = {query.id for query in read_known_queries(folder.path)}
        asked, self._queries = queries_to_ask(folder)
        self._is_certain = all(query.has_row for query in asked)
        self._query_rows = [] if self._queries is None else self._read(self._queries)

    def expect(self, kind: str, rows: GalleryRows) -> None:
        """Ask the known queries now, if rows that are about to come or go can matter to them."""
        if self._before is None and self._can_matter(kind, rows):
            self._before = found_mates(self._folder)

    def refusal(self, step: str) -> UserError | None:
        """Return why the step must be undone; None if almost all queries still find their mates.

        None as well if no query was asked: there is none, or the rows cannot matter to any.
        """
        if self._before is None:
            return None
        after = found_mates(self._folder)
        return None if self._before.allows(after) else self._before.refusal(after, step)

    def _can_matter(self, kind: str, rows: GalleryRows) -> bool:
        """Return whether any known query may rank one of these rows as high as its own row."""
        live = rows.live()
        if not len(live) or not self._folder.state.searchable(kind):
            return False
        if not self._is_certain or not self._ids.isdisjoint(live.ids):
            return True
        if self._queries is None:
            return False
        state = self._folder.state
        filled = filter(self._folder.has_live, searchable_kinds(state, state.standing))
        kinds = [*dict.fromkeys((*filled, kind))]
        similarities = self._plan().query_vectors(kind, self._queries) @ live.vectors.T
        highest = self._ranks(kind, kinds, similarities.max(axis=1) + _ROUNDING)
        return any(
            (
                highest[known.places]
                >= self._ranks(known.kind, kinds, known.similarities - _ROUNDING)
            ).any()
            for known in self._query_rows
        )

    def _read(self, queries: Queries) -> list[_QueryRows]:
        """Return the live rows of the known queries."""
        state = self._folder.state
        position = {row_id: place for place, row_id in enumerate(queries.ids)}
        result: list[_QueryRows] = []
        for kind in searchable_kinds(state, state.standing):
            rows = self._folder.engine.read(kind, queries.ids).live()
            if len(rows):
                places = np.array([position[row_id] for row_id in rows.ids], dtype=np.int64)
                vectors = self._plan().query_vectors(kind, queries)[places]
                similarities = np.einsum("ij,ij->i", vectors, rows.vectors)
                result.append(_QueryRows(kind, places, similarities))
        return result

    def _plan(self, kinds: Sequence[str] = ()) -> SearchPlan:
        """Return an exact search over these kinds."""
        return SearchPlan(self._folder, self._folder.state, SearchRequest(), kinds)

    def _ranks(
        self, kind: str, kinds: Sequence[str], similarities: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return similarities on the scale of a ranking of these kinds."""
        return self._plan(kinds).scale(kind).rank(similarities)

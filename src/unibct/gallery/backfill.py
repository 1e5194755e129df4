"""Vectors of rows that are there, made once more: by another model, from the same images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.errors import UserError
from unibct.gallery.adding import (
    read_once,
    require_made_by,
    require_same_images,
    require_usable,
    usable_vectors,
)
from unibct.gallery.gallery_folder import BY_MAP, GalleryBusyError, GalleryFolder
from unibct.gallery.indexing import measure_recall, rebuild_spoilt
from unibct.gallery.known_queries import FoundMates, found_mates, note_untested
from unibct.gallery.orders import MOST_FOUND, RANDOM, ordered_rows
from unibct.gallery.rows import (
    OLDER_ROW,
    GalleryRows,
    Metadata,
    require_id_list,
    sealed_rows,
    searchable_kinds,
)
from unibct.gallery.search import Hit
from unibct.gallery.sources import Source, note_left_out
from unibct.gallery.state import BACKFILL, BY_SEARCHES, FINISH, ROLLBACK, RowKind, Step
from unibct.gallery.steps import complete_finish, complete_rollback, end_interrupted_steps, end_step
from unibct.maps.space_map import FORWARD, SpaceMap, load_map
from unibct.models.embedder import Embedder, ImageEmbedder


def vectors_again(
    source: Source, stored: Mapping[str, Metadata], model: Embedder | None
) -> tuple[Source, NDArray[np.float32]]:
    """Return the rows that can be made again, and their vectors: (rows, dim).

    Images that are not those that were added are refused: ``stored`` is id -> metadata of the row.
    The model is None if there are embeddings.
    """
    vectors, digests = None, dict[str, str]()
    if source.images is not None:
        assert model is not None
        images, digests = read_once(source, cast(ImageEmbedder, model))
        source = replace(source, images=images).only(digests)
    if source.skip_bad:
        assert model is not None
        with progress.silenced():
            source, vectors = source.readable_vectors(model)
    metadata = [stored[row_id] for row_id in source.ids]
    require_same_images(source, digests, metadata)
    if vectors is None:
        return usable_vectors(source, model)
    require_usable(vectors, source)
    return source, vectors


# Embedding rows again while search goes on: all of them, a share, or those that are asked for.
#
# Each batch is durable, so a backfill may be stopped and continued at any time. The old vectors
# stay beside the new ones until ``finish_backfill``; until then it can be undone.

PAUSE_FILE = "pause"
_BATCH = 512
_CHECKS = 10  # how often a backfill asks the known queries


@dataclass(frozen=True)
class BackfillRequest:
    """Which rows are embedded again."""

    share: float = 1.0  # of all searchable rows that are the searching model's own in the end
    ids: Sequence[str] | None = None  # only these rows; None for all
    order: str = RANDOM  # which rows come first, a name from `ORDERS`
    seed: int = 0  # of the random order
    by_searches: bool = False  # these rows were found by searches

    def __post_init__(self) -> None:
        """Refuse what is no share, a text that is no list, and a share that has no effect."""
        if not 0 < self.share <= 1:
            raise UserError(f"a share lies above 0 and is at most 1, not {self.share:g}")
        if self.ids is not None:
            require_id_list(self.ids)
            if self.share < 1:
                raise UserError("a share has no effect on named rows: give ids or a share")


@dataclass(frozen=True)
class Backfilled:
    """What a backfill has done."""

    step: int  # its number; 0 if no row was written
    rows: int  # embedded again by this call
    rows_in_space: int  # rows in the searching model's space now
    total: int  # searchable rows
    missing: int = 0  # rows that were wanted, but have no image in DATA
    first_missing: str = ""  # the id of the first of them
    # rows whose images cannot be read; they stay as they are, and the next backfill tries them
    # again
    skipped: int = 0
    paused: bool = False  # it was stopped; the same command continues it
    # (share of rows in that space, share of known queries that find a mate)
    curve: tuple[tuple[float, float], ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        values = {"own" if name == "rows_in_space" else name: v for name, v in vars(self).items()}
        return values | {"share": self.rows_in_space / self.total if self.total else 1.0}


class BackfillSource:
    """Where the searching model's vectors of older rows come from: images, vectors, or a map."""

    def __init__(self, folder: GalleryFolder, given: Source | SpaceMap, name: str = "") -> None:
        self._folder = folder
        self._given = given
        self.skipped: list[str] = []  # ids of rows whose images cannot be read
        state = folder.state
        if isinstance(given, SpaceMap):
            if given.direction != FORWARD or given.target != state.standing.searching:
                raise UserError(
                    f"{name} does not lead into the space of {state.searching.name}; fit a map "
                    "with unibct adapt --direction forward"
                )
            if given.source not in state.kinds:
                names = ", ".join(f"{m.name} ({f})" for f, m in state.kinds.items())
                raise UserError(
                    f"{name} maps rows of model {given.source}, and this gallery has none; it has "
                    f"rows of {names}"
                )
            dim = state.searching.dim
            self.row_kind = RowKind(given.fingerprint, name, dim, BY_MAP, name, given.target)
            self.ids = None
            self.kinds = [given.source]
            return
        self.row_kind = state.searching  # of the rows to come
        if given.embeddings is not None:
            require_made_by(given, self.row_kind)
        # the rows that it can make; None for all
        self.ids = {row_id: place for place, row_id in enumerate(given.ids)}
        kinds = searchable_kinds(state, state.standing)
        self.kinds = [kind for kind in kinds if kind != self.row_kind.fingerprint]

    def vectors_of(self, rows: GalleryRows) -> tuple[GalleryRows, NDArray[np.float32]]:
        """Return those older rows that can be made again, and their new vectors."""
        given = self._given
        if isinstance(given, SpaceMap):
            return rows, np.asarray(given.vector_map(rows.vectors), dtype=np.float32)
        assert self.ids is not None
        part = given.select([self.ids[row_id] for row_id in rows.ids])
        embedder = None
        if part.images is not None:
            embedder = self._folder.model(self.row_kind.fingerprint)
        stored = dict(zip(rows.ids, rows.metadata, strict=True))
        part, vectors = vectors_again(part, stored, embedder)
        made = set(part.ids)
        self.skipped += [row_id for row_id in rows.ids if row_id not in made]
        return rows.only(made), vectors

    def note_skipped(self) -> None:
        """Say which images could not be read."""
        if isinstance(self._given, Source):
            note_left_out(self._given.name, self.skipped)


def backfill_gallery(
    folder: GalleryFolder, given: Source | Path, request: BackfillRequest
) -> Backfilled:
    """Embed rows of older models again, or map them.

    Given are the images of the rows, their embeddings by the searching model, or the folder of a
    forward map.
    """
    with folder.writing():
        end_interrupted_steps(folder)
        (folder.path / PAUSE_FILE).unlink(missing_ok=True)
        source = load_map(given) if isinstance(given, Path) else given
        name = str(given) if isinstance(given, Path) else ""
        origin = BackfillSource(folder, source, name)
        wanted = _wanted(folder, origin, request)
        usable = [i for i in wanted if origin.ids is None or i in origin.ids]
        missing = [] if len(usable) == len(wanted) else sorted(set(wanted) - set(usable))
        if wanted and not usable:
            raise UserError(
                f"none of the {len(wanted):,} rows of older models is in the given data, such as "
                f"{wanted[0]!r}; ids must be the same as when the rows were added"
            )
        goal = _goal(folder, request, origin, len(usable))
        if goal == 0:
            return Backfilled(0, 0, *_shares(folder))
        recall = measure_recall(folder)
        with _Run(folder, origin, request) as run:
            done = run.through(usable, goal)
        rebuild_spoilt(folder, recall)
        in_space, total = _shares(folder)
    origin.note_skipped()
    if goal < len(usable) - len(origin.skipped):
        missing = []  # the share was reached without them
    first = missing[0] if missing else ""
    return replace(
        done, rows_in_space=in_space, total=total, missing=len(missing), first_missing=first
    )


def continued_backfill(folder: GalleryFolder, origin: BackfillSource, ids: Sequence[str]) -> int:
    """Embed some rows again in a backfill that stays open, and return how many.

    No interrupted step is left.
    """
    made = 0
    with _Run(folder, origin, BackfillRequest(order=MOST_FOUND, by_searches=True)) as run:
        for start in range(0, len(ids), _BATCH):
            made += run.write_again(ids[start : start + _BATCH])
    origin.note_skipped()
    return made


class _Run:
    """One stretch of a backfill; if it writes no row, no step is left of it."""

    def __init__(
        self, folder: GalleryFolder, origin: BackfillSource, request: BackfillRequest
    ) -> None:
        self._folder = folder
        self._origin = origin
        first_new = folder.state.next_number
        self._step = step = _begun(folder, request, origin)
        self._is_empty = step.number >= first_new
        self._curve: list[tuple[float, float]] = [tuple(p) for p in step.details.get("curve", [])]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_empty:  # there is no row with the number of this step
            self._folder.save(self._folder.state.without_step(self._step.number))

    def through(self, ids: Sequence[str], goal: int) -> Backfilled:
        """Embed rows again, batch by batch, until there are enough or a pause is asked for.

        The goal is how many of these rows; in place of one with an unreadable image the next one
        comes.
        """
        folder, number = self._folder, self._step.number
        before = found_mates(folder)
        note_untested(folder, before, before, "the backfill")
        self._note(before)
        seen, done, last_check = 0, 0, 0
        pause = folder.path / PAUSE_FILE
        with progress.task("backfill", goal, "rows") as advance:
            while done < goal and seen < len(ids) and not pause.exists():
                batch = ids[seen : seen + min(_BATCH, goal - done)]
                made = self.write_again(batch)
                seen, done = seen + len(batch), done + made
                advance(made)
                is_last = done == goal or seen == len(ids)
                if (done - last_check) * _CHECKS >= goal or is_last:
                    last_check = done
                    self._require(before)
        paused = done < goal and seen < len(ids)
        pause.unlink(missing_ok=True)
        if paused:
            details = {"curve": self._curve}
            folder.save(folder.state.changed_step(number, details=details))
        else:
            end_step(folder, number, curve=self._curve)
        skipped, curve = len(self._origin.skipped), tuple(self._curve)
        number = 0 if self._is_empty else number
        return Backfilled(number, done, 0, 0, skipped=skipped, paused=paused, curve=curve)

    def write_again(self, ids: Sequence[str]) -> int:
        """Write the new vectors of some rows, mark the old ones, and return how many they are."""
        folder, row_kind = self._folder, self._origin.row_kind
        is_map = row_kind.source == BY_MAP
        left, written = set(ids), 0
        for kind in reversed(self._origin.kinds):
            rows = folder.engine.read(kind, [i for i in ids if i in left], vectors=is_map).live()
            if not len(rows):
                continue
            left -= set(rows.ids)
            rows, vectors = self._origin.vectors_of(rows)
            if not len(rows):
                continue
            sealed = sealed_rows(
                row_kind.fingerprint,
                rows.ids,
                rows.labels,
                rows.metadata,
                vectors,
                self._step.number,
            )
            self._is_empty = False
            folder.engine.write(row_kind.fingerprint, sealed, supersedes=[kind])
            written += len(rows)
        return written

    def _require(self, before: FoundMates) -> None:
        """Undo the whole backfill if too many known queries no longer find their mates."""
        after = found_mates(self._folder)
        self._note(after)
        if not before.allows(after):
            # As a rollback, so that searches meanwhile know that older rows come back.
            state = self._folder.save(self._folder.state.begun(ROLLBACK, to=self._step.number))
            complete_rollback(self._folder, state.steps[-1])
            raise before.refusal(after, "the backfill")

    def _note(self, passage: FoundMates) -> None:
        in_space, total = _shares(self._folder)
        if passage.asked_ids and total:
            self._curve.append(
                (in_space / total, len(passage.successful_ids) / len(passage.asked_ids))
            )


def pause_backfill(folder: GalleryFolder) -> None:
    """Ask a backfill that runs in another process to stop after its batch."""
    if folder.state.open_backfill is None:
        raise UserError(f"no backfill of {folder.path} is under way")
    (folder.path / PAUSE_FILE).touch()


def finish_backfill(folder: GalleryFolder) -> int:
    """Delete the old vectors of rows that have new ones, and return how many they were.

    After that, a rollback to before the backfill needs the images. One that was interrupted is
    completed.
    """
    with folder.writing():
        step = folder.state.interrupted(FINISH)
        end_interrupted_steps(folder)
        if step is None:
            unfinished = folder.state.unfinished
            if unfinished is not None:
                _end_open(folder, unfinished)
            counts = [folder.engine.count(kind) for kind in folder.engine.kinds()]
            deleted = sum(count.rows - count.live for count in counts)
            step = folder.save(folder.state.begun(FINISH, deleted=deleted)).steps[-1]
            complete_finish(folder, step)
        return int(folder.state.step(step.number).details["deleted"])


def _begun(folder: GalleryFolder, request: BackfillRequest, origin: BackfillSource) -> Step:
    """Return the step of this backfill: one that was stopped is continued.

    Rows that searches find belong to a backfill that is paused, or else to a step of their own,
    which can be undone by itself.
    """
    step = folder.state.unfinished
    row_kind = origin.row_kind.fingerprint
    if step is not None:
        can_join = request.by_searches or not step.details.get(BY_SEARCHES)
        if can_join and step.details.get("model") == row_kind:
            return step
        _end_open(folder, step)
    folder.add_kind(origin.row_kind)
    details = {"model": row_kind, "order": request.order, "share": request.share}
    details |= {BY_SEARCHES: True} if request.by_searches else {}
    return folder.save(folder.state.begun(BACKFILL, **details)).steps[-1]


def _end_open(folder: GalleryFolder, step: Step) -> None:
    """End a backfill that is open; one by searches was never meant to have an end."""
    end_step(folder, step.number, stopped=not step.details.get(BY_SEARCHES))


def _wanted(folder: GalleryFolder, origin: BackfillSource, request: BackfillRequest) -> list[str]:
    """Return the older rows that are to be embedded again, in their order."""
    kinds = [kind for kind in origin.kinds if kind in folder.engine.kinds()]
    order = ordered_rows(folder, kinds, request.order, request.seed)
    if request.ids is None:
        return order
    chosen = set(request.ids)
    unknown = chosen - set(order)
    known = {
        i
        for kind in folder.engine.kinds()
        for i in folder.engine.read(kind, sorted(unknown), vectors=False).ids
    }
    if unknown - known:
        raise UserError(f"{min(unknown - known)!r} is no row of this gallery")
    return [row_id for row_id in order if row_id in chosen]


def _goal(
    folder: GalleryFolder, request: BackfillRequest, origin: BackfillSource, usable: int
) -> int:
    """Return how many rows to embed again, so that the share is reached."""
    if request.ids is not None:
        return usable
    state = folder.state
    kinds = {*searchable_kinds(state, state.standing), *origin.kinds}
    live = {kind: folder.engine.count(kind).live for kind in kinds}
    reached = sum(
        rows
        for kind, rows in live.items()
        if kind not in origin.kinds and state.kinds[kind].space == state.standing.searching
    )
    return min(usable, max(0, math.ceil(request.share * sum(live.values())) - reached))


def _shares(folder: GalleryFolder) -> tuple[int, int]:
    """Return how many live rows are in the searching model's space, and how many it searches."""
    state = folder.state
    in_space = total = 0
    for kind in searchable_kinds(state, state.standing):
        live = folder.engine.count(kind).live
        total += live
        in_space += live if state.kinds[kind].space == state.standing.searching else 0
    return in_space, total


# A backfill by searches: the rows that real queries find are embedded again, and stored.


def backfill_hits(
    folder: GalleryFolder,
    searching: str,
    hit_lists: list[list[Hit]],
    images: Source,
) -> int:
    """Embed those older rows again that were found and whose images are given; return how many.

    The searching model is that whose queries found them. 0 if another process is writing, or
    another model searches by now: search goes on.
    """
    older = {hit.id for hits in hit_lists for hit in hits if hit.row == OLDER_ROW}
    ids = sorted(older & set(images.ids))
    if not ids:
        if older:
            progress.note(
                f"no hit was embedded again: {images.name} has none of the {len(older)} older rows "
                f"among them, first {min(older)!r}"
            )
        return 0
    try:
        with folder.writing():
            end_interrupted_steps(folder)
            if folder.state.standing.searching != searching:
                return 0
            origin = BackfillSource(folder, images)
            return continued_backfill(folder, origin, ids)
    except GalleryBusyError as error:
        progress.note(f"the hits were not embedded again: {error}")
        return 0

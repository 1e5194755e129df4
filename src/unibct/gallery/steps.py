"""Ending steps, and settling those that a kill has left half-way."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unibct import progress
from unibct.gallery.gallery_folder import GalleryFolder
from unibct.gallery.known_queries import drop_queries
from unibct.gallery.state import (
    ADD,
    BACKFILL,
    COUNT_ORDER,
    FINISH,
    MAKES,
    PASSED,
    REMOVE,
    ROLLBACK,
    ROWS_AFTER,
    UPGRADE,
    GalleryState,
    Standing,
    Step,
)

_BATCH = 1024


def end_step(folder: GalleryFolder, number: int, **details: Any) -> None:
    """Mark a step as done, and note how many rows there are, for ``verify``."""
    counts = {kind: folder.engine.count(kind) for kind in folder.engine.kinds()}
    rows = {kind: [count.rows, count.live] for kind, count in counts.items()}
    # A backfill that was paused may end after steps with higher numbers.
    order = 1 + max(int(step.details.get(COUNT_ORDER, 0)) for step in folder.state.steps)
    noted = details | {ROWS_AFTER: rows, COUNT_ORDER: order}
    folder.save(folder.state.changed_step(number, done=True, details=noted))


def end_interrupted_steps(folder: GalleryFolder) -> None:
    """Bring a step that was killed to an end, before another one begins, and say so.

    Needs the lock. An interrupted add keeps the rows that were acknowledged; a removal is taken
    back, or goes on if it had passed the gate; a rollback and a finish go on, but a rollback that
    was still making rows again is taken back. A backfill stays: it is continued when asked for.
    """
    while (step := _unfinished_but_backfill(folder.state)) is not None:
        outcome = _ENDINGS.get(step.action, _mark_done)(folder, step)
        progress.note(f"step {step.number}, {step.action}, had been interrupted: {outcome}")


_COMPLETE = "it is complete now"
_TAKEN_BACK = "it is taken back, and the rows are as before it"


def _end_add(folder: GalleryFolder, step: Step) -> str:
    end_step(folder, step.number, interrupted=True)
    return "the rows that it had added stay"


def _end_removal(folder: GalleryFolder, step: Step) -> str:
    if step.details.get(PASSED):
        complete_removal(folder, step.number)
        return _COMPLETE
    take_back(folder, step)
    return _TAKEN_BACK


def _end_rollback(folder: GalleryFolder, step: Step) -> str:
    if is_making_rows(step):
        take_back(folder, step)
        return _TAKEN_BACK
    complete_rollback(folder, step)
    return _COMPLETE


def _end_finish(folder: GalleryFolder, step: Step) -> str:
    complete_finish(folder, step)
    return _COMPLETE


def _mark_done(folder: GalleryFolder, step: Step) -> str:
    folder.save(folder.state.changed_step(step.number, done=True))
    return "it is marked as done"


def is_making_rows(rollback: Step) -> bool:
    """Return whether a rollback still makes rows again, and has changed nothing that is searched.

    Its rows are hidden: they carry the mark of the rollback, as if it had replaced them.
    """
    return MAKES in rollback.details and not rollback.details.get(PASSED)


def take_back(folder: GalleryFolder, step: Step) -> None:
    """Undo a step that has not passed: its rows, its marks, and the add that belongs to it."""
    state = folder.state
    for number in (int(step.details.get(MAKES, step.number)), step.number):
        folder.engine.undo(number)
        state = state.changed_step(number, done=True, undone=True)
    folder.save(state)


def complete_removal(
    folder: GalleryFolder, number: int, given: Sequence[str] | None = None
) -> None:
    """Delete the rows that a removal has marked, from every kind, and their known queries.

    A vector that carries the mark goes last: after a kill it still says what is to be deleted.
    Without the ids of the rows, all rows are looked through for marks.
    """
    marked = {kind: _marked(folder, kind, number, given) for kind in folder.engine.kinds()}
    ids = set[str]().union(*marked.values())
    drop_queries(folder, sorted(ids))
    for kind, ids_of_kind in marked.items():
        _delete(folder, kind, ids - ids_of_kind)
    for kind, ids_of_kind in marked.items():
        _delete(folder, kind, ids_of_kind)
    end_step(folder, number, ids=None)  # their digest goes too


def _marked(folder: GalleryFolder, kind: str, number: int, given: Sequence[str] | None) -> set[str]:
    """Return the ids of the rows of a kind that carry the mark of a step."""
    parts = (
        folder.engine.scan(kind, vectors=False)
        if given is None
        else (
            folder.engine.read(kind, given[start : start + _BATCH], vectors=False)
            for start in range(0, len(given), _BATCH)
        )
    )
    return {
        rows.ids[place] for rows in parts for place in np.flatnonzero(rows.superseded == number)
    }


def _delete(folder: GalleryFolder, kind: str, ids: Collection[str]) -> None:
    in_order = sorted(ids)
    for start in range(0, len(in_order), _BATCH):
        folder.engine.delete(kind, in_order[start : start + _BATCH])


def complete_rollback(folder: GalleryFolder, step: Step) -> None:
    """Undo what came after the target of a rollback, and let the earlier model search.

    Rows that were made again for that model come out of hiding first, and the newer ones that they
    stand for are put aside last: a search finds one of them or both, never none.
    """
    target = int(step.details["to"])
    state = folder.state
    for number in undone_backfills(state, target):
        folder.engine.undo(number)
    if MAKES in step.details:
        folder.engine.undo(step.number)  # the marks that hide them
    for later in state.steps:
        is_since = target <= later.number < step.number
        if is_since and later.action in (UPGRADE, BACKFILL) and not later.undone:
            state = state.changed_step(later.number, done=True, undone=True)
    before = state.step(target).before
    assert before is not None
    folder.save(replace(state, standing=_with_certificates(before, state.standing)))
    if MAKES in step.details:
        _put_newer_aside(folder, int(step.details[MAKES]))
    end_step(folder, step.number)


def _put_newer_aside(folder: GalleryFolder, number: int) -> None:
    """Let the rows that were made again be the only live ones with their ids."""
    kind = folder.state.standing.searching
    added = 0
    for rows in folder.engine.scan(kind, batch=_BATCH, vectors=False):
        made = rows.take(np.flatnonzero(rows.steps == number))
        added += len(made)
        for other in folder.engine.kinds():
            if other != kind and len(made):
                folder.engine.supersede(other, made.ids, number)
    end_step(folder, number, added=added)


def _with_certificates(before: Standing, standing: Standing) -> Standing:
    """Return an earlier standing; what was certified for the same model since then stays so."""
    if before.searching != standing.searching:
        return before
    access = {
        kind: standing.access.get(kind, allowed) if allowed.forced else allowed
        for kind, allowed in before.access.items()
    }
    return replace(before, access=access)


def undone_backfills(state: GalleryState, target: int) -> list[int]:
    """Return the numbers of the backfills that a rollback to before ``target`` undoes.

    A backfill that was finished is not undone: its old vectors are gone, so its rows stay.
    """
    finished = max((s.number for s in state.steps if s.action == FINISH), default=0)
    return [
        step.number
        for step in reversed(state.steps)
        if step.action == BACKFILL and not step.undone and step.number > max(finished, target - 1)
    ]


def complete_finish(folder: GalleryFolder, step: Step) -> None:
    """Delete the old vectors of rows that have new ones; how many they are is noted first."""
    deleted = sum(folder.engine.delete_superseded(kind) for kind in folder.engine.kinds())
    end_step(folder, step.number, **{"deleted": deleted} | step.details)


def _unfinished_but_backfill(state: GalleryState) -> Step | None:
    steps = (s for s in state.steps if not s.done and not s.undone and s.action != BACKFILL)
    return next(steps, None)


_ENDINGS: dict[str, Callable[[GalleryFolder, Step], str]] = {
    ADD: _end_add,
    REMOVE: _end_removal,
    ROLLBACK: _end_rollback,
    FINISH: _end_finish,
}

"""Ending steps, and settling those that a kill has left half-way."""

from dataclasses import replace
from typing import Any

from unibct.gallery.folder import GalleryFolder
from unibct.gallery.state import (
    ADD,
    BACKFILL,
    FINISH,
    REMOVE,
    ROLLBACK,
    UPGRADE,
    GalleryState,
    Step,
)


def end_step(folder: GalleryFolder, number: int, **details: Any) -> None:
    """Mark a step as done, and note how many rows there are, for ``verify``."""
    rows = {kind: folder.engine.count(kind).rows for kind in folder.engine.kinds()}
    noted = details | {"rows_after": rows}
    folder.save(folder.state.changed_step(number, done=True, details=noted))


def settle(folder: GalleryFolder) -> None:
    """Bring a step that was killed to an end, before another one begins. Needs the lock.

    An interrupted add keeps the rows that were acknowledged; an interrupted removal is taken
    back; a rollback and a finish go on. A backfill stays: it is continued when asked for.
    """
    while (step := _unfinished_but_backfill(folder.state)) is not None:
        if step.action == ADD:
            end_step(folder, step.number, interrupted=True)
        elif step.action == REMOVE:
            folder.engine.undo(step.number)
            folder.save(folder.state.changed_step(step.number, done=True, undone=True))
        elif step.action == ROLLBACK:
            complete_rollback(folder, step)
        elif step.action == FINISH:
            complete_finish(folder, step)
        else:
            folder.save(folder.state.changed_step(step.number, done=True))


def complete_rollback(folder: GalleryFolder, step: Step) -> None:
    """Undo what came after the target of a rollback, and let the earlier model search."""
    target = int(step.details["to"])
    state = folder.state
    for number in undone_backfills(state, target):
        folder.engine.undo(number)
    for later in state.steps[target - 1 : step.number - 1]:
        if later.action in (UPGRADE, BACKFILL) and not later.undone:
            state = state.changed_step(later.number, done=True, undone=True)
    before = state.step(target).before
    assert before is not None
    folder.save(replace(state, standing=before))
    end_step(folder, step.number)


def undone_backfills(state: GalleryState, target: int) -> list[int]:
    """Return the numbers of the backfills that a rollback to before ``target`` undoes.

    A backfill that was finished is not undone: its old vectors are gone, so its rows stay.
    """
    finished = max((s.number for s in state.steps if s.action == FINISH), default=0)
    return [
        step.number
        for step in reversed(state.steps[target - 1 :])
        if step.action == BACKFILL and not step.undone and step.number > finished
    ]


def complete_finish(folder: GalleryFolder, step: Step) -> None:
    """Delete the old vectors of rows that have new ones."""
    deleted = 0
    for kind in folder.engine.kinds():
        deleted += folder.engine.delete_superseded(kind)
    end_step(folder, step.number, deleted=deleted)


def _unfinished_but_backfill(state: GalleryState) -> Step | None:
    steps = (s for s in state.steps if not s.done and not s.undone and s.action != BACKFILL)
    return next(steps, None)

"""Back to an earlier state: before an upgrade, or before a backfill."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unibct import progress
from unibct.data.checked_set import NoReadableImageError
from unibct.errors import UserError
from unibct.gallery.adding import (
    read_once,
    require_made_by,
    require_same_images,
    usable_vectors,
    with_digest,
)
from unibct.gallery.gallery_folder import ONLY_STORED, GalleryFolder
from unibct.gallery.known_queries import found_mates, found_mates_before, note_untested
from unibct.gallery.rows import NO_STEP, Metadata, sealed_rows, searchable_kinds
from unibct.gallery.sources import Source, note_left_out
from unibct.gallery.state import (
    ADD,
    BACKFILL,
    FINISH,
    MAKES,
    PASSED,
    ROLLBACK,
    UPGRADE,
    GalleryState,
    RowKind,
    Standing,
    Step,
)
from unibct.gallery.steps import (
    complete_rollback,
    end_interrupted_steps,
    is_making_rows,
    take_back,
    undone_backfills,
)

_BATCH = 512


@dataclass(frozen=True)
class RolledBack:
    """What a rollback has done."""

    to: int  # the number of the step before which the gallery is again
    searching: str  # the fingerprint of the model that searches now
    restored: int  # rows that were embedded by that model from the given images
    unsearchable: int  # rows that newer models made and this one cannot search; they are kept
    first_unsearchable: str  # the id of the first of them
    skipped: int = 0  # how many of them have an image that cannot be read

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


def rollback_gallery(
    folder: GalleryFolder,
    to: int | None = None,
    source: Source | None = None,
) -> RolledBack:
    """Go back to the state before a step; rows that were added since then are kept.

    Rows are made again from ``source`` before anything changes over: until then all searches are
    as before. A rollback that was interrupted goes on, and no further back, if it is asked for
    once more.

    Args:
        folder: the gallery.
        to: the number of an upgrade or a backfill; by default the last upgrade, so that the
            earlier model searches again.
        source: images of rows that were added since then, so that the earlier model can search
            them too. With ``skip_bad``, rows whose images cannot be read are kept as rows that
            the earlier model cannot search.
    """
    skipped: tuple[str, ...] = ()
    with folder.writing():
        step = _same_rollback(folder.state, to)
        goes_on = step is not None and is_making_rows(step) and source is not None
        if goes_on:
            progress.note("a rollback had been interrupted: it makes the rows that are left")
        else:
            end_interrupted_steps(folder)
        if step is None or is_making_rows(step):
            begun = step if goes_on else None
            step, skipped = _go_back(folder, to, source, begun)
        if source is not None:
            note_left_out(source.name, skipped)
        state, lost = folder.state, unsearchable_rows(folder)
    made = step.details.get(MAKES)
    restored = 0 if made is None else int(state.step(int(made)).details["added"])
    return RolledBack(
        int(step.details["to"]),
        state.standing.searching,
        restored,
        len(lost),
        (lost or [""])[0],
        len(skipped),
    )


def _same_rollback(state: GalleryState, to: int | None) -> Step | None:
    """Return the rollback that was interrupted, if this is the same command once more.

    Without ``to`` it is one to before an upgrade: one to before a backfill was an abort.
    """
    step = state.interrupted(ROLLBACK)
    if step is None:
        return None
    target = state.step(int(step.details["to"]))
    is_same = target.action == UPGRADE if to is None else target.number == to
    return step if is_same else None


def _go_back(
    folder: GalleryFolder,
    to: int | None,
    source: Source | None,
    step: Step | None,
) -> tuple[Step, tuple[str, ...]]:
    """Make rows again that the earlier model could not search, and let it search.

    Return the step, which is given if this rollback was interrupted while it made rows, and the ids
    of lost rows whose images cannot be read.
    """
    state = folder.state
    target = rollback_target(state, to) if step is None else state.step(int(step.details["to"]))
    assert target.before is not None
    kind = target.before.searching
    lost = unsearchable_rows(folder, target.before, undone_backfills(state, target.number))
    if step is not None:
        rows = folder.engine.read(kind, lost, vectors=False)
        made = {rows.ids[place] for place in np.flatnonzero(rows.steps == step.details[MAKES])}
        lost = [row_id for row_id in lost if row_id not in made]
    _require_deleted_rows(folder, target, lost, source)
    given = _given_again(folder, kind, lost, source)
    if source is not None and step is None and lost and not given.digests:
        if given.skipped:
            raise NoReadableImageError(source.name, len(given.skipped))
        raise UserError(
            f"{source.name} has none of the {len(lost)} rows that cannot be searched afterwards, "
            f"first {lost[0]!r}; give images with the ids of the rows, or no DATA to go without"
        )
    before = found_mates_before(folder, "the rollback")
    if given.digests:
        step = step or _begun_with_rows(folder, target)
        _make_rows(folder, kind, step, given)
    after = found_mates(folder, target.before, with_superseded=True)
    if not before.allows(after):
        if step is not None:
            take_back(folder, step)
        raise before.refusal(after, "the rollback")
    note_untested(folder, before, after, "the rollback")
    if step is None:
        step = folder.save(folder.state.begun(ROLLBACK, to=target.number)).steps[-1]
    else:
        folder.save(folder.state.changed_step(step.number, details={PASSED: True}))
    complete_rollback(folder, step)
    return step, given.skipped


def _begun_with_rows(folder: GalleryFolder, target: Step) -> Step:
    """Begin a rollback that makes rows again, and the add that they belong to."""
    state = folder.state
    state = state.begun(ROLLBACK, to=target.number, **{MAKES: state.next_number + 1})
    state = folder.save(state.begun(ADD, restored=True))
    return state.steps[-2]


def abort_backfill(folder: GalleryFolder) -> RolledBack:
    """Undo the backfill that was done or begun last."""
    interrupted = folder.state.interrupted(ROLLBACK)
    if interrupted is not None:
        target = folder.state.step(int(interrupted.details["to"]))
        if target.action == BACKFILL:
            return rollback_gallery(folder, target.number)
    steps = folder.state.steps
    last = [step for step in steps if step.action == BACKFILL and not step.undone]
    if not last:
        raise UserError(f"there is no backfill of {folder.path} to abort")
    number = last[-1].number
    upgrades = [s for s in steps if s.number > number and s.action == UPGRADE and not s.undone]
    if upgrades and last[-1] in rollback_targets(folder.state):
        raise UserError(
            f"the upgrade of step {upgrades[0].number} came after the backfill of step {number}; "
            f"to undo both: unibct gallery rollback {folder.path} --to {number}"
        )
    return rollback_gallery(folder, number)


def unsearchable_rows(
    folder: GalleryFolder, standing: Standing | None = None, undone: Sequence[int] = ()
) -> list[str]:
    """Return the ids of live rows that the searching model cannot search in any kind.

    By default as things stand now; as if the steps ``undone`` had been undone already.
    """
    state = folder.state
    kinds = searchable_kinds(state, standing or state.standing)
    lost: set[str] = set()
    for kind in state.kinds:
        if kind in kinds:
            continue
        for rows in folder.engine.scan(kind, vectors=False):
            is_live = np.isin(rows.superseded, [NO_STEP, *undone]) & ~np.isin(rows.steps, undone)
            ids = [rows.ids[place] for place in np.flatnonzero(is_live)]
            for other in kinds:
                there = folder.engine.read(other, ids, vectors=False)
                stays = there.take(np.flatnonzero(~np.isin(there.steps, undone)))
                ids = sorted(set(ids) - set(stays.ids))
            lost |= set(ids)
    return sorted(lost)


def rollback_targets(state: GalleryState, *, images: bool = False) -> list[Step]:
    """Return the steps that a rollback can go back to before, in order.

    If images of rows are given, a rollback that was making rows can go on.
    """
    finished = max((s.number for s in state.steps if s.action == FINISH), default=0)
    stopped = stopped_target(state, images=images)
    return [step for step in state.steps if step == stopped or _can_be_undone(step, finished)]


def _can_be_undone(step: Step, finished: int) -> bool:
    is_kept = step.action == UPGRADE or (step.action == BACKFILL and step.number > finished)
    return is_kept and not step.undone


def stopped_target(state: GalleryState, *, images: bool = False) -> Step | None:
    """Return the target of a rollback that was interrupted and can go on.

    The arguments are those of ``rollback_targets``.
    """
    rollback = state.interrupted(ROLLBACK)
    if rollback is None:
        return None
    target = state.step(int(rollback.details["to"]))
    has_images = images and earlier_model(state, target).source != ONLY_STORED
    return target if has_images or not is_making_rows(rollback) else None


def rollback_target(state: GalleryState, to: int | None, *, images: bool = False) -> Step:
    """Return the step that a rollback goes back to before.

    By default that of a rollback that can go on, or of the last upgrade; images as in
    ``rollback_targets``.
    """
    steps = rollback_targets(state, images=images)
    if not steps:
        raise UserError("there is no upgrade and no backfill to go back from")
    if to is None:
        stopped = stopped_target(state, images=images)
        upgrades = [step for step in steps if step.action == UPGRADE]
        return stopped or (upgrades or steps)[-1]
    matches = [step for step in steps if step.number == to]
    if not matches:
        choice = ", ".join(f"{s.number} ({s.action})" for s in steps)
        raise UserError(f"cannot go back to step {to}; choose one of: {choice}")
    return matches[0]


def earlier_model(state: GalleryState, target: Step) -> RowKind:
    """Return the model that searches after a rollback to before a step."""
    assert target.before is not None
    return state.kinds[target.before.searching]


def _require_deleted_rows(
    folder: GalleryFolder, target: Step, lost: Sequence[str], source: Source | None
) -> None:
    """Refuse to go back to vectors that are gone, unless all of their images are given."""
    steps = folder.state.steps
    finished = [s for s in steps if s.action == FINISH and s.number > target.number]
    deleted = sum(int(step.details.get("deleted", 0)) for step in finished)
    if not deleted:
        return
    backfills = {step.number for step in steps if step.action == BACKFILL}
    absent = sorted(set(lost) - set(() if source is None else source.ids))
    missing = [row_id for row_id, row in _newest(folder, absent).items() if row.step in backfills]
    if not missing:
        return
    reason = f"by backfill --finish (step {finished[-1].number})"
    if source is None:
        raise UserError(
            f"{deleted:,} old vectors were deleted {reason}; give the images of these rows to go "
            "back: unibct gallery rollback G DATA"
        )
    raise UserError(
        f"{source.name} lacks {len(missing):,} rows whose earlier vectors were deleted {reason}, "
        f"first {min(missing)!r}; give the images of all of them, or remove these rows first"
    )


@dataclass(frozen=True)
class _GivenAgain:
    """Rows that the earlier model is to make again, from their images or embeddings."""

    source: Source | None  # these rows only
    digests: dict[str, str | None]  # id -> digest of the image; None for embeddings
    skipped: tuple[str, ...] = ()  # ids of rows whose images cannot be read


def _given_again(
    folder: GalleryFolder,
    kind: str,
    lost: Sequence[str],
    source: Source | None,
) -> _GivenAgain:
    """Return what DATA has of the lost rows; refuse it if they cannot be made from it.

    The kind is the fingerprint of the model that is to search.
    """
    if source is None:
        return _GivenAgain(None, {})
    row_kind = folder.state.kinds[kind]
    if source.embeddings is not None:
        require_made_by(source, row_kind)
    places = {row_id: place for place, row_id in enumerate(source.ids)}
    wanted = given = source.select([places[row_id] for row_id in lost if row_id in places])
    if source.skip_bad:
        given = wanted.readable()
    if given.embeddings is not None:
        usable_vectors(given, None)
    elif len(given):
        folder.model(kind)  # says so if there is no model
    digests: dict[str, str | None] = dict.fromkeys(given.ids)
    for part in given.batches(_BATCH):
        part_digests: dict[str, str] = {}
        if part.images is not None:  # all are compared before any is embedded
            _, part_digests = read_once(part, folder.model(kind), known=part.ids)
        rows = _newest(folder, part.ids)
        require_same_images(part, part_digests, [rows[row_id].metadata for row_id in part.ids])
        digests |= part_digests
    skipped = tuple(row_id for row_id in wanted.ids if row_id not in digests)
    return _GivenAgain(given, digests, skipped)


def _make_rows(folder: GalleryFolder, kind: str, step: Step, given: _GivenAgain) -> None:
    """Write rows by the earlier model, hidden: they carry the mark of the rollback."""
    assert given.source is not None
    for part in given.source.batches(_BATCH):
        embedder = None
        if part.images is not None:
            embedder = folder.model(kind)
            part = replace(part, images=read_once(part, embedder)[0])
        rows = _newest(folder, part.ids)
        metadata = [
            with_digest(rows[row_id].metadata, given.digests[row_id]) for row_id in part.ids
        ]
        labels = [rows[row_id].label for row_id in part.ids]
        _, vectors = usable_vectors(part, embedder)
        number = int(step.details[MAKES])
        sealed = sealed_rows(kind, part.ids, labels, metadata, vectors, number)
        marks = np.full(len(sealed), step.number, dtype=np.int64)
        folder.engine.write(kind, replace(sealed, superseded=marks))


@dataclass(frozen=True)
class _NewestRow:
    label: str | None
    metadata: Metadata
    step: int


def _newest(folder: GalleryFolder, ids: Sequence[str]) -> dict[str, _NewestRow]:
    """Return id -> label, metadata and step, from the newest kind that has the row."""
    newest: dict[str, _NewestRow] = {}
    for kind in folder.state.kinds:
        rows = folder.engine.read(kind, ids, vectors=False)
        entries = zip(rows.labels, rows.metadata, rows.steps.tolist(), strict=True)
        newest |= {i: _NewestRow(*entry) for i, entry in zip(rows.ids, entries, strict=True)}
    return newest

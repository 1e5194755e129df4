"""Back to an earlier state: before an upgrade, or before a backfill."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.data.checked_set import NoReadableImageError
from unibct.errors import UserError
from unibct.gallery.adding import (
    image_digests,
    require_made_by,
    require_same_images,
    require_usable,
    with_digest,
)
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.gate import ask, ask_before
from unibct.gallery.row_types import searchable_kinds
from unibct.gallery.rows import NO_STEP, Metadata, sealed_rows
from unibct.gallery.settling import complete_rollback, end_step, settle, undone_backfills
from unibct.gallery.shelf import ONLY_STORED
from unibct.gallery.sources import Source, note_left_out
from unibct.gallery.state import (
    ADD,
    BACKFILL,
    FINISH,
    ROLLBACK,
    UPGRADE,
    GalleryState,
    RowMaker,
    Standing,
    Step,
)
from unibct.progress import Silent

_BATCH = 512


@dataclass(frozen=True)
class RolledBack:
    """What a rollback has done.

    Attributes:
        to: the number of the step before which the gallery is again.
        searching: the fingerprint of the model that searches now.
        restored: rows that were embedded by that model from the given images.
        unsearchable: rows that newer models made and this one cannot search; they are kept.
        first_unsearchable: the id of the first of them.
        skipped: how many of them have an image that cannot be read.
    """

    to: int
    searching: str
    restored: int
    unsearchable: int
    first_unsearchable: str
    skipped: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


def rollback_gallery(
    folder: GalleryFolder,
    to: int | None = None,
    source: Source | None = None,
    *,
    skip_bad: bool = False,
) -> RolledBack:
    """Go back to the state before a step; rows that were added since then are kept.

    A rollback that was stopped while it made rows again from ``source`` goes on if it is asked for
    once more.

    Args:
        folder: the gallery.
        to: the number of an upgrade or a backfill; by default the last upgrade, so that the
            earlier model searches again.
        source: images of rows that were added since then, so that the earlier model can search
            them too.
        skip_bad: leave rows out whose images cannot be read, instead of refusing. They are kept
            as rows that the earlier model cannot search.
    """
    with folder.writing():
        settle(folder)
        rollback = _stopped_rollback(folder.state)
        if rollback is None or source is None or to not in (None, rollback.details["to"]):
            rollback, lost, given = _gone_back(folder, to, source, skip_bad=skip_bad)
        else:
            lost, searching = unsearchable_rows(folder), folder.state.standing.searching
            given = _given_again(folder, searching, lost, source, skip_bad=skip_bad)
        _restore(folder, given)
        if rollback.details.get("restoring"):
            folder.save(folder.state.changed_step(rollback.number, details={"restoring": False}))
    if source is not None:
        note_left_out(folder.progress, source.name, given.skipped)
    lost = [row_id for row_id in lost if row_id not in given.digests]
    searching = folder.state.standing.searching
    target, restored, skipped = int(rollback.details["to"]), len(given.digests), len(given.skipped)
    return RolledBack(target, searching, restored, len(lost), (lost or [""])[0], skipped)


def _stopped_rollback(state: GalleryState) -> Step | None:
    """Return the last step, if it is a rollback that has not made all given rows again."""
    steps = [step for step in state.steps if not step.details.get("restored")]
    return steps[-1] if steps[-1].details.get("restoring") else None


def _gone_back(
    folder: GalleryFolder, to: int | None, source: Source | None, *, skip_bad: bool
) -> tuple[Step, list[str], "_GivenAgain"]:
    """Let the earlier model search.

    Returns:
        the step of the rollback, the ids of rows that this model cannot search, and what the
        source has of them.
    """
    target = rollback_target(folder.state, to)
    assert target.before is not None
    undone = undone_backfills(folder.state, target.number)
    lost = unsearchable_rows(folder, target.before, undone)
    _require_deleted_rows(folder, target, lost, source)
    given = _given_again(folder, target.before.searching, lost, source, skip_bad=skip_bad)
    if source is not None and lost and not given.digests:
        if given.skipped:
            raise NoReadableImageError(source.name, len(given.skipped))
        raise UserError(
            f"{source.name} has none of the {len(lost)} rows that cannot be searched afterwards, "
            f"first {lost[0]!r}; give images with the ids of the rows, or no DATA to go without"
        )
    before = ask_before(folder, "the rollback")
    after = ask(folder, target.before, with_superseded=True)
    if not before.allows(after):
        raise before.refusal(after, "the rollback")
    details = {"restoring": True} if given.digests else {}
    state = folder.save(folder.state.begun(ROLLBACK, to=target.number, **details))
    complete_rollback(folder, state.steps[-1])
    return state.steps[-1], lost, given


def abort_backfill(folder: GalleryFolder) -> RolledBack:
    """Undo the backfill that was done or begun last."""
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

    Args:
        folder: the gallery.
        standing: who searches what; by default as it is now.
        undone: numbers of steps that a rollback will undo: as if it had.
    """
    state = folder.state
    kinds = searchable_kinds(state, standing or state.standing)
    lost: set[str] = set()
    for kind in state.makers:
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

    Args:
        state: of the gallery.
        images: images of rows are given, so that a rollback that was stopped can go on.
    """
    finished = max((s.number for s in state.steps if s.action == FINISH), default=0)
    stopped = stopped_target(state) if images else None
    return [step for step in state.steps if step == stopped or _can_be_undone(step, finished)]


def _can_be_undone(step: Step, finished: int) -> bool:
    is_kept = step.action == UPGRADE or (step.action == BACKFILL and step.number > finished)
    return is_kept and not step.undone


def stopped_target(state: GalleryState) -> Step | None:
    """Return the target of a rollback that was stopped while it made rows again from images."""
    rollback = _stopped_rollback(state)
    if rollback is None:
        return None
    target = state.step(int(rollback.details["to"]))
    return None if earlier_model(state, target).source == ONLY_STORED else target


def rollback_target(state: GalleryState, to: int | None, *, images: bool = False) -> Step:
    """Return the step that a rollback goes back to before.

    Args:
        state: of the gallery.
        to: its number; by default that of a rollback that can go on, or of the last upgrade.
        images: as in ``rollback_targets``.
    """
    steps = rollback_targets(state, images=images)
    if not steps:
        raise UserError("there is no upgrade and no backfill to go back from")
    if to is None:
        stopped = stopped_target(state) if images else None
        upgrades = [step for step in steps if step.action == UPGRADE]
        return stopped or (upgrades or steps)[-1]
    matches = [step for step in steps if step.number == to]
    if not matches:
        choice = ", ".join(f"{s.number} ({s.action})" for s in steps)
        raise UserError(f"cannot go back to step {to}; choose one of: {choice}")
    return matches[0]


def earlier_model(state: GalleryState, target: Step) -> RowMaker:
    """Return the model that searches after a rollback to before a step."""
    assert target.before is not None
    return state.makers[target.before.searching]


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
    """Rows that the earlier model is to make again, from their images or embeddings.

    Attributes:
        source: these rows only.
        digests: id -> digest of the image; None for embeddings.
        skipped: ids of rows whose images cannot be read.
    """

    source: Source | None
    digests: dict[str, str | None]
    skipped: tuple[str, ...] = ()


def _given_again(
    folder: GalleryFolder,
    kind: str,
    lost: Sequence[str],
    source: Source | None,
    *,
    skip_bad: bool,
) -> _GivenAgain:
    """Return what DATA has of the lost rows; refuse it if they cannot be made from it.

    Args:
        folder: the gallery.
        kind: the fingerprint of the model that is to search.
        lost: ids of rows that it cannot search.
        source: what the user has given.
        skip_bad: leave images out that cannot be read.
    """
    if source is None:
        return _GivenAgain(None, {})
    maker = folder.state.makers[kind]
    if source.embeddings is not None:
        require_made_by(source, maker)
    places = {row_id: place for place, row_id in enumerate(source.ids)}
    wanted = given = source.select([places[row_id] for row_id in lost if row_id in places])
    if skip_bad:
        given = wanted.readable()
    if given.embeddings is not None:
        require_usable(given.vectors(None, Silent()), given)
    elif len(given):
        folder.model(kind)  # says so if there is no model
    digests: dict[str, str | None] = dict.fromkeys(given.ids)
    for part in _batches(given):
        part_digests = image_digests(part.images)
        rows = _newest(folder, part.ids)
        require_same_images(part, part_digests, [rows[row_id].metadata for row_id in part.ids])
        digests |= part_digests
    skipped = tuple(row_id for row_id in wanted.ids if row_id not in digests)
    return _GivenAgain(given, digests, skipped)


def _batches(source: Source) -> Iterator[Source]:
    for start in range(0, len(source), _BATCH):
        yield source.select(range(start, min(start + _BATCH, len(source))))


def _restore(folder: GalleryFolder, given: _GivenAgain) -> None:
    """Write rows that the searching model cannot search, made by that model."""
    if given.source is None or not given.digests:
        return
    kind = folder.state.standing.searching
    step = folder.save(folder.state.begun(ADD, restored=True)).steps[-1].number
    for part in _batches(given.source):
        embedder = None if part.images is None else folder.model(kind).embedder
        rows = _newest(folder, part.ids)
        metadata = [
            with_digest(rows[row_id].metadata, given.digests[row_id]) for row_id in part.ids
        ]
        labels = [rows[row_id].label for row_id in part.ids]
        vectors = part.vectors(embedder, Silent())
        require_usable(vectors, part)
        sealed = sealed_rows(kind, part.ids, labels, metadata, vectors, step)
        others = [other for other in folder.engine.kinds() if other != kind]
        folder.engine.write(kind, sealed, supersedes=others)  # a row is live in one kind
    end_step(folder, step, added=len(given.digests))


@dataclass(frozen=True)
class _NewestRow:
    label: str | None
    metadata: Metadata
    step: int


def _newest(folder: GalleryFolder, ids: Sequence[str]) -> dict[str, _NewestRow]:
    """Return id -> label, metadata and step, from the newest kind that has the row."""
    newest: dict[str, _NewestRow] = {}
    for kind in folder.state.makers:
        rows = folder.engine.read(kind, ids, vectors=False)
        entries = zip(rows.labels, rows.metadata, rows.steps.tolist(), strict=True)
        newest |= {i: _NewestRow(*entry) for i, entry in zip(rows.ids, entries, strict=True)}
    return newest

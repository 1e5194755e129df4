"""Back to an earlier state: before an upgrade, or before a backfill."""

from dataclasses import dataclass
from typing import Any

from unibct.errors import UserError
from unibct.gallery.adding import image_digests, with_digest
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.gate import ask
from unibct.gallery.rows import sealed_rows, user_metadata
from unibct.gallery.search import searchable_kinds
from unibct.gallery.settling import complete_rollback, end_step, settle
from unibct.gallery.sources import Source
from unibct.gallery.state import ADD, BACKFILL, FINISH, ROLLBACK, UPGRADE, GalleryState, Step
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
    """

    to: int
    searching: str
    restored: int
    unsearchable: int
    first_unsearchable: str

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


def rollback_gallery(
    folder: GalleryFolder, to: int | None = None, source: Source | None = None
) -> RolledBack:
    """Go back to the state before a step; rows that were added since then are kept.

    Args:
        folder: the gallery.
        to: the number of an upgrade or a backfill; by default the last upgrade, so that the
            earlier model searches again.
        source: images of rows that were added since then, so that the earlier model can search
            them too.
    """
    with folder.writing():
        settle(folder)
        target = _target(folder.state, to)
        _require_vectors(folder.state, target, source)
        before = ask(folder)
        assert target.before is not None
        after = ask(folder, target.before, with_superseded=True)
        if not before.allows(after):
            raise before.refusal(after, "the rollback")
        state = folder.save(folder.state.begun(ROLLBACK, to=target.number))
        complete_rollback(folder, state.steps[-1])
        restored = 0 if source is None else _restore(folder, source)
        lost = unsearchable_rows(folder)
    searching = folder.state.standing.searching
    return RolledBack(target.number, searching, restored, len(lost), (lost or [""])[0])


def abort_backfill(folder: GalleryFolder) -> RolledBack:
    """Undo the backfill that was done or begun last."""
    steps = folder.state.steps
    last = [step for step in steps if step.action == BACKFILL and not step.undone]
    if not last:
        raise UserError(f"there is no backfill of {folder.path} to abort")
    return rollback_gallery(folder, last[-1].number)


def unsearchable_rows(folder: GalleryFolder) -> list[str]:
    """Return the ids of live rows that the searching model cannot search in any kind."""
    state = folder.state
    kinds = searchable_kinds(state, state.standing)
    others = [kind for kind in state.makers if kind not in kinds]
    lost: list[str] = []
    for kind in others:
        for rows in folder.engine.scan(kind, vectors=False):
            ids = [i for i, mark in zip(rows.ids, rows.superseded, strict=True) if not mark]
            for other in kinds:
                there = set(folder.engine.read(other, ids, vectors=False).ids)
                ids = [row_id for row_id in ids if row_id not in there]
            lost += ids
    return sorted(set(lost))


def rollback_targets(state: GalleryState) -> list[Step]:
    """Return the steps that a rollback can go back to before, in order."""
    finished = max((s.number for s in state.steps if s.action == FINISH), default=0)
    return [
        step
        for step in state.steps
        if not step.undone
        and (step.action == UPGRADE or (step.action == BACKFILL and step.number > finished))
    ]


def _target(state: GalleryState, to: int | None) -> Step:
    """Return the step to go back to before."""
    steps = rollback_targets(state)
    if not steps:
        raise UserError("there is no upgrade and no backfill to go back from")
    if to is None:
        upgrades = [step for step in steps if step.action == UPGRADE]
        return (upgrades or steps)[-1]
    matches = [step for step in steps if step.number == to]
    if not matches:
        choice = ", ".join(f"{s.number} ({s.action})" for s in steps)
        raise UserError(f"cannot go back to step {to}; choose one of: {choice}")
    return matches[0]


def _require_vectors(state: GalleryState, target: Step, source: Source | None) -> None:
    """Refuse to go back to vectors that are gone, unless the images are given."""
    finished = [s for s in state.steps if s.action == FINISH and s.number > target.number]
    deleted = sum(int(step.details.get("deleted", 0)) for step in finished)
    if deleted and source is None:
        raise UserError(
            f"{deleted:,} old vectors were deleted by backfill --finish (step "
            f"{finished[-1].number}); give the images of these rows to go back: "
            "unibct gallery rollback G DATA"
        )


def _restore(folder: GalleryFolder, source: Source) -> int:
    """Embed rows that the searching model cannot search, as far as their images are given."""
    places = {row_id: place for place, row_id in enumerate(source.ids)}
    usable = [row_id for row_id in unsearchable_rows(folder) if row_id in places]
    if not usable:
        return 0
    kind = folder.state.standing.searching
    step = folder.save(folder.state.begun(ADD, restored=True)).steps[-1].number
    for start in range(0, len(usable), _BATCH):
        part = source.select([places[row_id] for row_id in usable[start : start + _BATCH]])
        embedder = None if part.images is None else folder.model(kind).embedder
        digests = image_digests(part.images)
        rows = _newest(folder, part.ids)
        metadata = [
            with_digest(user_metadata(rows[row_id][1]), digests.get(row_id)) for row_id in part.ids
        ]
        labels = [rows[row_id][0] for row_id in part.ids]
        vectors = part.vectors(embedder, Silent())
        sealed = sealed_rows(kind, part.ids, labels, metadata, vectors, step)
        others = [other for other in folder.engine.kinds() if other != kind]
        folder.engine.write(kind, sealed, supersedes=others)  # a row is live in one kind
    end_step(folder, step, added=len(usable))
    return len(usable)


def _newest(folder: GalleryFolder, ids: tuple[str, ...]) -> dict[str, tuple[str | None, Any]]:
    """Return id -> label and metadata, from whichever kind has the row."""
    newest: dict[str, tuple[str | None, Any]] = {}
    for kind in folder.state.makers:
        rows = folder.engine.read(kind, ids, vectors=False)
        newest |= dict(zip(rows.ids, zip(rows.labels, rows.metadata, strict=True), strict=True))
    return newest

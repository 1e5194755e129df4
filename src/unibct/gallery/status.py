"""What a gallery looks like now: rows, models, who searches, and what has been saved."""

from dataclasses import dataclass
from typing import Any

from unibct.gallery.folder import GalleryFolder
from unibct.gallery.gate import known_queries
from unibct.gallery.row_types import row_type, searchable_kinds
from unibct.gallery.savings import Savings
from unibct.gallery.state import COUNT_ORDER, ROWS_AFTER, UPGRADE, GalleryState

NOT_SEARCHED = "not searched"


@dataclass(frozen=True)
class GalleryStatus:
    """A picture of a gallery.

    Attributes:
        state: of the gallery.
        live: kind -> live rows.
        replaced: kind -> vectors that others have replaced, kept until `backfill --finish`.
        known: how many known queries there are.
        savings: what a backfill would cost; from the rate that the last upgrade measured.
        indexes: kinds that have an index for approximate search.
        doubtful: kinds whose certificate does not say that its test classes are unseen.
    """

    state: GalleryState
    live: dict[str, int]
    replaced: dict[str, int]
    known: int
    savings: Savings
    indexes: tuple[str, ...]
    doubtful: tuple[str, ...] = ()

    @property
    def unsearchable(self) -> int:
        """Rows that the searching model may not search."""
        kinds = searchable_kinds(self.state, self.state.standing)
        return sum(rows for kind, rows in self.live.items() if kind not in kinds)

    @property
    def forced(self) -> list[str]:
        """Kinds of rows that are searched because somebody insisted."""
        access = self.state.standing.access.items()
        return [kind for kind, reason in access if reason.forced]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        state = self.state
        backfill = state.open_backfill
        return {
            "rows": sum(self.live.values()),
            "models": self.live,
            "searching": state.standing.searching,
            "engine": state.engine,
            "address": state.address,
            "unsearchable": self.unsearchable,
            "replaced": self.replaced,
            "forced": self.forced,
            "doubtful": list(self.doubtful),
            "certificates": {k: a.certificate for k, a in state.standing.access.items()},
            "names": {kind: maker.name for kind, maker in state.makers.items()},
            "row_types": {
                kind: row_type(maker, state.standing) if state.searchable(kind) else NOT_SEARCHED
                for kind, maker in state.makers.items()
            },
            "backfill": None if backfill is None else {"step": backfill.number} | backfill.details,
            "known_queries": self.known,
            "savings": self.savings.as_json(),
            "indexes": list(self.indexes),
            "steps": [
                {
                    "number": step.number,
                    "action": step.action,
                    "date": step.date,
                    "done": step.done,
                    "undone": step.undone,
                }
                | {k: v for k, v in step.details.items() if k not in (ROWS_AFTER, COUNT_ORDER)}
                for step in state.steps
            ],
        }


def gallery_status(folder: GalleryFolder) -> GalleryStatus:
    """Count rows and look up what is known."""
    state = folder.state
    counts = {kind: folder.engine.count(kind) for kind in state.makers}
    older = [
        kind
        for kind in searchable_kinds(state, state.standing)
        if state.makers[kind].space != state.standing.searching
    ]
    rate = _last_rate(state)
    return GalleryStatus(
        state,
        {kind: count.live for kind, count in counts.items()},
        {k: c.rows - c.live for k, c in counts.items() if c.rows > c.live},
        len(known_queries(folder.path)),
        Savings(sum(counts[kind].live for kind in older), rate),
        tuple(kind for kind in state.makers if folder.engine.has_index(kind)),
        folder.doubtful(state.standing),
    )


def _last_rate(state: GalleryState) -> float | None:
    for step in reversed(state.steps):
        if step.action == UPGRADE and step.details.get("model") == state.standing.searching:
            return step.details["savings"]["images_per_second"]
    return None

"""What a backfill would cost here, and what has been saved by not doing it."""

from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, cast

import numpy as np

from unibct import progress
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.gallery.gallery_folder import (
    BY_MAP,
    CERTIFICATES_FOLDER,
    ONLY_STORED,
    GalleryFolder,
    open_model,
)
from unibct.gallery.known_queries import damaged_queries, read_known_queries
from unibct.gallery.orders import found_counts
from unibct.gallery.rollback import rollback_targets
from unibct.gallery.rows import changed_rows, row_type, searchable_kinds
from unibct.gallery.state import BACKFILL, COUNT_ORDER, ROWS_AFTER, UPGRADE, GalleryState
from unibct.models.embedder import Embedder, ImageEmbedder

_BATCH = 64
_SECONDS = 0.3


@dataclass(frozen=True)
class Savings:
    """The cost of embedding rows again."""

    rows: int  # rows that older models made, and that need not be embedded again
    # images a second that the model embeds on this device, without reading them; None if the model
    # is not available
    rate: float | None

    @property
    def seconds(self) -> float | None:
        """How long embedding these rows again would take here."""
        return None if self.rate is None else self.rows / self.rate

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {"rows": self.rows, "images_per_second": self.rate, "seconds": self.seconds}

    def summary(self) -> str:
        """Return one line for people."""
        if not self.rows:
            return "no rows of older models are left"
        if self.seconds is None:
            return f"{self.rows:,} rows need not be embedded again"
        return (
            f"{self.rows:,} rows need not be embedded again: a backfill would take "
            f"{duration(self.seconds)} here ({self.rate:,.0f} images a second once read)"
        )


def measure_savings(embedder: Embedder, rows: int) -> Savings:
    """Measure how fast a model embeds on this device; a third of a second."""
    if isinstance(embedder, StoredEmbeddings) or not rows:
        return Savings(rows, None)
    return Savings(rows, embedding_rate(cast(ImageEmbedder, embedder)))


def embedding_rate(model: ImageEmbedder) -> float:
    """Return the images a second that a model embeds, pixels given."""
    pixels = np.random.default_rng(0).integers(0, 256, (_BATCH, *model.input.frame[:3]))
    batch = pixels.astype(np.uint8)
    model.embed_pixels(batch[:2])
    start, images, elapsed = perf_counter(), 0, 0.0
    while elapsed < _SECONDS:
        model.embed_pixels(batch)
        images += len(batch)
        elapsed = perf_counter() - start
    return images / elapsed


def duration(seconds: float) -> str:
    """Return a time span in words: 3 s, 4 min, 5 h or 6 days."""
    for size, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 1 else "less than a second"


# What a gallery looks like now: rows, models, who searches, and what has been saved.

NOT_SEARCHED = "not searched"


@dataclass(frozen=True)
class GalleryStatus:
    """A picture of a gallery."""

    state: GalleryState  # of the gallery
    live: dict[str, int]  # kind -> live rows
    # kind -> vectors that others have replaced, kept until `backfill --finish`
    replaced: dict[str, int]
    known: int  # how many known queries there are
    savings: Savings  # what a backfill would cost; from the rate that the last upgrade measured
    indexes: tuple[str, ...]  # kinds that have an index for approximate search
    # kinds whose certificate does not say that its test classes are unseen
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
            "names": {kind: row_kind.name for kind, row_kind in state.kinds.items()},
            "row_types": {
                kind: row_type(row_kind, state.standing) if state.searchable(kind) else NOT_SEARCHED
                for kind, row_kind in state.kinds.items()
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
    counts = {kind: folder.engine.count(kind) for kind in state.kinds}
    older = [
        kind
        for kind in searchable_kinds(state, state.standing)
        if state.kinds[kind].space != state.standing.searching
    ]
    rate = _last_rate(state)
    return GalleryStatus(
        state,
        {kind: count.live for kind, count in counts.items()},
        {k: c.rows - c.live for k, c in counts.items() if c.rows > c.live},
        len(read_known_queries(folder.path)),
        Savings(sum(counts[kind].live for kind in older), rate),
        tuple(kind for kind in state.kinds if folder.engine.has_index(kind)),
        folder.doubtful(state.standing),
    )


def _last_rate(state: GalleryState) -> float | None:
    for step in reversed(state.steps):
        if step.action == UPGRADE and step.details.get("model") == state.standing.searching:
            return step.details["savings"]["images_per_second"]
    return None


# Check that a gallery is as it was written: rows, counts, index, models, certificates, and more.
#
# Everything that a step reads is read: a step that would stop at a damaged file is no surprise.

_NAMED = 5  # rows that a message names


def verify_gallery(folder: GalleryFolder) -> list[str]:
    """Read everything that a step needs, and return what is wrong, one line each.

    An empty list is good news.
    """
    state = folder.state  # a damaged state file is an error of its own
    problems = list(folder.engine.problems())
    for read in (partial(_rows, folder, state), partial(_asked, folder)):
        try:
            problems += read()
        except UserError as error:  # of a damaged file
            problems.append(str(error))
    problems += _models(folder) + _certificates(folder) + damaged_queries(folder)
    return list(dict.fromkeys(problems))


def _rows(folder: GalleryFolder, state: GalleryState) -> list[str]:
    """Read all rows, and compare them with their digests and counts."""
    kinds = folder.engine.kinds()
    missing = [kind for kind in state.kinds if kind not in kinds]
    problems = [f"the rows of {state.kinds[kind].name} ({kind}) are missing" for kind in missing]
    total = sum(folder.engine.count(kind).rows for kind in kinds)
    with progress.task("verifying", total, "rows") as advance:
        for kind in kinds:
            changed: list[str] = []
            rows_seen = live = 0
            try:
                for rows in folder.engine.scan(kind):
                    changed += changed_rows(kind, rows)
                    rows_seen += len(rows)
                    live += int((rows.superseded == 0).sum())
                    advance(len(rows))
            except UserError as error:
                problems.append(str(error))
                continue
            problems += _changed(changed, kind)
            if folder.state is state:  # otherwise rows came or went meanwhile
                problems += _counted(state, kind, rows_seen, live)
    return problems


def _asked(folder: GalleryFolder) -> list[str]:
    """Read how often rows were found, which a backfill may want."""
    found_counts(folder.path)
    return []


def _changed(ids: list[str], kind: str) -> list[str]:
    if not ids:
        return []
    named = ", ".join(repr(row_id) for row_id in ids[:_NAMED])
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return [f"{len(ids)} rows of {kind} are not as they were written: {named}{more}"]


def _counted(state: GalleryState, kind: str, rows: int, live: int) -> list[str]:
    """Compare the count with the one after the last step, if nothing is under way."""
    if any(not step.done and not step.undone for step in state.steps):
        return []
    counted = [step for step in state.steps if ROWS_AFTER in step.details]
    if not counted:
        return []
    last = max(counted, key=lambda step: (step.details.get(COUNT_ORDER, 0), step.number))
    if last.undone and last.action == BACKFILL:
        return []
    expected = last.details[ROWS_AFTER].get(kind, [0, 0])
    if [rows, live] == expected:
        return []
    return [
        f"{kind} has {rows} rows, {live} of them searched; after step {last.number} there were "
        f"{expected[0]} and {expected[1]}"
    ]


def _models(folder: GalleryFolder) -> list[str]:
    problems: list[str] = []
    for row_kind in folder.state.kinds.values():
        if row_kind.source in (ONLY_STORED, BY_MAP):
            continue
        try:
            open_model(folder.path, row_kind, folder.opener)
        except UserError as error:
            problems.append(str(error))
    return problems


def _certificates(folder: GalleryFolder) -> list[str]:
    problems: list[str] = []
    paths = sorted((folder.path / CERTIFICATES_FOLDER).glob("*.json"))
    state = folder.state
    standings = [state.standing, *(step.before for step in rollback_targets(state))]
    digests = {
        access.certificate
        for standing in standings
        if standing is not None
        for access in standing.access.values()
    }
    lost = [digest for digest in digests if digest and digest not in {p.stem for p in paths}]
    problems += [f"the certificate {digest} is missing" for digest in lost]
    for path in paths:
        try:
            folder.certificate(path.stem)
        except UserError as error:
            problems.append(str(error))
    return problems

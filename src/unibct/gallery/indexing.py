"""The index for approximate search: built on demand, measured, and built again when it must be.

Rewriting rows spoils some indexes (an IVFFlat index keeps its old centres, for example). So its
recall is measured before and after a backfill.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct import progress
from unibct.gallery.engines import Search
from unibct.gallery.gallery_folder import GalleryFolder
from unibct.gallery.steps import end_interrupted_steps

_QUERIES = 100
_K = 10
LARGEST_LOSS = 0.02  # of recall@10, beyond which an index is built again


@dataclass(frozen=True)
class IndexRecall:
    """How much of the exact result an index finds."""

    kind: str  # of the rows
    recall: float | None  # recall@10; None if there is no index or no row

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


def build_indexes(folder: GalleryFolder) -> list[IndexRecall]:
    """Build the index of every kind that has live rows, and measure it."""
    with folder.writing():
        end_interrupted_steps(folder)
        kinds = [kind for kind in folder.engine.kinds() if folder.engine.has_live(kind)]
        with progress.task("indexing", len(kinds), "kinds") as advance:
            for kind in kinds:
                folder.engine.build_index(kind)
                advance(1)
    return measure_recall(folder)


def measure_recall(folder: GalleryFolder) -> list[IndexRecall]:
    """Compare approximate with exact search, with rows as queries."""
    return [IndexRecall(kind, _recall(folder, kind)) for kind in folder.engine.kinds()]


def rebuild_spoilt(folder: GalleryFolder, before: list[IndexRecall]) -> list[IndexRecall]:
    """Build those indexes again that have lost recall since ``before``; needs the lock."""
    earlier = {entry.kind: entry.recall for entry in before}
    best = max((recall for recall in earlier.values() if recall is not None), default=None)
    if best is None:
        return []
    result: list[IndexRecall] = []
    for kind in folder.engine.kinds():
        if not folder.engine.has_live(kind):
            continue
        recall = _recall(folder, kind)
        wanted = earlier.get(kind) or best
        if recall is None or recall < wanted - LARGEST_LOSS:
            folder.engine.build_index(kind)
            again = _recall(folder, kind)
            had = "had none" if recall is None else f"had lost: recall@10 {recall:.3f}"
            name = folder.state.kinds[kind].name
            progress.note(
                f"the index of rows by {name} was built, as they {had}; recall@10 is {again:.3f}"
            )
            recall = again
        result.append(IndexRecall(kind, recall))
    return result


def _recall(folder: GalleryFolder, kind: str) -> float | None:
    """Return recall@10 of a kind's index, with some of its rows as queries."""
    if not folder.engine.has_index(kind) or not folder.engine.has_live(kind):
        return None
    rows = next(iter(folder.engine.scan(kind, batch=_QUERIES)))
    noise = np.random.default_rng(0).standard_normal(rows.vectors.shape).astype(np.float32)
    queries = rows.vectors + 0.5 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    exact = folder.engine.search(kind, queries, Search(_K, {}))
    near = folder.engine.search(kind, queries, Search(_K, {}, approximate=True))
    pairs = zip(exact, near, strict=True)
    shares = [
        len({f.id for f in wanted} & {f.id for f in returned}) / len(wanted)
        for wanted, returned in pairs
        if wanted
    ]
    return float(np.mean(shares)) if shares else None

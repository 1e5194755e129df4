"""Removing rows for good: from every kind, and from what is kept beside them."""

import hashlib
import json
from collections.abc import Sequence

from unibct.errors import UserError
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.row_gate import RowGate
from unibct.gallery.rows import require_id_list
from unibct.gallery.settling import complete_removal, settle, take_back
from unibct.gallery.state import PASSED, REMOVE

_BATCH = 1024


def remove_rows(folder: GalleryFolder, ids: Sequence[str]) -> int:
    """Remove rows with all of their vectors, and return how many they were.

    A rollback does not bring them back. If too many known queries of other rows no longer find
    their mates, nothing is removed. The same removal again, after it was interrupted, is completed.
    """
    require_id_list(ids)
    ids = list(dict.fromkeys(ids))
    digest = hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()
    with folder.writing():
        interrupted = folder.state.interrupted(REMOVE)
        settle(folder)
        passed = {} if interrupted is None else interrupted.details
        if passed.get(PASSED) and passed.get("ids") == digest:
            return len(ids)
        kinds = list(folder.engine.kinds())
        _require_known(folder, kinds, ids)
        gate = RowGate(folder)
        for kind in kinds:
            for start in range(0, len(ids), _BATCH):
                gate.expect(kind, folder.engine.read(kind, ids[start : start + _BATCH]))
        step = folder.save(folder.state.begun(REMOVE, rows=len(ids), ids=digest)).steps[-1]
        for kind in kinds:
            for start in range(0, len(ids), _BATCH):
                folder.engine.supersede(kind, ids[start : start + _BATCH], step.number)
        refusal = gate.refusal("the removal")
        if refusal is not None:
            take_back(folder, step)
            raise refusal
        folder.save(folder.state.changed_step(step.number, details={PASSED: True}))
        complete_removal(folder, step.number, ids)
    return len(ids)


def _require_known(folder: GalleryFolder, kinds: Sequence[str], ids: Sequence[str]) -> None:
    unknown = set(ids)
    for kind in kinds:
        unknown -= set(folder.engine.read(kind, sorted(unknown), vectors=False).ids)
    if unknown:
        raise UserError(
            f"{len(unknown)} of {len(ids)} ids are no rows of this gallery, first {min(unknown)!r}"
        )

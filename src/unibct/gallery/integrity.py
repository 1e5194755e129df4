"""Check that a gallery is as it was written: rows, counts, index, models, certificates, and more.

Everything that a step reads is read: a step that would stop at a damaged file is no surprise.
"""

from functools import partial

from unibct.errors import UserError
from unibct.gallery.asked import asked_counts
from unibct.gallery.folder import CERTIFICATES_FOLDER, GalleryFolder
from unibct.gallery.gate import damaged_queries
from unibct.gallery.rollback import rollback_targets
from unibct.gallery.rows import changed_rows
from unibct.gallery.shelf import BY_MAP, ONLY_STORED, open_maker
from unibct.gallery.state import BACKFILL, COUNT_ORDER, ROWS_AFTER, GalleryState

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
    missing = [kind for kind in state.makers if kind not in kinds]
    problems = [f"the rows of {state.makers[kind].name} ({kind}) are missing" for kind in missing]
    total = sum(folder.engine.count(kind).rows for kind in kinds)
    with folder.progress.task("verifying", total, "rows") as advance:
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
    asked_counts(folder.path)
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
    for maker in folder.state.makers.values():
        if maker.source in (ONLY_STORED, BY_MAP):
            continue
        try:
            open_maker(folder.path, maker, folder.opening)
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

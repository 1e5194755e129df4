"""Letting another model search: only with a certificate for every model that made rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.evaluation.certificate import (
    COMPATIBLE,
    NOT_COMPATIBLE,
    Certificate,
)
from unibct.gallery.gallery_folder import (
    BY_MAP,
    GalleryFolder,
    describe_model,
    keep_model,
    query_view,
)
from unibct.gallery.gate import ask, ask_before
from unibct.gallery.settling import settle, undone_backfills
from unibct.gallery.state import (
    CERTIFY,
    UPGRADE,
    Access,
    GalleryState,
    RowMaker,
    Standing,
    now,
)
from unibct.gallery.status import Savings, measure_savings

# What to do about a verdict that is not *compatible*.
_ADVICE = {
    NOT_COMPATIBLE: "Train it with --old",
    "within noise": "Test it on more classes",
    "old model too weak": "Embed the rows again, or in a trial train a better old model",
}


@dataclass(frozen=True)
class Upgraded:
    """What an upgrade does, or would do."""

    model: RowMaker  # that searches from now on
    old_rows: int  # rows of other models that it searches as they are
    # kinds of rows that it searches without a certificate that says *compatible*
    forced: tuple[str, ...]
    known_queries: int  # how many of them have tested it, see `Passage.testing`
    savings: Savings  # what a backfill would cost, and what has been saved
    dry_run: bool  # nothing was changed
    certified: bool = False  # the model searched already; what is new is a certificate
    # kinds of rows whose certificate does not know whether a model was trained on the test classes,
    # or was made on such classes
    doubtful: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "searching": self.model.fingerprint,
            "old_rows": self.old_rows,
            "forced": list(self.forced),
            "known_queries": self.known_queries,
            "savings": self.savings.as_json(),
            "dry_run": self.dry_run,
            "certified": self.certified,
            "doubtful": list(self.doubtful),
        }


def upgrade_gallery(
    folder: GalleryFolder,
    model: str,
    certificates: Sequence[str | Path] = (),
    *,
    force: bool = False,
    dry_run: bool = False,
) -> Upgraded:
    """Let a new model search the rows that other models made; no row is changed.

    If the model searches already, the certificates are recorded that say something new about it.

    Args:
        folder: the gallery.
        model: a model folder, ``onnx:FILE`` or ``python:MODULE:ATTRIBUTE``.
        certificates: files that ``unibct evaluate … --certify`` wrote, one for each model that
            made rows. For two models that no file is about, those count that the gallery holds.
        force: let it search without them. That is recorded, and shown from then on.
        dry_run: check model and certificates and say what it would cost, but change nothing. The
            known queries are not asked.
    """
    with folder.writing():
        settle(folder)
        maker, embedder = describe_model(model, folder.opening)
        state = folder.state
        searches = maker.fingerprint == state.standing.searching
        papers = [Certificate.read(path) for path in certificates]
        if not searches:
            _require_no_replaced_rows(folder, maker)
        find_access = _certified_access if searches else _access
        access = find_access(folder, maker, papers, force=force)
        for kind in access:
            # Refuses a dimension that does not fit.
            query_view(embedder, _probe(maker.dim), state.makers[kind].dim, maker.name)
        standing = Standing(maker.fingerprint, access)
        rows = sum(folder.engine.count(kind).live for kind in access)
        savings = measure_savings(embedder, rows)
        forced = tuple(kind for kind, reason in access.items() if reason.forced)
        if dry_run:
            doubtful = folder.doubtful(standing, papers)
            return Upgraded(maker, rows, forced, 0, savings, True, searches, doubtful)
        before = ask_before(folder, "the upgrade")
        keep_model(folder.path, embedder)
        for paper in papers:
            folder.keep_certificate(paper)
        folder.add_maker(maker)
        try:
            after = ask(folder, standing)
            if not before.allows(after):
                raise before.refusal(after, f"the upgrade to {model}")
        except UserError:
            folder.save(replace(folder.state, makers=state.makers))
            raise
        folder.save(_upgraded(folder.state, standing, savings))
    doubtful = folder.doubtful(standing)
    tested = len(before.testing(after))
    return Upgraded(maker, rows, forced, tested, savings, False, searches, doubtful)


def _require_no_replaced_rows(folder: GalleryFolder, maker: RowMaker) -> None:
    """Refuse a model whose replaced rows a rollback may need.

    A backfill by it would write over these rows, and to undo that would delete them.
    """
    state = folder.state
    backfills = undone_backfills(state, 1)
    if maker.fingerprint not in state.makers or not backfills:
        return
    for rows in folder.engine.scan(maker.fingerprint, vectors=False):
        replaced = rows.take(np.flatnonzero(np.isin(rows.superseded, backfills)))
        if len(replaced):
            raise UserError(
                f"a backfill (step {replaced.superseded[0]}) has replaced rows of {maker.name}, "
                f"such as {replaced.ids[0]!r}; go back to it with unibct gallery rollback, or "
                "delete its old vectors first with unibct gallery backfill --finish"
            )


def _upgraded(state: GalleryState, standing: Standing, savings: Savings) -> GalleryState:
    """Return the state after the upgrade: one file is replaced, so it happens or it does not."""
    forced = [kind for kind, access in standing.access.items() if access.forced]
    details = {"model": standing.searching, "forced": forced, "savings": savings.as_json()}
    action = CERTIFY if standing.searching == state.standing.searching else UPGRADE
    changed = replace(state.begun(action, **details), standing=standing)
    return changed.changed_step(changed.next_number - 1, done=True, details={"ended": now()})


def _access(
    folder: GalleryFolder, maker: RowMaker, papers: Sequence[Certificate], *, force: bool
) -> dict[str, Access]:
    """Return why each kind of rows may be searched; refuse if there is no reason."""
    state = folder.state
    access: dict[str, Access] = {}
    for kind, made_by in state.makers.items():
        if made_by.space == maker.fingerprint:
            continue
        rows = folder.engine.count(kind).live
        fitting = _about(folder, papers, maker.fingerprint, kind)
        passed = _passing(fitting)
        if passed is not None:
            access[kind] = Access(passed.digest)
        elif rows == 0:
            continue
        elif force:
            # For rows of a map there is nothing better than the test of the model behind it.
            nearest = fitting or _about(folder, papers, maker.fingerprint, made_by.space)
            access[kind] = Access(nearest[0].digest if nearest else "", forced=True)
        else:
            damaged = folder.damaged_certificates
            raise UserError(_refusal(made_by, rows, maker, papers, fitting, damaged))
    return access


def _certified_access(
    folder: GalleryFolder, maker: RowMaker, papers: Sequence[Certificate], *, force: bool
) -> dict[str, Access]:
    """Return why the searching model may search each kind of rows, now that there are papers.

    Refuse papers from which nothing is learnt, neither about rows nor about the model's scores.
    """
    state = folder.state
    access = dict(state.standing.access)
    by_it = [paper for paper in papers if paper.new == maker.fingerprint]
    for kind, made_by in state.makers.items():
        if made_by.space == maker.fingerprint:
            continue
        fitting = _worst_first(paper for paper in by_it if paper.old == kind)
        passed = _passing(fitting)
        nearest = fitting or [paper for paper in by_it if paper.old == made_by.space]
        if passed is not None:
            access[kind] = Access(passed.digest)
        elif kind in access and fitting and not force:
            rows = folder.engine.count(kind).live
            raise UserError(_refusal(made_by, rows, maker, papers, fitting))
        elif kind in access and nearest and access[kind].forced:
            access[kind] = Access(nearest[0].digest, forced=True)
    held = {paper.digest for paper in folder.certificates()} if papers else set[str]()
    about = [paper for paper in papers if maker.fingerprint in (paper.new, paper.old)]
    if access == state.standing.access and all(paper.digest in held for paper in about):
        nothing = ", and the certificates say nothing new about it" if papers else ""
        raise UserError(f"{maker.name} searches this gallery already{nothing}")
    return access


def _about(
    folder: GalleryFolder, given: Sequence[Certificate], new: str, old: str
) -> list[Certificate]:
    """Return the given certificates for two models, else those that the gallery holds."""

    def fitting(papers: Sequence[Certificate]) -> list[Certificate]:
        return _worst_first(paper for paper in papers if (paper.new, paper.old) == (new, old))

    return fitting(given) or fitting(folder.certificates())


def _worst_first(papers: Iterable[Certificate]) -> list[Certificate]:
    return sorted(papers, key=lambda paper: paper.verdict != NOT_COMPATIBLE)


def _passing(fitting: Sequence[Certificate]) -> Certificate | None:
    """Return the certificate by which a model may search; none if one says *not compatible*.

    All of them are about the same models, the worst first.
    """
    if fitting and fitting[0].verdict == NOT_COMPATIBLE:
        return None
    return next((paper for paper in fitting if paper.is_compatible), None)


def _refusal(
    made_by: RowMaker,
    rows: int,
    maker: RowMaker,
    papers: Sequence[Certificate],
    fitting: Sequence[Certificate],
    damaged: Sequence[str] = (),
) -> str:
    """Return why an upgrade is refused, and what to do."""
    whom = f"{rows:,} rows were made by {made_by.name} ({made_by.fingerprint})"
    if fitting and fitting[0].verdict == COMPATIBLE:  # overridden
        return (
            f"{whom}, and the certificate says {COMPATIBLE} of {fitting[0].tested_on}; "
            f"{maker.name} may not search them. Test it on other classes, or insist with --force, "
            "which is recorded"
        )
    if fitting:
        return (
            f"{whom}, and the certificate says: {fitting[0].verdict}; {maker.name} may not search "
            f"them. {_ADVICE.get(fitting[0].verdict, 'Train it with --old')}, or insist with "
            "--force, which is recorded"
        )
    if made_by.source == BY_MAP:
        return (
            f"{rows:,} rows were made by the map {made_by.name}, which no certificate has tested "
            f"with {maker.name}: embed them from their images first (unibct gallery backfill G "
            "DATA), or insist with --force, which is recorded"
        )
    about = ""
    if papers:
        pairs = ", ".join(f"{paper.new[:12]} with {paper.old[:12]}" for paper in papers)
        about = f" (the given ones are about {pairs}; this is {maker.fingerprint[:12]})"
    if damaged:
        return (
            f"{whom}, and no certificate says that {maker.name} may search them{about}, but "
            f"{len(damaged)} that the gallery holds cannot be used: {damaged[0]}; give it again "
            "with --certificate, or insist with --force, which is recorded"
        )
    return (
        f"{whom}, and no certificate says that {maker.name} may search them{about}: write one with "
        f"unibct evaluate TEST --query NEW --gallery OLD --certify FILE, or insist with --force, "
        "which is recorded"
    )


def _probe(dim: int) -> NDArray[np.float32]:
    return np.full((1, dim), dim**-0.5, dtype=np.float32)

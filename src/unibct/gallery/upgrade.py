"""Letting another model search: only with a certificate for every model that made rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

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
from unibct.gallery.known_queries import found_mates, found_mates_before
from unibct.gallery.state import (
    CERTIFY,
    UPGRADE,
    Access,
    GalleryState,
    RowKind,
    Standing,
    now,
)
from unibct.gallery.status import Savings, measure_savings
from unibct.gallery.steps import end_interrupted_steps, undone_backfills

_TRAIN_WITH_OLD = "Train it with the old model (--old)"
# What to do about a verdict that is not *compatible*.
_ADVICE = {
    NOT_COMPATIBLE: _TRAIN_WITH_OLD,
    "within noise": "Test it on more classes",
    "old model too weak": "Embed the rows again, or in a trial train a better old model",
}
_INSIST = "or insist (force), which is recorded"


@dataclass(frozen=True)
class Upgraded:
    """What an upgrade does, or would do."""

    model: RowKind  # that searches from now on
    old_rows: int  # rows of other models that it searches as they are
    # kinds of rows that it searches without a certificate that says *compatible*
    forced: tuple[str, ...]
    known_queries: int  # how many of them have tested it, see `FoundMates.testing`
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
        end_interrupted_steps(folder)
        row_kind, embedder = describe_model(model, folder.opener)
        state = folder.state
        candidate = _Candidate(folder, row_kind, [Certificate.read(path) for path in certificates])
        searches = row_kind.fingerprint == state.standing.searching
        if searches:
            access = candidate.certified_access(force=force)
        else:
            _require_no_replaced_rows(folder, row_kind)
            access = candidate.access(force=force)
        probe = np.full((1, row_kind.dim), row_kind.dim**-0.5, dtype=np.float32)
        for kind in access:  # refuses a dimension that does not fit
            query_view(embedder, probe, state.kinds[kind].dim, row_kind.name)
        standing = Standing(row_kind.fingerprint, access)
        rows = sum(folder.engine.count(kind).live for kind in access)
        result = Upgraded(
            model=row_kind,
            old_rows=rows,
            forced=tuple(kind for kind, reason in access.items() if reason.forced),
            known_queries=0,
            savings=measure_savings(embedder, rows),
            dry_run=dry_run,
            certified=searches,
            doubtful=folder.doubtful(standing, candidate.given),
        )
        if dry_run:
            return result
        before = found_mates_before(folder, "the upgrade")
        keep_model(folder.path, embedder)
        for certificate in candidate.given:
            folder.keep_certificate(certificate)
        folder.add_kind(row_kind, embedder)
        try:
            after = found_mates(folder, standing)
            if not before.allows(after):
                raise before.refusal(after, f"the upgrade to {model}")
        except UserError:
            folder.save(replace(folder.state, kinds=state.kinds))
            raise
        folder.save(_upgraded(folder.state, standing, result.savings))
    tested = len(before.testing(after))
    return replace(result, known_queries=tested, doubtful=folder.doubtful(standing))


def _require_no_replaced_rows(folder: GalleryFolder, row_kind: RowKind) -> None:
    """Refuse a model whose replaced rows a rollback may need.

    A backfill by it would write over these rows, and to undo that would delete them.
    """
    state = folder.state
    backfills = undone_backfills(state, 1)
    if row_kind.fingerprint not in state.kinds or not backfills:
        return
    for rows in folder.engine.scan(row_kind.fingerprint, vectors=False):
        replaced = rows.take(np.flatnonzero(np.isin(rows.superseded, backfills)))
        if len(replaced):
            raise UserError(
                f"a backfill (step {replaced.superseded[0]}) has replaced rows of {row_kind.name}, "
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


@dataclass(frozen=True)
class _Candidate:
    """The model that is to search, and the certificates that were given for it."""

    folder: GalleryFolder
    model: RowKind
    given: Sequence[Certificate]

    def access(self, *, force: bool) -> dict[str, Access]:
        """Return why each kind of rows may be searched; refuse if there is no reason."""
        access: dict[str, Access] = {}
        for kind, made_by in self._others():
            rows = self.folder.engine.count(kind).live
            fitting = self._about(kind)
            passed = _passing(fitting)
            if passed is not None:
                access[kind] = Access(passed.digest)
            elif rows == 0:
                continue
            elif force:
                # For rows of a map there is nothing better than the test of the model behind it.
                nearest = fitting or self._about(made_by.space)
                access[kind] = Access(nearest[0].digest if nearest else "", forced=True)
            else:
                damaged = self.folder.damaged_certificates
                raise UserError(self._refusal(made_by, rows, fitting, damaged))
        return access

    def certified_access(self, *, force: bool) -> dict[str, Access]:
        """Return why this model, which searches, may search each kind of rows from now on.

        Refuse certificates from which nothing is learnt, neither about rows nor about the model's
        scores.
        """
        standing = self.folder.state.standing
        access = dict(standing.access)
        for kind, made_by in self._others():
            fitting = self._given_about(kind)
            passed = _passing(fitting)
            nearest = fitting or self._given_about(made_by.space)
            if passed is not None:
                access[kind] = Access(passed.digest)
            elif kind in access and fitting and not force:
                rows = self.folder.engine.count(kind).live
                raise UserError(self._refusal(made_by, rows, fitting))
            elif kind in access and nearest and access[kind].forced:
                access[kind] = Access(nearest[0].digest, forced=True)
        held = {one.digest for one in self.folder.certificates()} if self.given else set[str]()
        about = [one for one in self.given if self.model.fingerprint in (one.new, one.old)]
        if access == standing.access and all(one.digest in held for one in about):
            nothing = ", and the certificates say nothing new about it" if self.given else ""
            raise UserError(f"{self.model.name} searches this gallery already{nothing}")
        return access

    def _others(self) -> list[tuple[str, RowKind]]:
        """Return the kinds of rows that are not in this model's own space."""
        kinds = self.folder.state.kinds.items()
        return [pair for pair in kinds if pair[1].space != self.model.fingerprint]

    def _about(self, old: str) -> list[Certificate]:
        """Return the given certificates for this model and an old one, else those held."""
        return self._given_about(old) or self._fitting(self.folder.certificates(), old)

    def _given_about(self, old: str) -> list[Certificate]:
        return self._fitting(self.given, old)

    def _fitting(self, certificates: Iterable[Certificate], old: str) -> list[Certificate]:
        """Return those about this model and an old one, the worst first."""
        pair = (self.model.fingerprint, old)
        fitting = [one for one in certificates if (one.new, one.old) == pair]
        return sorted(fitting, key=lambda one: one.verdict != NOT_COMPATIBLE)

    def _refusal(
        self,
        made_by: RowKind,
        rows: int,
        fitting: Sequence[Certificate],
        damaged: Sequence[str] = (),
    ) -> str:
        """Return why an upgrade is refused, and what to do."""
        name = self.model.name
        whom = f"{rows:,} rows were made by {made_by.name} ({made_by.fingerprint})"
        if fitting and fitting[0].verdict == COMPATIBLE:  # overridden
            return (
                f"{whom}, and the certificate says {COMPATIBLE} of {fitting[0].tested_on}; "
                f"{name} may not search them. Test it on other classes, {_INSIST}"
            )
        if fitting:
            verdict = fitting[0].verdict
            return (
                f"{whom}, and the certificate says: {verdict}; {name} may not search them. "
                f"{_ADVICE.get(verdict, _TRAIN_WITH_OLD)}, {_INSIST}"
            )
        if made_by.source == BY_MAP:
            return (
                f"{rows:,} rows were made by the map {made_by.name}, which no certificate has "
                f"tested with {name}: embed them from their images first (unibct gallery backfill "
                f"G DATA), {_INSIST}"
            )
        about = ""
        if self.given:
            pairs = ", ".join(f"{one.new[:12]} with {one.old[:12]}" for one in self.given)
            about = f" (the given ones are about {pairs}; this is {self.model.fingerprint[:12]})"
        untested = f"{whom}, and no certificate says that {name} may search them{about}"
        if damaged:
            return (
                f"{untested}, but {len(damaged)} that the gallery holds cannot be used: "
                f"{damaged[0]}; give it again (certificates), {_INSIST}"
            )
        return (
            f"{untested}: write one with unibct evaluate TEST --query NEW --gallery OLD --certify "
            f"FILE, {_INSIST}"
        )


def _passing(fitting: Sequence[Certificate]) -> Certificate | None:
    """Return the certificate by which a model may search; none if one says *not compatible*.

    All of them are about the same models, the worst first.
    """
    if fitting and fitting[0].verdict == NOT_COMPATIBLE:
        return None
    return next((one for one in fitting if one.is_compatible), None)

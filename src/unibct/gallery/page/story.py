"""The gallery's history and its certificate in words and numbers for people. Pure functions."""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from unibct.evaluation.certificate import Certificate
from unibct.evaluation.metrics import TOP_1
from unibct.gallery.page import story
from unibct.gallery.page.answers import (
    CertificateAnswer,
    CriterionAnswer,
    HitAnswer,
    JobAnswer,
    KindAnswer,
    ModelAnswer,
    RollbackAnswer,
    SavingsAnswer,
    StatusAnswer,
    StepAnswer,
)
from unibct.gallery.rollback import rollback_targets, stopped_target
from unibct.gallery.search import Hit
from unibct.gallery.state import (
    ADD,
    BACKFILL,
    CERTIFY,
    CREATE,
    FINISH,
    INDEX,
    LAZY,
    REMOVE,
    ROLLBACK,
    STEPS,
    UNTIL,
    UPGRADE,
    Access,
    GalleryState,
    Standing,
    Step,
)
from unibct.gallery.status import GalleryStatus, duration


def short_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return as much of the end of each path or reference as tells it from the others."""
    parts = {key: re.split("([/:])", name.rstrip("/")) for key, name in names.items()}
    for length in range(1, max((len(p) for p in parts.values()), default=0) + 1, 2):
        short = {key: "".join(part[-length:]) for key, part in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return dict(names)


def step_text(step: Step, names: Mapping[str, str]) -> str:
    """Return one line that says what a step did.

    Args:
        step: of the gallery.
        names: fingerprint -> name of the model.
    """
    details = step.details
    texts = {
        CREATE: "An empty gallery",
        ADD: _added(details),
        UPGRADE: _upgraded(details, names),
        CERTIFY: _certified(details, names),
        BACKFILL: _backfilled(step, names),
        FINISH: f"{_count(details, 'deleted')} old vectors deleted for good",
        ROLLBACK: f"Back to before step {details.get('to')}",
        REMOVE: f"{_count(details, 'rows')} rows removed for good{_in_steps(details)}",
        INDEX: "Index for approximate search built",
    }
    return texts.get(step.action, step.action)


def _added(details: Mapping[str, Any]) -> str:
    source = details.get("source")
    text = f"{_count(details, 'added')} rows added" + (f" from {source}" if source else "")
    return text + _in_steps(details)


def _in_steps(details: Mapping[str, Any]) -> str:
    """Return how many steps a step stands for, if it is not one."""
    if STEPS not in details:
        return ""
    return f" in {details[STEPS]:,} steps, the last on {str(details[UNTIL])[:10]}"


def _upgraded(details: Mapping[str, Any], names: Mapping[str, str]) -> str:
    savings = details.get("savings", {})
    text = f"{_named(details, names)} searches"
    if savings.get("rows"):
        text += f"; {savings['rows']:,} rows stay as they are"
    if savings.get("seconds"):
        text += f", which saves {duration(savings['seconds'])} of embedding"
    return text + (
        "; forced, without a certificate that allows it" if details.get("forced") else ""
    )


def _certified(details: Mapping[str, Any], names: Mapping[str, str]) -> str:
    text = f"A certificate for {_named(details, names)} recorded"
    return text + ("; some rows are still forced" if details.get("forced") else "")


def _backfilled(step: Step, names: Mapping[str, str]) -> str:
    details = step.details
    if details.get(LAZY):
        return f"Rows that searches found embedded again by {_named(details, names)}"
    curve: list[tuple[float, float]] = details.get("curve") or []
    goal = f"up to {_percent(details.get('share', 1))} of all rows"
    text = f"Rows embedded again by {_named(details, names)}, {goal}, order {details.get('order')}"
    if curve and not step.undone:
        text += f"; {_percent(curve[-1][0])} reached"
    if details.get("stopped"):
        text += "; stopped"
    return text + ("" if step.done else "; not complete")


def _named(details: Mapping[str, Any], names: Mapping[str, str]) -> str:
    fingerprint = str(details.get("model", ""))
    return names.get(fingerprint, fingerprint)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(details: Mapping[str, Any], key: str) -> str:
    value = details.get(key)
    return f"{value:,}" if isinstance(value, int) else "Some"


def last_upgrade(steps: tuple[Step, ...]) -> Step | None:
    """Return the upgrade that is in force, if there is one."""
    upgrades = [step for step in steps if step.action == UPGRADE and step.done and not step.undone]
    return upgrades[-1] if upgrades else None


def standing_before(steps: tuple[Step, ...]) -> Standing | None:
    """Return who searched what before the upgrade that is in force."""
    upgrade = last_upgrade(steps)
    return None if upgrade is None else upgrade.before


def deleted_since(steps: tuple[Step, ...], number: int) -> int:
    """Return how many old vectors were deleted for good after a step."""
    finished = (step for step in steps if step.action == FINISH and step.number > number)
    return sum(int(step.details.get("deleted", 0)) for step in finished)


def criteria(certificate: Certificate) -> list[CriterionAnswer]:
    """Return the metrics of single images; those that decide about the verdict come first."""
    metrics = certificate.content["image_metrics"]
    return [
        CriterionAnswer(
            metric=entry["metric"],
            old_self=entry["old_self"],
            cross=entry["cross"],
            difference=entry["difference"],
            low=entry["interval"][0],
            high=entry["interval"][1],
            confidence=entry["confidence"],
            verdict=entry["verdict"],
            decides=group == "criteria",
        )
        for group in ("criteria", "further_metrics")
        for entry in metrics.get(group, [])
    ]


def top_1(certificate: Certificate) -> dict[str, float]:
    """Return direction -> top-1, as far as the certificate says it.

    It is that of single images, as in a gallery, or of templates if the test has measured the
    way of a backfill: that is measured with templates.
    """
    group = "metrics" if certified_curves(certificate) else "image_metrics"
    tests: dict[str, dict[str, float]] = certificate.content.get(group, {}).get("tests", {})
    return {name: values[TOP_1] for name, values in tests.items() if TOP_1 in values}


def certified_curves(certificate: Certificate) -> dict[str, list[tuple[float, float]]]:
    """Return order of rows -> (share of new rows, top-1), if the test measured the way."""
    measured: dict[str, dict[str, Any]] = certificate.content.get("backfill_curve") or {}
    return {
        order: list(zip(curve["shares"], curve[TOP_1], strict=True))
        for order, curve in measured.items()
        if TOP_1 in curve and "shares" in curve
    }


# The state of a gallery and its certificates as answers of the JSON interface. Pure functions.


def described_models(state: GalleryState) -> dict[str, ModelAnswer]:
    """Return fingerprint -> model, for each model and map of a gallery."""
    names = {kind: maker.name for kind, maker in state.makers.items()}
    short = story.short_names(names)
    return {
        kind: ModelAnswer(fingerprint=kind, name=name, short_name=short[kind])
        for kind, name in names.items()
    }


def described_status(
    name: str,
    status: GalleryStatus,
    fars: Sequence[float],
    job: JobAnswer | None,
    *,
    has_images: bool,
) -> StatusAnswer:
    """Return what a gallery looks like.

    Args:
        name: of the gallery.
        status: its rows and steps.
        fars: false accept rates that it has thresholds for.
        job: what is done in the background.
        has_images: whether the images of its rows are given.
    """
    state = status.state
    models, values = described_models(state), status.as_json()
    before = story.standing_before(state.steps)
    return StatusAnswer(
        gallery=name,
        engine=state.engine,
        rows=values["rows"],
        searching=models[state.standing.searching],
        previous=None if before is None else models[before.searching],
        kinds=[
            KindAnswer(
                model=models[kind],
                row=values["row_types"][kind],
                rows=rows,
                share=rows / max(1, values["rows"]),
                replaced=status.replaced.get(kind, 0),
            )
            for kind, rows in status.live.items()
        ],
        unsearchable=status.unsearchable,
        forced=[models[kind].short_name for kind in status.forced],
        doubtful=[models[kind].short_name for kind in status.doubtful],
        known_queries=status.known,
        savings=SavingsAnswer(**status.savings.as_json(), summary=status.savings.summary()),
        steps=_steps(state, models),
        unfinished=None if state.open_backfill is None else state.open_backfill.number,
        rollbacks=_rollbacks(state, models, has_images=has_images),
        job=job,
        has_images=has_images,
        fars=list(fars),
    )


def _steps(state: GalleryState, models: Mapping[str, ModelAnswer]) -> list[StepAnswer]:
    return [
        StepAnswer(
            number=step.number,
            action=step.action,
            date=step.date,
            done=step.done,
            undone=step.undone,
            text=story.step_text(step, _short(models)),
            curve=step.details.get("curve", []),
        )
        for step in state.steps
    ]


def _rollbacks(
    state: GalleryState, models: Mapping[str, ModelAnswer], *, has_images: bool
) -> list[RollbackAnswer]:
    stopped = stopped_target(state, images=has_images)
    return [
        RollbackAnswer(
            step=step.number,
            action=step.action,
            text=story.step_text(step, _short(models)),
            searching=models[(step.before or state.standing).searching],
            stopped=step == stopped,
        )
        for step in reversed(rollback_targets(state, images=has_images))
    ]


def _short(models: Mapping[str, ModelAnswer]) -> dict[str, str]:
    return {kind: model.short_name for kind, model in models.items()}


def described_hits(
    hits: Sequence[Hit], models: Mapping[str, ModelAnswer], with_image: Container[str]
) -> list[HitAnswer]:
    """Return rows that were found.

    Args:
        hits: the rows.
        models: fingerprint -> model.
        with_image: ids whose images are given.
    """
    return [
        HitAnswer(
            id=hit.id,
            label=hit.label,
            score=hit.score,
            similarity=hit.similarity,
            model=models[hit.model],
            row=hit.row,
            metadata=hit.metadata,
            has_image=hit.id in with_image,
        )
        for hit in hits
    ]


def described_certificate(
    rows_of: ModelAnswer, access: Access, certificate: Certificate | None, problem: str = ""
) -> CertificateAnswer:
    """Return why the rows of a model may be searched.

    Args:
        rows_of: the model.
        access: why its rows may be searched.
        certificate: None if there is none, or if it cannot be read.
        problem: why it cannot be read.
    """
    if certificate is None:
        return CertificateAnswer(
            rows_of=rows_of,
            forced=access.forced,
            verdict=None,
            template_verdict=None,
            basis=None,
            tested_on="",
            summary=problem or "searched by --force, without a certificate",
            digest="",
            date="",
            criteria=[],
            thresholds={},
            calibration="raw",
            top_1={},
            curves={},
            document={},
        )
    return CertificateAnswer(
        rows_of=rows_of,
        forced=access.forced,
        verdict=certificate.verdict,
        template_verdict=certificate.template_verdict,
        basis=certificate.basis,
        tested_on=certificate.tested_on,
        summary=certificate.summary(),
        digest=certificate.digest,
        date=str(certificate.content["date"]),
        criteria=story.criteria(certificate),
        thresholds=certificate.content["thresholds"],
        calibration=certificate.calibration.kind,
        top_1=story.top_1(certificate),
        curves=story.certified_curves(certificate),
        document=certificate.content,
    )

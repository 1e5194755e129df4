"""The state of a gallery and its certificates as answers of the JSON interface. Pure functions."""

from collections.abc import Container, Mapping, Sequence

from unibct.gallery.certificate import Certificate
from unibct.gallery.page import story
from unibct.gallery.page.answers import (
    CertificateAnswer,
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
from unibct.gallery.state import Access, GalleryState
from unibct.gallery.status import GalleryStatus


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

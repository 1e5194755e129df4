"""What the JSON interface returns, and how it is made from a gallery's state.

FastAPI makes the OpenAPI description from these types. The functions are pure: a state, a
certificate or hits go in, an answer for people comes out.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unibct.evaluation.certificate import Certificate
from unibct.evaluation.metrics import TOP_1
from unibct.evaluation.seen_classes import Basis
from unibct.gallery import state as actions
from unibct.gallery.rollback import rollback_targets, stopped_target
from unibct.gallery.search import Hit
from unibct.gallery.state import (
    BY_SEARCHES,
    FINISH,
    STEPS,
    UNTIL,
    UPGRADE,
    Access,
    GalleryState,
    Standing,
    Step,
)
from unibct.gallery.status import GalleryStatus, duration

Scalar = str | int | float | bool | None


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="one line: what is wrong, and what to do")


class ModelAnswer(BaseModel):
    """A model, or a map, that has made rows."""

    fingerprint: str
    name: str = Field(description="what the user called it")
    short_name: str = Field(description="as much of the name as tells it from the others")


def described_models(state: GalleryState) -> dict[str, ModelAnswer]:
    """Return fingerprint -> model, for each model and map of a gallery."""
    names = {kind: row_kind.name for kind, row_kind in state.kinds.items()}
    short = short_names(names)
    return {
        kind: ModelAnswer(fingerprint=kind, name=name, short_name=short[kind])
        for kind, name in names.items()
    }


def short_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return as much of the end of each path or reference as tells it from the others."""
    parts = {key: re.split("([/:])", name.rstrip("/")) for key, name in names.items()}
    for length in range(1, max((len(p) for p in parts.values()), default=0) + 1, 2):
        short = {key: "".join(part[-length:]) for key, part in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return dict(names)


# The steps of a gallery, in words.


class StepAnswer(BaseModel):
    """Something that was done to the gallery."""

    number: int
    action: str
    date: str
    done: bool
    undone: bool
    text: str
    curve: list[tuple[float, float]] = Field(
        description="of a backfill: share of own rows, share of known queries that find a mate"
    )


def step_text(step: Step, names: Mapping[str, str]) -> str:
    """Return one line that says what a step did; ``names``: fingerprint -> name of the model."""
    details = step.details
    fingerprint = str(details.get("model", ""))
    name = names.get(fingerprint, fingerprint)
    in_steps = ""
    if STEPS in details:
        in_steps = f" in {details[STEPS]:,} steps, the last on {str(details[UNTIL])[:10]}"
    match step.action:
        case actions.CREATE:
            return "An empty gallery"
        case actions.ADD:
            source = f" from {details['source']}" if details.get("source") else ""
            return f"{_count(details, 'added')} rows added{source}{in_steps}"
        case actions.UPGRADE:
            return _upgraded(details, name)
        case actions.CERTIFY:
            still = "; some rows are still forced" if details.get("forced") else ""
            return f"A certificate for {name} recorded{still}"
        case actions.BACKFILL:
            return _backfilled(step, name)
        case actions.FINISH:
            return f"{_count(details, 'deleted')} old vectors deleted for good"
        case actions.ROLLBACK:
            return f"Back to before step {details.get('to')}"
        case actions.REMOVE:
            return f"{_count(details, 'rows')} rows removed for good{in_steps}"
        case actions.INDEX:
            return "Index for approximate search built"
        case other:
            return other


def _upgraded(details: Mapping[str, Any], name: str) -> str:
    savings = details.get("savings", {})
    text = f"{name} searches"
    if savings.get("rows"):
        text += f"; {savings['rows']:,} rows stay as they are"
    if savings.get("seconds"):
        text += f", which saves {duration(savings['seconds'])} of embedding"
    if details.get("forced"):
        text += "; forced, without a certificate that allows it"
    return text


def _backfilled(step: Step, name: str) -> str:
    details = step.details
    if details.get(BY_SEARCHES):
        return f"Rows that searches found embedded again by {name}"
    curve: list[tuple[float, float]] = details.get("curve") or []
    goal = f"up to {_percent(details.get('share', 1))} of all rows"
    text = f"Rows embedded again by {name}, {goal}, order {details.get('order')}"
    if curve and not step.undone:
        text += f"; {_percent(curve[-1][0])} reached"
    if details.get("stopped"):
        text += "; stopped"
    return text + ("" if step.done else "; not complete")


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


# What the gallery looks like now.


class KindAnswer(BaseModel):
    """The rows of one model."""

    model: ModelAnswer
    row: str = Field(description="own, older, mapped, or not searched")
    rows: int = Field(description="live rows")
    share: float = Field(description="of all live rows")
    replaced: int = Field(
        description="replaced vectors that are kept until the backfill is finished"
    )


class SavingsAnswer(BaseModel):
    """What a backfill of the older rows would cost here."""

    rows: int
    images_per_second: float | None
    seconds: float | None
    summary: str


class JobAnswer(BaseModel):
    """The work that this server does, or did last, in the background."""

    action: Literal["backfill", "rollback"]
    state: Literal["running", "paused", "done", "failed"]
    done: int
    total: int | None = Field(description="None while it is not known yet")
    message: str


class RollbackAnswer(BaseModel):
    """A step that a rollback can go back to before."""

    step: int
    action: str
    text: str
    searching: ModelAnswer = Field(description="the model that would search then")
    stopped: bool = Field(
        description="this rollback has begun, and embeds rows or was stopped while it did: it "
        "can go on"
    )


class StatusAnswer(BaseModel):
    """What the gallery looks like now."""

    gallery: str
    engine: str
    rows: int
    searching: ModelAnswer
    previous: ModelAnswer | None = Field(description="the model before the last upgrade")
    kinds: list[KindAnswer]
    unsearchable: int
    forced: list[str] = Field(description="names of models whose rows are searched by force")
    doubtful: list[str] = Field(
        description="names of models whose rows are searched by a certificate whose test classes "
        "are not known to be unseen"
    )
    known_queries: int
    savings: SavingsAnswer
    steps: list[StepAnswer]
    unfinished: int | None = Field(description="the step of a backfill that is not complete")
    rollbacks: list[RollbackAnswer] = Field(description="what can be undone, the last step first")
    job: JobAnswer | None
    has_images: bool
    fars: list[float] = Field(description="false accept rates that a search can ask for")


def described_status(
    name: str,
    status: GalleryStatus,
    fars: Sequence[float],
    job: JobAnswer | None,
    *,
    has_images: bool,
) -> StatusAnswer:
    """Return what a gallery looks like.

    ``fars`` are the false accept rates that it has thresholds for, ``job`` is what is done in the
    background, and ``has_images`` says whether the images of its rows are given.
    """
    state = status.state
    models, values = described_models(state), status.as_json()
    names = {kind: model.short_name for kind, model in models.items()}
    before = standing_before(state.steps)
    stopped = stopped_target(state, images=has_images)
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
        forced=[names[kind] for kind in status.forced],
        doubtful=[names[kind] for kind in status.doubtful],
        known_queries=status.known,
        savings=SavingsAnswer(**status.savings.as_json(), summary=status.savings.summary()),
        steps=[
            StepAnswer(
                number=step.number,
                action=step.action,
                date=step.date,
                done=step.done,
                undone=step.undone,
                text=step_text(step, names),
                curve=step.details.get("curve", []),
            )
            for step in state.steps
        ],
        unfinished=None if state.open_backfill is None else state.open_backfill.number,
        rollbacks=[
            RollbackAnswer(
                step=step.number,
                action=step.action,
                text=step_text(step, names),
                searching=models[(step.before or state.standing).searching],
                stopped=step == stopped,
            )
            for step in reversed(rollback_targets(state, images=has_images))
        ],
        job=job,
        has_images=has_images,
        fars=list(fars),
    )


# What a search finds.


class HitAnswer(BaseModel):
    """A row that a query has found."""

    id: str
    label: str | None
    score: float = Field(description="comparable between rows of all models")
    similarity: float = Field(description="the plain cosine")
    model: ModelAnswer
    row: str = Field(description="own, older or mapped")
    metadata: dict[str, Scalar]
    has_image: bool


class ColumnAnswer(BaseModel):
    """What one model finds."""

    role: Literal["before", "now"]
    model: ModelAnswer
    hits: list[HitAnswer]
    problem: str = Field(
        description="why this model finds nothing, or not everything; otherwise empty"
    )


class SearchAnswer(BaseModel):
    """What the model before the last upgrade finds, if there is one, and what the present one."""

    columns: list[ColumnAnswer]
    query_id: str | None = Field(description="of the image set, if the query is from there")
    query_label: str | None
    forced: bool = Field(description="some rows are searched without a certificate")


def described_hits(
    hits: Sequence[Hit], models: Mapping[str, ModelAnswer], with_image: Container[str]
) -> list[HitAnswer]:
    """Return rows that were found; ``with_image``: the ids whose images are given."""
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


class SampleAnswer(BaseModel):
    """An image of the image set, to search with."""

    id: str
    label: str | None


class SamplesAnswer(BaseModel):
    """Some images of the image set."""

    samples: list[SampleAnswer]


# Why the searching model may search the rows of older ones.


class CriterionAnswer(BaseModel):
    """A metric of the test, with its interval."""

    metric: str
    old_self: float
    cross: float
    difference: float
    low: float
    high: float
    confidence: float
    verdict: str
    decides: bool


class CertificateAnswer(BaseModel):
    """Why the searching model may search the rows of an older one."""

    # What has a default here is in every answer all the same.
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    rows_of: ModelAnswer
    forced: bool
    summary: str
    verdict: str | None = Field(
        default=None, description="on single images; None without a certificate"
    )
    template_verdict: str | None = Field(
        default=None, description="on templates, one for each class"
    )
    basis: Basis | None = Field(default=None, description="what is known of the test classes")
    tested_on: str = Field(default="", description="the same in words")
    digest: str = ""
    date: str = ""
    criteria: list[CriterionAnswer] = []
    thresholds: dict[str, dict[str, float]] = {}
    calibration: str = "raw"
    top_1: dict[str, float] = Field(default={}, description="among single images, by direction")
    curves: dict[str, list[tuple[float, float]]] = Field(
        default={},
        description="order of rows -> share of new rows, top-1; empty if it was not measured",
    )
    document: dict[str, Any] = Field(default={}, description="the whole certificate")


class CertificatesAnswer(BaseModel):
    """The certificates that are in use, one for each model that made rows."""

    certificates: list[CertificateAnswer]


def described_certificate(
    rows_of: ModelAnswer, access: Access, certificate: Certificate | None, problem: str = ""
) -> CertificateAnswer:
    """Return why the rows of a model may be searched; ``problem``: why there is no certificate."""
    if certificate is None:
        why = problem or "searched because somebody insisted (force), without a certificate"
        return CertificateAnswer(rows_of=rows_of, forced=access.forced, summary=why)
    return CertificateAnswer(
        rows_of=rows_of,
        forced=access.forced,
        summary=certificate.summary(),
        verdict=certificate.verdict,
        template_verdict=certificate.template_verdict,
        basis=certificate.basis,
        tested_on=certificate.tested_on,
        digest=certificate.digest,
        date=str(certificate.content["date"]),
        criteria=criteria(certificate),
        thresholds=certificate.content["thresholds"],
        calibration=certificate.calibration.kind,
        top_1=top_1(certificate),
        curves=certified_curves(certificate),
        document=certificate.content,
    )


def criteria(certificate: Certificate) -> list[CriterionAnswer]:
    """Return the metrics of single images; those that decide about the verdict come first."""
    metrics = certificate.content["image_metrics"]
    same = ("metric", "old_self", "cross", "difference", "confidence", "verdict")
    return [
        CriterionAnswer(
            **{name: entry[name] for name in same},
            low=entry["interval"][0],
            high=entry["interval"][1],
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


# What a request brings.


class BackfillBody(BaseModel):
    """Which rows are to be embedded again."""

    model_config = ConfigDict(extra="forbid")

    share: float = Field(
        default=1.0, gt=0, le=1, description="of all rows that are own ones in the end"
    )
    order: Literal["random", "farthest", "asked"] = "random"
    seed: int = Field(default=0, ge=0)


class RollbackBody(BaseModel):
    """Where to go back to."""

    model_config = ConfigDict(extra="forbid")

    to: int | None = Field(
        default=None,
        ge=1,
        description="before this step; by default that of a stopped rollback, or the last upgrade",
    )

"""What the JSON interface returns, as types: FastAPI makes the OpenAPI description from them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unibct.evaluation.seen_classes import Basis

Scalar = str | int | float | bool | None


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="one line: what is wrong, and what to do")


class ModelAnswer(BaseModel):
    """A model, or a map, that has made rows."""

    fingerprint: str
    name: str = Field(description="what the user called it")
    short_name: str = Field(description="as much of the name as tells it from the others")


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
    forced: list[str] = Field(description="names of models whose rows are searched by --force")
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

    rows_of: ModelAnswer
    forced: bool
    verdict: str | None = Field(description="on single images; None without a certificate")
    template_verdict: str | None = Field(description="on templates, one for each class")
    basis: Basis | None = Field(description="what is known of the test classes")
    tested_on: str = Field(description="the same in words")
    summary: str
    digest: str
    date: str
    criteria: list[CriterionAnswer]
    thresholds: dict[str, dict[str, float]]
    calibration: str
    top_1: dict[str, float] = Field(description="among single images, by direction")
    curves: dict[str, list[tuple[float, float]]] = Field(
        description="order of rows -> share of new rows, top-1; empty if it was not measured"
    )
    document: dict[str, Any] = Field(description="the whole certificate")


class CertificatesAnswer(BaseModel):
    """The certificates that are in use, one for each model that made rows."""

    certificates: list[CertificateAnswer]


class SampleAnswer(BaseModel):
    """An image of the image set, to search with."""

    id: str
    label: str | None


class SamplesAnswer(BaseModel):
    """Some images of the image set."""

    samples: list[SampleAnswer]


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

"""The gallery's history and its certificate in words and numbers for people. Pure functions."""

import re
from collections.abc import Mapping
from typing import Any

from unibct.evaluation.metrics.table import TOP_1
from unibct.gallery.certificate import Certificate
from unibct.gallery.page.answers import CriterionAnswer
from unibct.gallery.savings import duration
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
    Standing,
    Step,
)


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

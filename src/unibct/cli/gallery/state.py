"""The commands that look at a gallery: status and verify."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unibct.cli.gallery.options import (
    GalleryArgument,
    doubt_text,
    gallery_app,
    opened_gallery,
    say,
)
from unibct.cli.options import JsonOption, examples

if TYPE_CHECKING:
    from unibct.gallery.state import GalleryState, Step
    from unibct.gallery.status import GalleryStatus

# Types of rows in words; the types are those of ``row_type``.
_ROW_TYPES = {
    "own": "its own rows",
    "older": "searched as they are",
    "mapped": "mapped from older rows",
    "not searched": "cannot be searched",
}


@gallery_app.command("status", epilog=examples("unibct gallery status G --json"))
def status_command(path: GalleryArgument, as_json: JsonOption = False) -> None:
    """Show rows, models, who searches, the steps that were taken, and what has been saved."""
    with opened_gallery(path, "cpu") as gallery:
        status = gallery.status()
    say(as_json, status.as_json(), _status(path, status))


@gallery_app.command("verify", epilog=examples("unibct gallery verify G"))
def verify_command(path: GalleryArgument, as_json: JsonOption = False) -> None:
    """Read everything that a step reads: rows, index, models, certificates, known queries.

    Rows, models and certificates are compared with their digests. Exits with code 1 if something
    differs or cannot be read.
    """
    with opened_gallery(path, "cpu") as gallery:
        problems = gallery.verify()
        if problems:
            say(as_json, {"problems": problems}, "\n".join(problems))
            raise typer.Exit(1)
        rows = sum(gallery.status().live.values())
    message = (
        f"{path}: all {rows:,} rows are as they were written; models, certificates and known "
        "queries can be read"
    )
    say(as_json, {"problems": [], "rows": rows}, message)


def _status(path: Path, status: "GalleryStatus") -> str:
    """Return the status for people."""
    state = status.state
    values = status.as_json()
    lines = [
        f"{path}: {values['rows']:,} rows, engine {state.engine}"
        + (f" at {state.address}" if state.address else ""),
        f"searched by {state.searching.name} ({state.standing.searching})",
    ]
    for kind, rows in status.live.items():
        share = rows / max(1, values["rows"])
        about = _about_rows(rows, values["row_types"][kind], status.replaced.get(kind, 0))
        made_by = state.kinds[kind].name
        lines.append(f"  {rows:>10,} rows ({share:4.0%}) by {made_by}{about}")
    if status.forced:
        lines.append(f"! forced, without a certificate that allows it: {', '.join(status.forced)}")
    if status.doubtful:
        lines.append(doubt_text(status.doubtful))
    if status.unsearchable:
        lines.append(f"! {status.unsearchable:,} rows cannot be searched by this model")
    unfinished = state.unfinished
    if state.open_backfill is not None:
        lines.append(f"a backfill is under way or paused (step {state.open_backfill.number})")
    elif unfinished is not None and unfinished.details.get("lazy"):
        lines.append(f"searches embed rows again that they find (step {unfinished.number})")
    elif unfinished is not None:
        lines.append(
            f"! step {unfinished.number}, {unfinished.action}, is under way or was interrupted: "
            "the same command completes it; another one that writes brings it to an end first, or "
            "takes it back, and says so"
        )
    if status.savings.rows:
        lines.append(f"saved: {status.savings.summary()}")
    lines.append(f"{status.known} known queries")
    lines.append("steps:")
    for step in state.steps:
        mark = " (undone)" if step.undone else "" if step.done else " (not complete)"
        what = f"{step.action} {_about(step, state)}".rstrip()
        lines.append(f"  {step.number:>4}  {step.date}  {what}{mark}")
    return "\n".join(lines)


def _about_rows(rows: int, row_type: str, replaced: int) -> str:
    """Return what to say about the rows of a kind, and about its vectors beside them."""
    is_searched = row_type != "not searched"
    text = f", {_ROW_TYPES[row_type]}" if rows or is_searched else ""
    # After a rollback, vectors of a newer model may be those that were replaced.
    age = "old" if is_searched else "replaced"
    return text + (f", {replaced:,} {age} vectors kept until backfill --finish" if replaced else "")


def _about(step: "Step", state: "GalleryState") -> str:
    """Return what a step was about, in a few words."""
    details = step.details
    model = state.kinds.get(str(details.get("model")))
    counted = {"added": "rows", "rows": "rows", "deleted": "old vectors deleted"}
    words = [f"{details[name]:,} {what}" for name, what in counted.items() if name in details]
    if "steps" in details:
        words.append(f"in {details['steps']:,} steps until {details['until']}")
    if model is not None:
        by = "by" if "share" in details else "for" if step.action == "certify" else "to"
        words.append(f"{by} {model.name}" + (", by searches" if details.get("lazy") else ""))
    if details.get("share", 1) < 1:
        words.append(f"up to {details['share']:.0%}")
    if "to" in details:
        words.append(f"to before step {details['to']}")
    return " ".join(words)

"""The model card: what a model is, what it was trained on, and what is known of it, in Markdown."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unibct.errors import UserError
from unibct.evaluation.criterion import NOT_COMPATIBLE_RULE
from unibct.evaluation.search_test import CROSS, OLD_SELF
from unibct.files import read_json, write_text
from unibct.models.model_folder import MODEL_DESCRIPTION
from unibct.report.texts import loss_text, megabytes, metric_text

CARD_FILE = "MODEL_CARD.md"
_UNKNOWN = "not measured: give `unibct card --evaluation FILE`, from `unibct evaluate --json`"
_RECIPE = ("epochs", "batch_size", "lr", "schedule", "margin", "scale", "eta", "seed", "weights")


def write_model_card(
    folder: str | Path, evaluation: str | Path | None = None, out: str | Path | None = None
) -> Path:
    """Write the card of a model folder, and return its path.

    Args:
        folder: the model folder.
        evaluation: a file with what ``unibct evaluate --json`` printed about this model and the
            old model that it is compatible with.
        out: the file to write; by default MODEL_CARD.md in the model folder.
    """
    folder = Path(folder)
    if not (folder / MODEL_DESCRIPTION).is_file():
        raise UserError(f"{folder} is not a model folder: there is no {MODEL_DESCRIPTION} in it")
    model = read_json(folder / MODEL_DESCRIPTION)
    result = None if evaluation is None else read_json(Path(evaluation))
    if result is not None and not isinstance(result, dict):
        raise UserError(f"{evaluation} is not what `unibct evaluate --json` prints")
    exports = [read_json(path) for path in sorted(folder.glob("*.onnx.json"))]
    path = folder / CARD_FILE if out is None else Path(out)
    try:
        if result is not None:
            _require_same_models(model, result, f"{folder}", f"{evaluation}")
        text = model_card(folder.resolve().name, model, result, exports)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"the card cannot be made: {evaluation or folder} lacks the entry {error}"
            + ("" if evaluation is None else "; give what `unibct evaluate --json` prints")
        ) from error
    write_text(path, text)
    return path


def _require_same_models(model: dict[str, Any], evaluation: Any, folder: str, file: str) -> None:
    """Refuse an evaluation of other queries than this model's, or of another old gallery."""
    known: dict[str, str] = evaluation.get("fingerprints", {})
    old, query, gallery = model["old_model"], known.get("query"), known.get("gallery")
    if query is not None and query not in _fingerprints(model):
        raise UserError(
            f"{file} is an evaluation of another model: its queries were made by {query}, and "
            f"{folder} has the fingerprint {model['fingerprint']}"
        )
    if old is not None and gallery not in (None, old):
        raise UserError(
            f"{file} is an evaluation with another old model: its gallery was made by {gallery}, "
            f"and {folder} was made for {old}"
        )
    if old is None and query is None:
        raise UserError(
            f"{file} does not say which models it tested, and {folder} has no old model: make it "
            f"with `unibct evaluate --query {folder} --json`"
        )


def _fingerprints(model: dict[str, Any]) -> list[str]:
    """Return the fingerprints that a model's queries may have: its own, and in the old space."""
    if "old_dim" not in model:
        return [model["fingerprint"]]
    from unibct.models.old_space import old_space_fingerprint

    return [model["fingerprint"], old_space_fingerprint(model["fingerprint"])]


def model_card(
    name: str, model: dict[str, Any], evaluation: Any = None, exports: Iterable[Any] = ()
) -> str:
    """Return the text of a card.

    ``model`` is model.json, ``evaluation`` what ``unibct evaluate --json`` printed, if anything,
    and ``exports`` what ``unibct export`` kept of each file.
    """
    sections = {
        "Input": _input_lines(model),
        "Training": _training_lines(model),
        "Compatible with": _compatible_lines(model),
        "Verdict": [_UNKNOWN] if evaluation is None else _verdict_lines(evaluation),
        "Thresholds": [_UNKNOWN] if evaluation is None else _threshold_lines(evaluation),
        "Exported files": _export_lines(exports),
        "Limits": _limit_lines(model, evaluation),
    }
    config: dict[str, Any] = model.get("architecture_config") or {}
    library = f", built by {config['library']}" if "library" in config else ""
    text = [
        f"# {name}",
        "",
        f"Embeds images for search: `{model['architecture']}`{library}, dimension {model['dim']}, "
        f"fingerprint `{model['fingerprint']}`.",
    ]
    for title, lines in sections.items():
        if lines:
            text += ["", f"## {title}", "", *lines]
    return "\n".join(text) + "\n"


def _input_lines(model: dict[str, Any]) -> list[str]:
    spec = model["input"]
    colour = "grey" if spec["channels"] == 1 else "RGB"
    fit, _, interpolation = spec["resize"].partition(", ")
    return [
        f"- {spec['height']} × {spec['width']} pixels (height × width), {colour}",
        f"- images of another shape: {fit}, {interpolation}",
        f"- pixels from 0 to 1 minus {spec['mean']}, divided by {spec['std']}",
    ]


def _training_lines(model: dict[str, Any]) -> list[str]:
    training = model["training"]
    if "images" not in training:
        return ["unknown"]
    recipe = training.get("recipe", {})
    settings = ", ".join(f"{key} {recipe[key]}" for key in _RECIPE if recipe.get(key) is not None)
    lines = [
        f"- data: `{training.get('data', 'unknown')}`, {training['images']:,} images of "
        f"{training['classes']:,} classes",
        f"- method: {training['method']}",
    ]
    unreadable = len(training.get("unreadable_images", ()))
    lines += [f"- left out: {unreadable:,} unreadable images"] if unreadable else []
    lines += [f"- recipe: {settings}"] if settings else []
    if not model.get("further_classes", {}).get("complete", True):
        lines.append(
            "- it began with weights or vectors, or has a map, whose training classes are not "
            "recorded"
        )
    blend = training.get("blended_weights")
    if blend is not None:
        lines.append(
            f"- afterwards its weights were blended: {blend['alpha']:g} of those of "
            f"`{blend['new']}`, the rest of the old model's"
        )
    software = [f"{name} {training[name]}" for name in ("unibct", "torch") if name in training]
    return lines + ([f"- made by {', '.join(software)}"] if software else [])


def _compatible_lines(model: dict[str, Any]) -> list[str]:
    old = model["old_model"]
    if old is None:
        return ["No other model: its embeddings are comparable with its own only."]
    lines = [
        f"The old model with the fingerprint `{old}`: this model's queries are meant to search "
        "galleries that it made."
    ]
    projected = model["training"].get("projected_dim")
    if projected is not None:
        lines.append(
            f"It has {model['dim']} dimensions and the old model {projected}. Queries for old "
            "galleries pass a projection that belongs to this model (`MODEL?space=old`); queries "
            "for its own galleries do not."
        )
    if model["adapter"] is not None:
        lines.append(f"The queries pass a map ({model['adapter']}) that was fitted afterwards.")
    scale = model["training"].get("score_scale")
    if scale is not None:
        measured_on = model["training"].get("score_scale_measured_on")
        lines.append(
            f"Its score scale is {scale:.4f}: multiply its scores with rows of that model by it to "
            "compare them with thresholds that were set for that model."
            + (f" It was measured on {measured_on}." if measured_on else "")
        )
    return lines


def _verdict_lines(evaluation: dict[str, Any]) -> list[str]:
    lines = [f"**{evaluation['verdict']}**", ""]
    if "single_images" in evaluation:
        single = evaluation["single_images"]["verdict"]
        lines += [f"On single images, as the rows of a gallery are: **{single}**", ""]
    tests = evaluation["tests"]
    metrics = [c["metric"] for c in evaluation["criteria"]]
    lines += [f"| % | {' | '.join(metrics)} |", f"| --- | {' | '.join('---:' for _ in metrics)} |"]
    for test, values in tests.items():
        row = " | ".join(_percent(values.get(metric)) for metric in metrics)
        lines.append(f"| {test} | {row} |")
    lines.append("")
    for criterion in evaluation["criteria"]:
        low, high = (100 * end for end in criterion["interval"])
        lines.append(
            f"- {criterion['metric']}: {CROSS} minus {OLD_SELF} "
            f"{100 * criterion['difference']:+.2f} points ({low:+.2f} to {high:+.2f}), "
            f"{criterion['verdict']}"
        )
    if any(c["interval"][1] < 0 <= c.get("ceiling", -1) for c in evaluation["criteria"]):
        lines.append(f"- {NOT_COMPATIBLE_RULE}")
    flips = evaluation.get("flips")
    if flips:
        lines.append(
            f"- of all queries, {100 * flips['nfr']:.2f} % found their mate first with the old "
            f"model and no longer do; for {100 * flips['pfr']:.2f} % it is the reverse"
        )
    blend: dict[str, Any] = evaluation.get("blended_queries") or {}
    for gain in blend.get("minus_old_self", ()):
        if gain["decides"]:
            low, high = (100 * end for end in gain["interval"])
            lines.append(
                f"- {gain['metric']}: blended queries (α = {blend['alpha']:g}) minus {OLD_SELF} "
                f"{100 * gain['difference']:+.2f} points ({low:+.2f} to {high:+.2f})"
            )
    size = {name: evaluation[name] for name in ("queries", "templates") if name in evaluation}
    if size:
        lines.append("- " + ", ".join(f"{count:,} {name}" for name, count in size.items()))
    return lines + ([f"- {evaluation['note']}"] if evaluation.get("note") else [])


def _percent(value: Any) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _threshold_lines(evaluation: dict[str, Any]) -> list[str]:
    rows = evaluation.get("at_old_threshold")
    if not rows:
        return ["The evaluation has none: its protocol sets no thresholds."]
    scale = evaluation.get("score_scale")
    heads = [
        "FAR",
        f"threshold of {OLD_SELF}",
        f"{CROSS} there: FAR, TAR",
        f"threshold for {CROSS}",
    ]
    lines = [
        "Cosine scores at which the old model's own search has the false accept rate; what new "
        "queries do at the same threshold; and the threshold that gives new queries that rate. All "
        "are those of the tests above: a gallery of single images needs those of its certificate."
    ]
    if scale is not None:
        heads.insert(3, f"score × {scale:.4f} there: FAR, TAR")
        lines[0] += (
            f" Scores of new queries with old rows, times the score scale {scale:.4f}, are meant "
            "to be on the old scale: its column shows how well that holds here."
        )
    lines += ["", f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for far, row in rows.items():
        shares = [row["cross"]] + ([] if scale is None else [row["scaled"]])
        cells = [
            far,
            f"{row['threshold']:.4f}",
            *(f"{100 * share['far']:.3g} %, {100 * share['tar']:.2f} %" for share in shares),
            f"{row['new_threshold']:.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rough = ", ".join(far for far, row in rows.items() if not row.get("carried", True))
    if rough:
        lines += ["", f"There were too few test classes to measure FAR {rough}: take it as rough."]
    return lines


def _export_lines(exports: Iterable[Any]) -> list[str]:
    lines: list[str] = []
    for export in exports:
        agreement = export["agreement"]
        lines.append(
            f"- `{export['file']}`, {megabytes(export['bytes'])}"
            + (", in the old model's space" if export.get("space") == "old" else "")
            + f": lowest cosine to torch "
            f"{agreement['lowest']:.7f} on {agreement['images']:,} images"
            + (" before int8" if "loss" in export else "")
        )
        if "loss" in export:
            lines.append(f"  - {loss_text(export['loss'])}")
            lines += [f"  - {metric_text(metric).strip()}" for metric in export["loss"]["metrics"]]
    return lines


def _limit_lines(model: dict[str, Any], evaluation: Any) -> list[str]:
    lines = [
        "- Scores are comparable only between embeddings of this model, and with those of the "
        "model that it is compatible with; check fingerprints before you search.",
        "- It was trained on the classes and conditions of its data. Images that look different "
        "(another camera, light, age, kind of thing) may do worse: test on your own.",
    ]
    if model["input"]["channels"] == 1:
        lines.append("- It sees grey only: things that differ by colour alone look the same.")
    if model["adapter"] is not None:
        lines.append("- It is for queries only: a gallery of its own needs the model without map.")
    if evaluation is None:
        lines.append("- Nothing is known of its quality: no evaluation was given.")
        return lines
    decides = evaluation.get("single_images", evaluation)["verdict"]
    if {evaluation["verdict"], decides} != {"compatible"}:
        lines.append("- It is not shown to search the old gallery better than the old model does.")
    if evaluation.get("classes", {}).get("basis", "unknown") != "unseen":
        lines.append(
            "- It is not known to do as well on new classes: those of the test may have been, or "
            "were, in a model's training set."
        )
    return lines

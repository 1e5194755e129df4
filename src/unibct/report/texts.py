"""Results in words: an export, advice, how weights were chosen, and the story of the demo."""

from typing import Any

from unibct.advice.advise import Advice
from unibct.evaluation.verification import rate_name
from unibct.evaluation.weight_choice import WeightChoice
from unibct.examples.demo import GalleryStory
from unibct.methods import DEFAULT_METHOD
from unibct.progress import clock
from unibct.report.plain_table import Cell, PlainTable, share_cell


def export_text(export: dict[str, Any]) -> str:
    """Return a few lines about an export, from its ``as_json``."""
    agreement = export["agreement"]
    space = ", in the old model's space" if export.get("space") == "old" else ""
    before = "before int8 it " if "loss" in export else ""
    lines = [
        f"{export['file']}: {megabytes(export['bytes'])}{space}; {before}agrees with the model on "
        f"{agreement['images']:,} images, lowest cosine {agreement['lowest']:.7f}"
    ]
    if "loss" in export:
        lines.append(f"int8 ({export['int8']} ranges): {loss_text(export['loss'])}")
        lines += [metric_text(metric) for metric in export["loss"]["metrics"]]
    return "\n".join(lines)


def loss_text(loss: dict[str, Any]) -> str:
    """Return what was searched, and how close the embeddings are."""
    gallery = "the old model's gallery" if loss["gallery"] == "old" else "the exact file's gallery"
    return (
        f"{loss['queries']:,} queries in {gallery}; cosine to the exact embeddings "
        f"{loss['mean_cosine']:.4f} on average, {loss['lowest_cosine']:.4f} at worst; "
        f"{loss['speed']:.2f} times the speed here"
    )


def metric_text(metric: dict[str, Any]) -> str:
    """Return one metric of exact and int8 queries, and the difference in points."""
    exact, int8 = (100 * metric[name] for name in ("exact", "int8"))
    low, high = (100 * end for end in metric["interval"])
    difference = 100 * metric["difference"]
    return (
        f"  {metric['metric']:<10} exact {exact:6.2f} %  int8 {int8:6.2f} %  "
        f"{difference:+.2f} points ({low:+.2f} to {high:+.2f})"
    )


def megabytes(count: int) -> str:
    """Return a number of bytes as megabytes."""
    return f"{count / 1e6:.1f} MB"


def advice_lines(advice: Advice) -> list[str]:
    """Return the advice as text: the situation, the costs and the commands."""
    scenario, strength, rates = advice.scenario, advice.strength, advice.rates
    old, shared = (
        "?" if count is None else f"{count:,}"
        for count in (scenario.old_classes, scenario.shared_classes)
    )
    old_rate = "stored" if rates.old_forward is None else f"{rates.old_forward:,.0f}"
    names = " or ".join(scenario.names) or "not known"
    lines = [
        f"scenario    {names}: {scenario.why}",
        f"            classes: {old} old, {scenario.new_classes:,} new, {shared} in both",
        f"old model   {strength or 'not measured'}, on {advice.strength_on}",
        f"new model   {advice.recipe}",
        f"measured    on {advice.device}, images/s: reading {rates.reading:,.0f}, old model "
        f"{old_rate}, new model {rates.new_forward:,.0f}, training "
        f"{rates.training:,.0f}",
        "",
        "methods that apply",
    ]
    width = max(len(method.name) for method in advice.methods)
    for method in advice.methods:
        mark = "  (default)" if method.name == DEFAULT_METHOD else ""
        text = method.description + mark if method.applies else f"no: {method.obstacle}"
        lines.append(f"  {method.name:{width}}  {text}")
    for name, cost in advice.costs.items():
        lines += ["", f"{name}: about {clock(cost.seconds)} (estimated) to {cost.what}"]
        parts = [f"{part} {clock(seconds)}" for part, seconds in cost.parts.items()]
        lines.append(f"  {', '.join(parts)}")
        lines += [f"  $ {command}" for command in advice.commands[name]]
    return [*lines, "", *(f"note: {note}" for note in advice.notes)]


def weight_choice_text(choice: WeightChoice) -> str:
    """Return a table of all shares that were tried, the chosen one marked."""
    lines = [
        f"top-1 of old queries in the old gallery: {100 * choice.old_self:.2f} %",
        "share of the new weights   cross test   new self test   mean reciprocal rank",
    ]
    for one in choice.tried:
        mark = "  chosen" if one.alpha == choice.alpha else ""
        shares = f"{100 * one.cross:10.2f} % {100 * one.new_self:13.2f} %"
        lines.append(f"{one.alpha:24g} {shares} {one.mean_reciprocal_rank:22.4f}{mark}")
    lines.append("chosen is the highest mean reciprocal rank of the cross test")
    return "\n".join(lines)


def story_table(story: GalleryStory) -> PlainTable:
    """Return how the demo's gallery searches after each step of the upgrade, one line each."""
    rows = tuple(
        (
            Cell(stage.title),
            Cell(f"{stage.searching} model"),
            Cell(f"{stage.old_rows:,}"),
            Cell(f"{stage.new_rows:,}"),
            share_cell(stage.top_1),
            *(Cell(f"{n:,}") for n in (stage.named.right, stage.named.wrong, stage.named.lost)),
        )
        for stage in story.stages
    )
    heads = ("after", "searched by", "rows: by old model", "rows: by new model", "top-1, %")
    return PlainTable(
        "The upgrade, carried out on a gallery",
        " ".join([_names(story), *outcome(story)]),
        (*heads, "right names", "wrong names", "lost names"),
        rows,
    )


def outcome(story: GalleryStory) -> list[str]:
    """Return what a reader should know besides the numbers, a sentence each."""
    sentences: list[str] = []
    if story.forced:
        sentences.append(f"The verdict is {story.forced}, so the upgrade was forced.")
    if story.restored:
        sentences.append(
            "After the rollback every query found the same first row with the same score as before."
        )
    elif story.restored is not None:
        sentences.append(
            "After the rollback some queries found another first row or score than before!"
        )
    if story.stopped:
        sentences.append(
            f"It ends here: {story.stopped}{'' if story.stopped.endswith('?') else '.'}"
        )
    return sentences


def _names(story: GalleryStory) -> str:
    """Return what the table counts."""
    queries = story.stages[0].first.queries if story.stages else 0
    where = (
        "however low its score"
        if story.far is None
        else f"above the certificate's threshold for FAR {rate_name(story.far)}"
    )
    return (
        f"{queries:,} queries of {story.classes:,} classes that no model has seen. A query's name "
        f"is the label of the first row {where}; it is lost if there is none."
    )

"""The report of the demo, as one HTML file that loads nothing else."""

import platform
from importlib import metadata
from pathlib import Path

import torch
from markupsafe import Markup

from unibct.evaluation.criterion import CONFIDENCE
from unibct.evaluation.search_test import CROSS, DIRECTIONS, FREE_CROSS, OLD_SELF, SearchTest
from unibct.examples.demo import DemoResult
from unibct.files import write_text
from unibct.report.benchmark_page import render_template
from unibct.report.curves import COLOURS, cmc_svg, roc_svg, searched_queries, standalone, story_svg
from unibct.report.decision_tables import decision_tables, old_model_text
from unibct.report.texts import story_table

CURVE_FILE = "gallery.svg"
SEARCH_TITLES = {OLD_SELF: "old", FREE_CROSS: "free", CROSS: "compatible"}


def write_report(result: DemoResult, path: Path) -> None:
    """Write the page to a file, and the gallery's curve as a picture beside it."""
    write_text(path, render_report(result))
    if result.gallery is not None and result.gallery.curve:
        write_text(path.with_name(CURVE_FILE), standalone(story_svg(result.gallery)))


def render_report(result: DemoResult) -> str:
    """Return the HTML of the page."""
    evaluation, plan, story = result.evaluation, result.plan, result.gallery
    searches: dict[str, SearchTest] = {name: evaluation.tests[name] for name in SEARCH_TITLES}
    return render_template(
        "demo.html.jinja",
        plan=plan,
        evaluation=evaluation,
        rows={name: evaluation.values[name] for name in DIRECTIONS if name in evaluation.tests},
        old_self=OLD_SELF,
        cross=CROSS,
        search_titles=SEARCH_TITLES,
        colours=COLOURS,
        confidence=CONFIDENCE,
        roc=Markup(roc_svg(evaluation.tests)),
        cmc=Markup(cmc_svg(evaluation.tests)),
        decisions=decision_tables(evaluation),
        old_model=old_model_text(evaluation),
        story=None if story is None else story_table(story),
        story_curve=None if story is None or not story.curve else Markup(story_svg(story)),
        queries=searched_queries(plan.test_images, evaluation.split, searches),
        models=result.models,
        recipe=plan.new_recipe.model_dump(mode="json"),
        versions={
            "unibct": metadata.version("unibct"),
            "torch": torch.__version__,
            "Python": platform.python_version(),
            "machine": platform.machine(),
        },
    )

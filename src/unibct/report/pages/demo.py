"""The demo's report: one self-contained HTML file."""

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import torch
from markupsafe import Markup

from unibct.evaluation.evaluate import CONFIDENCE
from unibct.examples.demo import DemoResult
from unibct.files import write_text
from unibct.report.curves import COLOURS, cmc_svg, roc_svg
from unibct.report.pictures import searched_queries

LONG_TITLES = {
    "old→old": "before the upgrade",
    "new→old": "cross test: new queries, the old gallery as it stands",
    "new→new": "new self test: after a backfill",
    "free→free": "a new model without compatibility, after a backfill",
    "free→old": "the same without a backfill",
}
SEARCH_TITLES = {"old→old": "old", "free→old": "free", "new→old": "compatible"}


def write_report(result: DemoResult, path: Path) -> None:
    """Write the page, whole or not at all."""
    write_text(path, render_report(result))


def render_report(result: DemoResult) -> str:
    """The page's HTML; it loads nothing from anywhere."""
    evaluation, plan = result.evaluation, result.plan
    searches = {name: evaluation.tests[name] for name in SEARCH_TITLES}
    return rendered(
        "page.html.jinja",
        plan=plan,
        evaluation=evaluation,
        rows={name: evaluation.metrics(name) for name in LONG_TITLES if name in evaluation.tests},
        titles=LONG_TITLES,
        search_titles=SEARCH_TITLES,
        colours=COLOURS,
        confidence=CONFIDENCE,
        roc=Markup(roc_svg(evaluation.tests)),
        cmc=Markup(cmc_svg(evaluation.tests)),
        queries=searched_queries(plan.test_images, evaluation.protocol, searches),
        models=result.models,
        recipe=plan.new_recipe.model_dump(mode="json"),
        versions={
            "unibct": metadata.version("unibct"),
            "torch": torch.__version__,
            "Python": platform.python_version(),
            "machine": platform.machine(),
        },
    )


def rendered(name: str, **values: Any) -> str:
    """A template of this folder, filled in."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader("unibct.report", "templates"),
    )
    return environment.get_template(name).render(**values)

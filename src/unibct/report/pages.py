"""The reports of a benchmark and of the demo, each as one HTML file that loads nothing else.

The HTML is in ``report/templates``; here its values are made. A benchmark also has report.md and
results.csv.
"""

import platform
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import torch
from markupsafe import Markup

from unibct.benchmark import VERSIONS
from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import cell_folder, free_folder, old_folder, safe_name
from unibct.benchmark.results import Results, as_csv
from unibct.benchmark.run import Benchmark
from unibct.benchmark.workspace import Workspace
from unibct.evaluation.criterion import CONFIDENCE, seeds_note
from unibct.evaluation.metrics import TOP_1
from unibct.evaluation.search_test import (
    CROSS,
    DIRECTIONS,
    FREE_CROSS,
    FREE_SELF,
    OLD_SELF,
    SearchTest,
    search_test,
)
from unibct.evaluation.verification import far_note
from unibct.examples.demo import DemoResult
from unibct.files import write_text
from unibct.methods import DEFAULT_METHOD, NO_METHOD
from unibct.report.benchmark_tables import BASELINE, all_tables, left_out_note, seen_note
from unibct.report.curves import (
    COLOURS,
    METHOD_COLOURS,
    SearchedQuery,
    cmc_svg,
    matrix_svg,
    roc_svg,
    searched_queries,
    standalone,
    story_svg,
)
from unibct.report.decision_tables import decision_tables, old_model_text
from unibct.report.plain_table import as_markdown
from unibct.report.texts import story_table
from unibct.training.recipe import nearest_recipe

_GREY = "#7d8590"  # visible on white and on black, for files that are shown on either
_CURVE_METHODS = 6  # more curves cannot be told apart
CURVE_FILE = "gallery.svg"
SEARCH_TITLES = {OLD_SELF: "old", FREE_CROSS: "free", CROSS: "compatible"}


def render_template(name: str, **values: Any) -> str:
    """Return the HTML of a template with its values filled in; text is escaped."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader("unibct.report", "templates"),
    )
    return environment.get_template(name).render(**values)


def write_benchmark_report(results: Results, benchmark: Benchmark, out: Path) -> None:
    """Write report.html, report.md and results.csv to a folder.

    The images and embeddings of the benchmark give curves and pictures.
    """
    write_text(out / "results.csv", as_csv(results))
    for method, picture in _matrices(results).items():
        write_text(out / _matrix_file(method), picture.replace("currentColor", _GREY))
    write_text(out / "report.md", render_markdown(results))
    write_text(out / "report.html", render_page(results, benchmark.workspace))


def render_markdown(results: Results) -> str:
    """Return report.md: the tables, and what was run."""
    lines = [
        "# Can the new model search the old gallery?",
        "",
        _about(results),
        "",
        *(as_markdown(table) for table in all_tables(results)),
        *(
            f"![compatibility matrix of {method}]({_matrix_file(method)})\n"
            for method in _matrices(results)
        ),
        "## What was run",
        "",
        *(f"- {key}: {value}" for key, value in what_was_run(results).items()),
        "",
        "Recipe: " + ", ".join(f"{key} = {value}" for key, value in _recipe(results).items()),
        "",
    ]
    return "\n".join(lines)


def render_page(results: Results, workspace: Workspace) -> str:
    """Return report.html."""
    scenarios = [s for s in results.scenarios if _drawn_methods(results, s)]
    curves = {scenario: _curves(results, workspace, scenario) for scenario in scenarios}
    queries: list[SearchedQuery] = []  # what the old model and the last two drawn methods find
    if scenarios:
        tests = _tests(results, workspace, scenarios[0])
        pictured = [OLD_SELF, *_drawn_methods(results, scenarios[0])[-2:]]
        queries = searched_queries(
            workspace.test_images, workspace.split, {name: tests[name] for name in pictured}
        )
    return render_template(
        "benchmark.html.jinja",
        about=_about(results),
        tables=all_tables(results),
        curves=curves,
        curves_note=_curves_note(results),
        matrices=_matrices(results),
        queries=queries,
        pictured_scenario=scenarios[0] if scenarios else "",
        run=what_was_run(results),
        recipe=_recipe(results),
    )


def what_was_run(results: Results) -> dict[str, str]:
    """Return the command, the data, the seeds, the versions and the machine."""
    grid = results.grid
    first_result = next(iter(results.by_job.values()))
    made_by: dict[str, list[str]] = {}  # several, if several have made the results
    for result in results.by_job.values():
        for key, value in result["made_by"].items():
            made_by.setdefault(key, []).append(value)
    return {
        "command": command(grid),
        "training images": grid.data,
        "test images": grid.test or "30 % of the classes of the training images",
        **({} if grid.validation is None else {"validation images": grid.validation}),
        "queries and templates": f"{first_result['queries']:,} and {first_result['templates']:,}",
        "seeds": ", ".join(str(seed) for seed in grid.seeds),
        "finished jobs": f"{len(results.by_job):,}",
        **{key: "; ".join(dict.fromkeys(values)) for key, values in made_by.items()},
    }


def _recipe(results: Results) -> dict[str, Any]:
    """Return the numbers of the recipe, without those that each job chooses itself."""
    return results.grid.recipe.model_dump(mode="json", exclude_none=True)


def command(grid: Grid) -> str:
    """Return the command line that runs the same grid."""
    options = {
        "--test": grid.test,
        "--scenarios": ",".join(grid.scenarios),
        "--methods": ",".join(grid.methods),
        "--seeds": ",".join(str(seed) for seed in grid.seeds),
        "--chain": ",".join(grid.chain_methods) or "none",
        "--validation": grid.validation,
    }
    given = [(name, value) for name, value in options.items() if value is not None]
    words = ["unibct", "benchmark", grid.data, *(word for option in given for word in option)]
    words += ["--skip-bad-images"] if grid.skip_bad else []
    recipe, changes = nearest_recipe(grid.recipe)
    words += ["--recipe", recipe, *(word for change in changes for word in ("--set", change))]
    return shlex.join(words)


def _about(results: Results) -> str:
    """Return the introduction of the report."""
    grid = results.grid
    first_result = next(iter(results.by_job.values()))
    note = far_note(first_result["far"], None, first_result["compared_classes"])
    methods, scenarios, seeds = (
        f"{len(names)} {noun}{'s' if len(names) > 1 else ''}"
        for names, noun in ((results.methods, "method"),
                            (results.scenarios, "scenario"), (grid.seeds, "seed"))
    )  # fmt: skip
    left_out = left_out_note(results)
    doubt = seen_note(results)
    seen = " that none of them has seen"
    if doubt is not None:
        seen = f"; {doubt}, and the verdicts are over all of them"
    compared = f"{methods} in {scenarios}" if results.scenarios else "Upgrade chains"
    return (
        f"{compared} over {seeds}. The models were trained on {grid.data} and tested "
        f"on {first_result['templates']:,} classes{seen} "
        f"({first_result['queries']:,} queries, one template per class)."
        f" {seeds_note(len(grid.seeds))}"
        + (f" {note}." if note else "")
        + (f" {left_out}" if left_out else "")
    )


def _drawn_methods(results: Results, scenario: str) -> list[str]:
    """Return the methods whose curves are drawn.

    These are the baseline and the default method, then the last ones of the grid.
    """
    finished = [m for m in results.finished_methods(scenario) if m != NO_METHOD]
    preferred = [m for m in finished if m in (BASELINE, DEFAULT_METHOD)]
    chosen = (preferred + [m for m in reversed(finished) if m not in preferred])[:_CURVE_METHODS]
    return [m for m in finished if m in chosen]


def _curves_note(results: Results) -> str:
    """Return which methods have no curve."""
    drawn = {m for scenario in results.scenarios for m in _drawn_methods(results, scenario)}
    others = [m for m in results.methods if m not in drawn]
    if not others:
        return ""
    noun = "methods" if len(others) > 1 else "method"
    return f"No curve is drawn for the {noun} {', '.join(others)}."


def method_colours(results: Results, scenario: str) -> dict[str, str]:
    """Return a colour for each method that is drawn in a scenario, no two the same.

    They are the same in all scenarios unless more methods are drawn in all than there are colours.
    """
    drawn = {m for s in results.scenarios for m in _drawn_methods(results, s)}
    methods = [m for m in results.grid.methods if m != NO_METHOD]
    if len(methods) > len(METHOD_COLOURS):
        methods = [m for m in methods if m in drawn]
    if len(methods) > len(METHOD_COLOURS):
        methods = _drawn_methods(results, scenario)
    return dict(zip(reversed(methods), reversed(METHOD_COLOURS), strict=False))


def _tests(results: Results, workspace: Workspace, scenario: str) -> dict[str, SearchTest]:
    """Return the old self test, the cross tests of the drawn methods, and the free self test.

    All belong to the first seed. There may be no free model.
    """
    seed = results.grid.seeds[0]
    old = workspace.vectors(old_folder(scenario, seed))
    tests: dict[str, SearchTest] = {OLD_SELF: search_test(old, old, workspace.split)}
    for method in _drawn_methods(results, scenario):
        query = workspace.vectors(cell_folder(scenario, method, seed))
        tests[method] = search_test(query, old, workspace.split)
    if (folder := free_folder(scenario, seed)) in results.by_job:
        free = workspace.vectors(folder)
        tests[FREE_SELF] = search_test(free, free, workspace.split)
    return tests


def _curves(results: Results, workspace: Workspace, scenario: str) -> dict[str, Markup]:
    """Return the ROC and the CMC curves of a scenario."""
    colours = method_colours(results, scenario) | {OLD_SELF: "#8a8f98", FREE_SELF: "#7f6a9c"}
    tests = _tests(results, workspace, scenario)
    return {"roc": Markup(roc_svg(tests, colours)), "cmc": Markup(cmc_svg(tests, colours))}


def _matrices(results: Results) -> dict[str, Markup]:
    """Return the compatibility matrix of each upgrade chain."""
    pictures: dict[str, Markup] = {}
    for method in results.grid.chain_methods:
        if not results.has_chain(method):
            continue
        values = [
            [
                float(results.between_versions(method, query, gallery, TOP_1).values.mean())
                for gallery in VERSIONS
            ]
            for query in VERSIONS
        ]
        names = [f"v{version}" for version in VERSIONS]
        pictures[method] = Markup(matrix_svg(values, names, f"{method}: {TOP_1}, %"))
    return pictures


def _matrix_file(method: str) -> str:
    return f"matrix-{safe_name(method)}.svg"


# The report of the demo.


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

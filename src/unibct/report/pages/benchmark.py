"""A benchmark's report: report.html (self-contained), report.md and results.csv."""

import json
import shlex
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unibct.benchmark.jobs import cell_folder, free_folder, old_folder
from unibct.benchmark.plan import Grid
from unibct.benchmark.results import Results, as_csv
from unibct.benchmark.run import Benchmark
from unibct.benchmark.workspace import Workspace
from unibct.evaluation.directions import FREE_SELF, OLD_SELF
from unibct.evaluation.metrics.table import TOP_1
from unibct.evaluation.resolution import far_note
from unibct.evaluation.search_test import SearchTest, search_test
from unibct.files import write_text
from unibct.methods.table import DEFAULT_METHOD, NO_METHOD
from unibct.report.curves import METHOD_COLOURS, cmc_svg, matrix_svg, roc_svg
from unibct.report.pages.html import rendered
from unibct.report.pictures import searched_queries
from unibct.report.tables import BASELINE, all_tables, as_markdown
from unibct.training.recipe import load_recipe

_GREY = "#7d8590"  # seen on white and on black, where a file cannot know
_CURVE_METHODS = 6  # more curves than that are a tangle


def write_benchmark_report(results: Results, benchmark: Benchmark, out: Path) -> None:
    """Write report.html, report.md and results.csv from what is finished; nothing is trained."""
    write_text(out / "results.csv", as_csv(results))
    for method, picture in _matrices(results).items():
        write_text(out / _matrix_file(method), picture.replace("currentColor", _GREY))
    write_text(out / "report.md", render_markdown(results))
    write_text(out / "report.html", render_page(results, benchmark.workspace))


def render_markdown(results: Results) -> str:
    """The tables, and what was run."""
    grid = results.grid
    lines = [
        "# Can the new model search the old gallery?",
        "",
        _about(results),
        "",
        *(as_markdown(sheet) for sheet in all_tables(results)),
        *(
            f"![compatibility matrix of {method}]({_matrix_file(method)})\n"
            for method in _matrices(results)
        ),
        "## What was run",
        "",
        *(f"- {key}: {value}" for key, value in what_was_run(results).items()),
        "",
        "Recipe: " + ", ".join(f"{k} = {v}" for k, v in _settled(grid).items()),
        "",
    ]
    return "\n".join(lines)


def render_page(results: Results, workspace: Workspace) -> str:
    """The page's HTML; it loads nothing from anywhere."""
    scenarios = [s for s in results.scenarios if _shown_methods(results, s)]
    curves = {scenario: _curves(results, workspace, scenario) for scenario in scenarios}
    return rendered(
        "benchmark.html.jinja",
        about=_about(results),
        sheets=all_tables(results),
        curves=curves,
        curves_note=_curves_note(results),
        matrices=_matrices(results),
        queries=_pictures(results, workspace, scenarios[0]) if scenarios else [],
        pictured=scenarios[0] if scenarios else "",
        run=what_was_run(results),
        recipe=_settled(results.grid),
    )


def what_was_run(results: Results) -> dict[str, str]:
    """Command, data, seeds, versions and machine."""
    grid = results.grid
    first = next(iter(results.found.values()))
    return {
        "command": command(grid),
        "training images": grid.data,
        "test images": grid.test or "30 % of the classes of the training images",
        "queries and templates": f"{first['queries']:,} and {first['templates']:,}",
        "seeds": ", ".join(str(seed) for seed in grid.seeds),
        "finished jobs": f"{len(results.found):,}",
        **first.get("made_by", {}),
    }


def _settled(grid: Grid) -> dict[str, Any]:
    """The recipe's numbers; dimension and seed are settled by each job."""
    return grid.recipe.model_dump(mode="json", exclude_none=True)


def command(grid: Grid) -> str:
    """The command line that makes the same grid."""
    parts = ["unibct benchmark", shlex.quote(grid.data)]
    if grid.test is not None:
        parts.append(f"--test {shlex.quote(grid.test)}")
    parts.append(f"--scenarios {','.join(grid.scenarios)}")
    parts.append(f"--methods {','.join(grid.methods)}")
    parts.append(f"--seeds {','.join(str(seed) for seed in grid.seeds)}")
    parts.append(f"--chain {','.join(grid.chain_methods) or 'none'}")
    if grid.skip_bad:
        parts.append("--skip-bad-images")
    usual = load_recipe().model_dump(mode="json")
    for key, value in grid.recipe.model_dump(mode="json").items():
        if value != usual[key]:
            text = value if isinstance(value, str) else json.dumps(value)
            parts.append(f"--set {shlex.quote(f'{key}={text}')}")
    return " ".join(parts)


def _about(results: Results) -> str:
    grid = results.grid
    first = next(iter(results.found.values()))
    note = far_note(first["far"], None, first["templates"])
    methods, scenarios, seeds = (
        f"{len(names)} {noun}{'s' if len(names) > 1 else ''}"
        for names, noun in ((grid.methods, "method"), (grid.scenarios, "scenario"),
                            (grid.seeds, "seed"))
    )  # fmt: skip
    return (
        f"{methods} in {scenarios} over {seeds}: models "
        f"trained on {grid.data}, tested on {first['templates']:,} classes that none has seen "
        f"({first['queries']:,} queries, one template per class)."
        + (f" {note}." if note else "")
        + "".join(
            f" Seed {seed} is left out: it lacks {lacks} {'jobs' if lacks > 1 else 'job'}."
            for seed, lacks in results.behind.items()
        )
    )


def _shown_methods(results: Results, scenario: str) -> list[str]:
    """The methods whose curves are drawn: ours, the paper's, and the last ones of the grid."""
    present = [m for m in results.grid.methods if m != NO_METHOD and results.has(scenario, m)]
    first = [m for m in present if m in (BASELINE, DEFAULT_METHOD)]
    chosen = (first + [m for m in reversed(present) if m not in first])[:_CURVE_METHODS]
    return [m for m in present if m in chosen]


def _curves_note(results: Results) -> str:
    drawn = {m for scenario in results.scenarios for m in _shown_methods(results, scenario)}
    others = [m for m in results.grid.methods if m not in drawn]
    return f"Not drawn: {', '.join(others)}." if others else ""


def _tests(results: Results, workspace: Workspace, scenario: str) -> dict[str, SearchTest]:
    """Old self, each shown method's cross test, free self; of the first seed."""
    seed = results.grid.seeds[0]
    old, free = (
        workspace.vectors(old_folder(scenario, seed)),
        workspace.vectors(free_folder(scenario, seed)),
    )
    tests = {OLD_SELF: search_test(old, old, workspace.split)}
    for method in _shown_methods(results, scenario):
        query = workspace.vectors(cell_folder(scenario, method, seed))
        tests[method] = search_test(query, old, workspace.split)
    return tests | {FREE_SELF: search_test(free, free, workspace.split)}


def _curves(results: Results, workspace: Workspace, scenario: str) -> dict[str, Markup]:
    methods = [m for m in results.grid.methods if m != NO_METHOD]
    colours = {
        method: METHOD_COLOURS[-1 - index % len(METHOD_COLOURS)]
        for index, method in enumerate(reversed(methods))
    } | {OLD_SELF: "#8a8f98", FREE_SELF: "#7f6a9c"}
    tests = _tests(results, workspace, scenario)
    return {"roc": Markup(roc_svg(tests, colours)), "cmc": Markup(cmc_svg(tests, colours))}


def _matrices(results: Results) -> dict[str, Markup]:
    versions = range(1, results.grid.versions + 1)
    pictures: dict[str, Markup] = {}
    for method in results.grid.chain_methods:
        if not results.has_chain(method):
            continue
        values = [
            [float(results.versions(method, q, g, TOP_1).values.mean()) for g in versions]
            for q in versions
        ]
        names = [f"v{version}" for version in versions]
        pictures[method] = Markup(matrix_svg(values, names, f"{method}: {TOP_1}, %"))
    return pictures


def _matrix_file(method: str) -> str:
    return f"matrix-{method}.svg"


def _pictures(results: Results, workspace: Workspace, scenario: str) -> Any:
    tests = _tests(results, workspace, scenario)
    shown = [OLD_SELF, *_shown_methods(results, scenario)[-2:]]
    return searched_queries(
        workspace.images[1], workspace.split, {name: tests[name] for name in shown}
    )

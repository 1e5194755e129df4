"""The paper's figures for IJB-C, from its Table 2, to show beside measured ones."""

import csv
from collections.abc import Sequence
from functools import cache
from importlib import resources

from unibct.benchmark.results import Results, finished_methods, gain
from unibct.evaluation.metrics import find_metric
from unibct.methods import NO_METHOD
from unibct.report.plain_table import (
    NO_VALUE,
    Cell,
    PlainTable,
    difference_cell,
    percent_cell,
)

_COLUMNS = {
    "cross TAR": "cross_tar_1e-4",
    "self TAR": "self_tar_1e-4",
    "cross top-1": "cross_top1",
    "cross top-5": "cross_top5",
    "self top-1": "self_top1",
    "self top-5": "self_top5",
}


def paper_figure(scenario: str, method: str, test: str, metric: str) -> str | None:
    """Return the paper's figure in percent, or None if the paper has none.

    Args:
        scenario: a name from ``SCENARIOS``.
        method: a name from ``METHODS``, or ``old`` for the old model.
        test: ``cross`` or ``self``.
        metric: the title of a metric. The paper's TAR is at the false accept rate 1e-4; it is
            returned for a TAR at any rate.
    """
    figures = _figures().get((scenario, method), {})
    return figures.get(f"{test} {metric.split('@')[0]}")


@cache
def _figures() -> dict[tuple[str, str], dict[str, str]]:
    """Return (scenario, method) -> test and metric -> figure."""
    text = (resources.files("unibct.report") / "paper_results.csv").read_text(encoding="utf-8")
    return {
        (row["scenario"], row["method"]): {
            name: row[column] for name, column in _COLUMNS.items() if row[column]
        }
        for row in csv.DictReader(text.splitlines())
    }


# The tables of a benchmark that follow the paper's, with its figures beside ours.

# The methods that the paper's Table 3 and Table 4 compare, in extended-data.
PROTOTYPE_METHODS = ("unibct-centroid", "unibct-drop", "unibct", "unibct-plus")
OTHER_LOSSES = ("regress", "bct", "unibct-centroid", "unibct", "unibct-plus")


def scenario_table(results: Results) -> PlainTable | None:
    """Return the paper's Table 2: cross and self test of every method in every scenario."""
    if not results.scenarios:
        return None
    columns = _paper_columns(results)
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        old = [
            _old_self_cell(results, scenario, metric) if test == "self" else NO_VALUE
            for test, metric in columns
        ]
        rows.append((Cell(scenario, kind="head"), Cell("old", "the old model"), *old))
        measures = {"cross": results.cross, "self": results.new_self}
        for method in finished_methods(results, scenario):
            cells = [
                percent_cell(
                    measures[test](scenario, method, metric).estimate,
                    paper=paper_figure(scenario, method, test, metric),
                )
                for test, metric in columns
            ]
            name = Cell(
                method, "the paper's upper bound of the self test" if method == NO_METHOD else ""
            )
            rows.append((Cell(""), name, *cells))
    note = (
        "Percent, means over the seeds with their intervals. Paper: its figure on IJB-C, trained "
        "on MS1Mv3, with TAR@1e-4, from one run. Compare the relations between rows, not the "
        "values: the images, the network and the false accept rate differ."
    )
    heads = ("scenario", "method", *(f"{test} {metric}" for test, metric in columns))
    return PlainTable("All scenarios (the paper's Table 2)", note, heads, tuple(rows))


def _paper_columns(results: Results) -> list[tuple[str, str]]:
    """Return test and metric of each column, ordered as in the paper's Table 2.

    Cross and self test of the 1:1 metrics come first, then all cross and all self tests of 1:N.
    """
    kinds = dict.fromkeys(find_metric(metric).kind for metric in results.metrics)
    return [
        (test, metric)
        for kind in kinds
        for test in ("cross", "self")
        for metric in results.metrics
        if find_metric(metric).kind == kind
    ]


def prototype_table(results: Results) -> PlainTable | None:
    """Return the paper's Table 3: kinds of prototypes, in extended-data."""
    meanings = {
        "unibct-centroid": "plain mean",
        "unibct-drop": "mean without the farthest",
        "unibct": "structural refinement",
        "unibct-plus": "no prototype",
    }
    return _comparison(results, "Prototypes (the paper's Table 3)", PROTOTYPE_METHODS, meanings)


def other_losses_table(results: Results) -> PlainTable | None:
    """Return the paper's Table 4: other losses, in extended-data."""
    meanings = {"regress": "AML", "bct": "BCT", "unibct-centroid": "L*", "unibct": "UniBCT"}
    return _comparison(results, "Other losses (the paper's Table 4)", OTHER_LOSSES, meanings)


def _comparison(
    results: Results, title: str, methods: Sequence[str], meanings: dict[str, str]
) -> PlainTable | None:
    """Return the cross tests of some methods in extended-data, with the paper's figures.

    Args:
        results: of the benchmark.
        title: of the table.
        methods: its rows, if they are finished; fewer than two make no table.
        meanings: what is shown below the name of a method.
    """
    scenario = "extended-data"
    finished = [m for m in methods if m in results.grid.methods and results.has_cell(scenario, m)]
    if scenario not in results.scenarios or len(finished) < 2:
        return None
    heads: list[str] = ["method"]
    old: list[Cell] = [Cell("old", "self test")]
    for metric in results.metrics:
        heads += [metric, f"{metric}: cross − old self"]
        old += [_old_self_cell(results, scenario, metric), NO_VALUE]
    rows: list[tuple[Cell, ...]] = [tuple(old)]
    for method in finished:
        cells: list[Cell] = [Cell(method, meanings.get(method, ""))]
        for metric in results.metrics:
            cross = results.cross(scenario, method, metric).estimate
            paper = paper_figure(scenario, method, "cross", metric)
            difference = gain(results, scenario, method, metric).estimate
            cells += [percent_cell(cross, paper=paper), difference_cell(difference)]
        rows.append(tuple(cells))
    note = "Cross test in extended-data, in percent; differences in points."
    return PlainTable(title, note, tuple(heads), tuple(rows))


def _old_self_cell(results: Results, scenario: str, metric: str) -> Cell:
    paper = paper_figure(scenario, "old", "self", metric)
    return percent_cell(results.old_self(scenario, metric).estimate, paper=paper)

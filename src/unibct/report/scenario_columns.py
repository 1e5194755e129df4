"""A table of a benchmark with a row for each method and a column for each scenario."""

from collections.abc import Callable, Sequence

from unibct.benchmark.results import Results
from unibct.evaluation.metrics.table import TOP_1
from unibct.report.plain_table import Cell, PlainTable


def methods_by_scenarios(
    results: Results,
    title: str,
    note: str,
    methods: Sequence[str],
    cell: Callable[[str, str], Cell],
) -> PlainTable | None:
    """Return a table with a row for each method and a column for each scenario.

    Args:
        results: of the benchmark.
        title: of the table.
        note: of the table.
        methods: its rows.
        cell: returns the cell of a scenario and a method.
    """
    if not results.scenarios:
        return None
    rows = tuple(
        (Cell(method), *(cell(scenario, method) for scenario in results.scenarios))
        for method in methods
    )
    return PlainTable(title, note, ("method", *results.scenarios), rows)


def top_1_first(metrics: Sequence[str]) -> list[str]:
    """Return metrics in their order, but top-1 before the others."""
    return sorted(metrics, key=lambda metric: metric != TOP_1)

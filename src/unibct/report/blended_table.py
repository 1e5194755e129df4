"""The table of blended queries in a benchmark's report."""

from unibct.benchmark.results import Results
from unibct.evaluation.directions import BLEND, CROSS, OLD_SELF
from unibct.evaluation.metrics.table import TOP_1, find_metric
from unibct.report.plain_table import Cell, PlainTable, difference_cell


def blended_table(results: Results) -> PlainTable | None:
    """Return what blends of old and new queries gain in the old gallery, over old and new ones.

    Results of an earlier version have no blended queries.
    """
    metrics = [m for m in results.deciding_metrics if m == TOP_1 or find_metric(m).at_far]
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        head = Cell(scenario, kind="head")
        for method in results.grid.methods:
            if results.has_cell(scenario, method):
                cells = _cells(results, scenario, method, metrics)
                if cells:
                    rows.append((head, Cell(method), *cells))
                    head = Cell("")
    if not rows:
        return None
    chosen = "each cell chose α on the validation classes of " + str(results.chosen_on)
    if results.chosen_on is None:
        chosen = "α is the midpoint: no validation classes were given"
    note = (
        "The old gallery is searched with normalise((1 − α)·old query + α·new query): two encoders "
        f"for each query, no training. {BLEND} − {OLD_SELF} is what the upgrade gains by blending, "
        f"{BLEND} − {CROSS} what the second encoder adds; in points, on the same classes and "
        f"seeds. Here {chosen} (several values: one per seed)."
    )
    heads = ["scenario", "method", "share of the new query"]
    for metric in metrics:
        heads += [f"{metric}: blended − old self", f"{metric}: blended − cross"]
    return PlainTable("Blended queries", note, tuple(heads), tuple(rows))


def _cells(results: Results, scenario: str, method: str, metrics: list[str]) -> list[Cell]:
    """Return α and the differences of one row; none if they were not measured."""
    cells: list[Cell] = []
    for metric in metrics:
        blended = results.blended(scenario, method, metric)
        if blended is None:
            return []
        old_self, cross = (
            results.old_self(scenario, metric),
            results.cross(scenario, method, metric),
        )
        cells += [difference_cell((blended - other).estimate) for other in (old_self, cross)]
    alphas = [cell["tests"][BLEND]["alpha"] for cell in results.cells(scenario, method)]
    shown = alphas[:1] if len(set(alphas)) == 1 else alphas
    return [Cell("α = " + ", ".join(f"{alpha:g}" for alpha in shown)), *cells]

"""The tables of blended queries and blended weights in a benchmark's report."""

from collections.abc import Callable, Sequence

from unibct.benchmark.cell_values import with_blended_weights
from unibct.benchmark.results import Results
from unibct.benchmark.weight_tests import BETWEEN_CROSS, BETWEEN_SELF
from unibct.evaluation.directions import BLEND, CROSS, OLD_SELF
from unibct.evaluation.metrics.table import TOP_1, find_metric
from unibct.report.plain_table import Cell, PlainTable, difference_cell


def blended_table(results: Results) -> PlainTable | None:
    """Return what blends of old and new queries gain in the old gallery, over old and new ones.

    Results of an earlier version have no blended queries.
    """
    rows = _rows(results, _query_cells)
    if not rows:
        return None
    note = (
        "The old gallery is searched with normalise((1 − α)·old query + α·new query): two encoders "
        f"for each query, no training. {BLEND} − {OLD_SELF} is what the upgrade gains by blending, "
        f"{BLEND} − {CROSS} what the second encoder adds; in points, on the same classes and "
        f"seeds. {_chosen(results)}"
    )
    heads = ["scenario", "method", "share of the new query"]
    for metric in _metrics(results):
        heads += [f"{metric}: blended − old self", f"{metric}: blended − cross"]
    return PlainTable("Blended queries", note, tuple(heads), rows)


def weights_table(results: Results) -> PlainTable | None:
    """Return what a network between the old and the new one finds.

    Only methods that start from the old weights have one; results of an earlier version have none.
    """
    rows = _rows(results, _weight_cells)
    if not rows:
        return None
    note = (
        "One network with the weights (1 − α)·old + α·new, for models that started from the old "
        "weights: one encoder, no training. Its queries in the old gallery, less old queries and "
        "less new ones; and its own self test less the new model's, the price after a backfill; in "
        f"points, on the same classes and seeds. {_chosen(results)}"
    )
    heads = ["scenario", "method", "share of the new weights"]
    for metric in _metrics(results):
        heads += [f"{metric}: blended − old self", f"{metric}: blended − cross"]
        heads.append(f"{metric}: blended self − new self")
    return PlainTable("Blended weights", note, tuple(heads), rows)


def _metrics(results: Results) -> list[str]:
    return [m for m in results.deciding_metrics if m == TOP_1 or find_metric(m).at_far]


def _chosen(results: Results) -> str:
    """Say where α comes from."""
    if results.chosen_on is None:
        return "Here α is the midpoint: no validation classes were given."
    return (
        f"Here each cell chose α on the validation classes of {results.chosen_on} (several "
        "values: one per seed)."
    )


def _rows(
    results: Results, make_cells: Callable[[Results, str, str], list[Cell]]
) -> tuple[tuple[Cell, ...], ...]:
    """Return a row for each cell that has something to show."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        head = Cell(scenario, kind="head")
        for method in results.grid.methods:
            if results.has_cell(scenario, method):
                cells = make_cells(results, scenario, method)
                if cells:
                    rows.append((head, Cell(method), *cells))
                    head = Cell("")
    return tuple(rows)


def _query_cells(results: Results, scenario: str, method: str) -> list[Cell]:
    """Return α and the differences of one row; none if they were not measured."""
    cells: list[Cell] = []
    for metric in _metrics(results):
        blended = results.blended(scenario, method, metric)
        if blended is None:
            return []
        old_self, cross = (
            results.old_self(scenario, metric),
            results.cross(scenario, method, metric),
        )
        cells += [difference_cell((blended - other).estimate) for other in (old_self, cross)]
    return [_alphas(results, scenario, method, BLEND), *cells]


def _weight_cells(results: Results, scenario: str, method: str) -> list[Cell]:
    """Return α and the differences of one row; none if they were not measured."""
    cells: list[Cell] = []
    for metric in _metrics(results):
        cross, self_test = (
            with_blended_weights(results, scenario, method, test, metric)
            for test in (BETWEEN_CROSS, BETWEEN_SELF)
        )
        if cross is None or self_test is None:
            return []
        differences = (
            cross - results.old_self(scenario, metric),
            cross - results.cross(scenario, method, metric),
            self_test - results.new_self(scenario, method, metric),
        )
        cells += [difference_cell(difference.estimate) for difference in differences]
    return [_alphas(results, scenario, method, BETWEEN_CROSS), *cells]


def _alphas(results: Results, scenario: str, method: str, test: str) -> Cell:
    """Return the share of each seed; once if all have the same."""
    alphas: Sequence[float] = [
        cell["tests"][test]["alpha"] for cell in results.cells(scenario, method)
    ]
    shown = alphas[:1] if len(set(alphas)) == 1 else alphas
    return Cell("α = " + ", ".join(f"{alpha:g}" for alpha in shown))

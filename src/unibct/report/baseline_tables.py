"""The tables of a benchmark that compare every method with one of them."""

from collections.abc import Sequence

from unibct.benchmark.results import Results, compared_methods
from unibct.evaluation.metrics.table import TOP_1
from unibct.maps.table import MAPS
from unibct.methods.table import DEFAULT_METHOD, NO_METHOD
from unibct.report.plain_table import NO_VALUE, Cell, PlainTable, difference_cell
from unibct.report.scenario_columns import methods_by_scenarios, top_1_first

BASELINE = "unibct"
# The second one, if it was run, is at work from the first step, as the default method is.
_BASELINES = (BASELINE, f"{BASELINE}-no-warmup", DEFAULT_METHOD)


def baseline_tables(results: Results) -> list[PlainTable]:
    """Return the difference of each method to a baseline: cross test, then self test.

    The cross test has a table for each deciding metric. The self test has one, without the maps,
    which leave the free model as it is. A table is left out if every pair of it was in another.
    """
    metrics = top_1_first(results.deciding_metrics)
    methods = [method for method in compared_methods(results) if method != NO_METHOD]
    trained = [method for method in methods if method not in MAPS]
    baselines = [baseline for baseline in _BASELINES if baseline in methods]
    tables: list[PlainTable | None] = []
    for number, baseline in enumerate(baselines):
        shown = {baseline, *baselines[:number]}
        if set(methods) - shown:
            others = [method for method in methods if method != baseline]
            tables += [_against(results, baseline, others, metric) for metric in metrics]
        if set(trained) - shown:
            others = [method for method in trained if method != baseline]
            tables.append(_against(results, baseline, others, TOP_1, self_test=True))
    return [table for table in tables if table is not None]


def _against(
    results: Results, baseline: str, others: Sequence[str], metric: str, *, self_test: bool = False
) -> PlainTable | None:
    """Return the difference of some methods to a baseline, in the cross test or the self test."""
    measure = results.new_self if self_test else results.cross

    def cell(scenario: str, method: str) -> Cell:
        if not (results.has_cell(scenario, method) and results.has_cell(scenario, baseline)):
            return NO_VALUE
        value, compared = (measure(scenario, name, metric) for name in (method, baseline))
        return difference_cell((value - compared).estimate)

    title = f"Against {baseline}, {'self test, ' if self_test else ''}{metric}"
    note = (
        f"{'Self' if self_test else 'Cross'} test, points of {metric} above (+) or below (−) "
        f"{baseline}, on the same classes and seeds."
    )
    return methods_by_scenarios(results, title, note, others, cell)

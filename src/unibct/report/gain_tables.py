"""The tables of a benchmark's two differences: the criterion's, and the price of compatibility.

The criterion is about cross − old self. The price is new self − free self.
"""

from unibct.benchmark.results import Results, compared_methods, finished_methods, gain
from unibct.evaluation.criterion import joint_verdict
from unibct.evaluation.metrics.table import TOP_1
from unibct.maps.table import MAPS
from unibct.methods.table import NO_METHOD
from unibct.report.plain_table import NO_VALUE, Cell, PlainTable, difference_cell, verdict_kind
from unibct.report.scenario_columns import methods_by_scenarios, top_1_first


def gain_tables(results: Results) -> list[PlainTable]:
    """Return cross − old self in each deciding metric, and new self − free self in top-1."""
    tables = [gain_table(results, metric) for metric in top_1_first(results.deciding_metrics)]
    return [table for table in (*tables, price_table(results)) if table is not None]


def gain_table(results: Results, metric: str = TOP_1) -> PlainTable | None:
    """Return the gain of each method in each scenario."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        return difference_cell(gain(results, scenario, method, metric).estimate)

    title = f"Cross − old self, points of {metric}"
    note = (
        "By how much new queries find more in the old gallery than old queries do, with the "
        "interval of the difference."
    )
    return methods_by_scenarios(results, title, note, compared_methods(results), cell)


def price_table(results: Results) -> PlainTable | None:
    """Return what each method's self test loses or gains against the free model's, in top-1.

    Maps are left out, because they do not change the new model. There is no table without a free
    model.
    """
    methods = [m for m in compared_methods(results) if m not in (NO_METHOD, *MAPS)]
    free_tests = [results.free_self(scenario, TOP_1) for scenario in results.scenarios]
    if not methods or all(test is None for test in free_tests):
        return None

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        return _price_cell(results, scenario, method, TOP_1)

    note = (
        "What compatibility costs (−) or gives (+): the new model's self test compared with the "
        "free model's."
    )
    title = f"New self − free self, points of {TOP_1}"
    return methods_by_scenarios(results, title, note, methods, cell)


def criterion_table(results: Results, scenario: str) -> PlainTable:
    """Return cross − old self of each method in a scenario, and the price of compatibility."""
    rows: list[tuple[Cell, ...]] = []
    for method in finished_methods(results, scenario):
        gains = {
            metric: gain(results, scenario, method, metric).estimate for metric in results.metrics
        }
        verdict = joint_verdict([gains[metric].verdict for metric in results.deciding_metrics])
        rows.append(
            (
                Cell(method),
                *(difference_cell(difference) for difference in gains.values()),
                Cell(verdict, kind=verdict_kind(verdict)),
                *(_price_cell(results, scenario, method, metric) for metric in results.metrics),
            )
        )
    heads = (
        "method",
        *(f"{metric}: cross − old self" for metric in results.metrics),
        "verdict",
        *(f"{metric}: new self − free self" for metric in results.metrics),
    )
    further = [metric for metric in results.metrics if metric not in results.deciding_metrics]
    note = (
        "Differences in points, each with its interval. Left of the verdict: the criterion. Right "
        "of it: what the compatible model's self test loses (−) or gains (+) compared with the "
        "free model."
        + (f" The verdict does not depend on {', '.join(further)}." if further else "")
    )
    return PlainTable(f"{scenario}: the criterion and its price", note, heads, tuple(rows))


def _price_cell(results: Results, scenario: str, method: str, metric: str) -> Cell:
    """Return new self − free self; no value if the free model was not trained."""
    free = results.free_self(scenario, metric)
    if free is None:
        return NO_VALUE
    price = results.new_self(scenario, method, metric) - free
    return difference_cell(price.estimate, coloured=False)

from dataclasses import replace

import pytest

from unibct.report.benchmark_tables import all_tables
from unibct.report.gain_tables import gain_table, gain_tables, price_table

SCENARIO = "open-class"


def shown(table, method):
    """The points that a table shows of a method in the scenario."""
    (row,) = [row for row in table.rows if row[0].text == method]
    return float(row[table.heads.index(SCENARIO)].text)


def test_gains_are_shown_in_every_deciding_metric_with_top_1_first(finished):
    _, results = finished
    others = [metric for metric in results.deciding_metrics if metric != "top-1"]
    assert others
    titles = [f"Cross − old self, points of {metric}" for metric in ("top-1", *others)]
    tables = all_tables(results)[1:]  # the verdicts come before them
    assert [table.title for table in tables[: len(titles)]] == titles
    for table, metric in zip(tables, ("top-1", *others), strict=False):
        cross = results.cross(SCENARIO, "unibct-plus", metric).values
        old = results.old_self(SCENARIO, metric).values
        assert shown(table, "unibct-plus") == pytest.approx(100 * (cross - old).mean(), abs=0.006)
    assert gain_table(results).title == titles[0]


def test_the_price_is_new_self_minus_free_self_of_the_trained_methods(finished):
    _, results = finished
    table = gain_tables(results)[-1]
    assert table.title == "New self − free self, points of top-1"
    methods = [row[0].text for row in table.rows]
    assert "unibct-plus" in methods
    assert "none" not in methods
    assert "procrustes" not in methods
    new = results.new_self(SCENARIO, "unibct-plus", "top-1").values
    free = results.free_self(SCENARIO, "top-1").values
    assert shown(table, "unibct-plus") == pytest.approx(100 * (new - free).mean(), abs=0.006)
    without_free = {
        folder: result
        for folder, result in results.by_job.items()
        if not folder.startswith("models/free")
    }
    assert price_table(replace(results, by_job=without_free)) is None

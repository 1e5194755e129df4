from types import SimpleNamespace

import numpy as np

from unibct.benchmark.results import Measured
from unibct.report.paper import other_losses_table, paper_figure, prototype_table, scenario_table


def test_the_papers_figures_of_extended_data():
    assert paper_figure("extended-data", "old", "self", "TAR@1e-4") == "93.36"
    assert paper_figure("extended-data", "old", "self", "top-1") == "69.90"
    assert paper_figure("extended-data", "unibct", "cross", "top-5") == "81.77"


def test_the_tar_is_found_at_any_false_accept_rate():
    at_other_rate = paper_figure("open-class", "unibct", "cross", "TAR@1e-2")
    assert at_other_rate == paper_figure("open-class", "unibct", "cross", "TAR@1e-4")
    assert at_other_rate is not None


def test_what_the_paper_does_not_have_is_none():
    assert paper_figure("extended-data", "old", "cross", "top-1") is None
    assert paper_figure("extended-data", "unibct", "cross", "mAP") is None
    assert paper_figure("extended-data", "unibct-plus", "cross", "top-1") is None


METRICS = ["TAR@1e-2", "top-1", "top-5"]


def made_up_results(*methods, scenario="extended-data"):
    """One scenario; the tests have these shares, the same in both seeds."""

    def measured(share):
        return Measured(np.full(2, share), np.full((2, 50), share), 50)

    return SimpleNamespace(
        grid=SimpleNamespace(methods=methods),
        scenarios=[scenario],
        metrics=METRICS,
        has_cell=lambda scenario, method: True,
        old_self=lambda scenario, metric: measured(0.5),
        cross=lambda scenario, method, metric: measured(0.61 if metric == "top-1" else 0.6),
        new_self=lambda scenario, method, metric: measured(0.7),
    )


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_the_columns_of_all_scenarios_are_in_the_papers_order():
    table = scenario_table(made_up_results("none", "unibct"))
    assert table.heads[2:] == (
        "cross TAR@1e-2",
        "self TAR@1e-2",
        "cross top-1",
        "cross top-5",
        "self top-1",
        "self top-5",
    )
    assert texts(table) == [
        ["extended-data", "old", "—", "50.00", "—", "—", "50.00", "50.00"],
        ["", "none", "60.00", "70.00", "61.00", "60.00", "70.00", "70.00"],
        ["", "unibct", "60.00", "70.00", "61.00", "60.00", "70.00", "70.00"],
    ]
    # The paper's cross top-1 and self top-1 in extended-data.
    assert "paper 72.89" in table.rows[2][4].small
    assert "paper 69.90" in table.rows[0][6].small


def test_kinds_of_prototypes_and_other_losses_with_the_papers_figures():
    results = made_up_results("regress", "unibct-centroid", "unibct")
    table = prototype_table(results)
    assert texts(table)[0][:3] == ["old", "50.00", "—"]
    assert [row[0].text for row in table.rows[1:]] == ["unibct-centroid", "unibct"]
    assert texts(table)[2] == ["unibct", "60.00", "+10.00", "61.00", "+11.00", "60.00", "+10.00"]
    assert "paper 72.46" in table.rows[1][3].small
    others = other_losses_table(results)
    assert [row[0].text for row in others.rows[1:]] == ["regress", "unibct-centroid", "unibct"]
    assert "paper 8.12" in others.rows[1][3].small


def test_a_comparison_needs_two_methods_in_extended_data():
    assert prototype_table(made_up_results("none", "regress", "unibct")) is None
    assert other_losses_table(made_up_results("none", "unibct")) is None
    assert other_losses_table(made_up_results("bct", "unibct", scenario="open-data")) is None

from types import SimpleNamespace

from unibct.report.plain_table import Cell
from unibct.report.scenario_columns import methods_by_scenarios, top_1_first


def test_a_row_for_each_method_and_a_column_for_each_scenario():
    def cell(scenario, method):
        return Cell(f"{method} in {scenario}")

    results = SimpleNamespace(scenarios=["open-data", "open-class"])
    table = methods_by_scenarios(results, "Title", "Note.", ["bct", "lce"], cell)
    assert (table.title, table.note) == ("Title", "Note.")
    assert table.heads == ("method", "open-data", "open-class")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["bct", "bct in open-data", "bct in open-class"],
        ["lce", "lce in open-data", "lce in open-class"],
    ]
    nothing = SimpleNamespace(scenarios=[])
    assert methods_by_scenarios(nothing, "Title", "Note.", ["bct"], cell) is None


def test_top_1_comes_first():
    assert top_1_first(["TAR@1e-2", "top-1", "top-5"]) == ["top-1", "TAR@1e-2", "top-5"]

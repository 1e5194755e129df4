import pytest

from unibct.evaluation.criterion import Estimate
from unibct.report.plain_table import (
    Cell,
    PlainTable,
    as_markdown,
    difference_cell,
    percent_cell,
    verdict_kind,
)

TABLE = PlainTable(
    "Gains",
    "In points.",
    ("method", "top-1", "verdict"),
    (
        (Cell("bct", "the baseline"), Cell("+1.50", "+1.00 to +2.00"), Cell("compatible")),
        (Cell("none"), Cell("—"), Cell("—")),
    ),
)


def test_a_table_in_markdown():
    assert as_markdown(TABLE) == (
        "## Gains\n\nIn points.\n\n"
        "| method | top-1 | verdict |\n"
        "| --- | --- | --- |\n"
        "| bct (the baseline) | +1.50 (+1.00 to +2.00) | compatible |\n"
        "| none | — | — |\n"
    )


def test_columns_with_numbers_are_known():
    assert TABLE.numeric == (False, True, False)


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(0.01, 0.02, "compatible"), (-0.01, 0.02, "within-noise"), (-0.02, -0.01, "not-compatible")],
)
def test_a_difference_is_in_points_and_coloured_by_its_verdict(low, high, kind):
    difference = Estimate((low + high) / 2, low, high, high)
    interval = f"{100 * low:+.2f} to {100 * high:+.2f}"
    cell = difference_cell(difference)
    assert cell == Cell(f"{50 * (low + high):+.2f}", interval, kind)
    assert difference_cell(difference, coloured=False).kind == ""
    assert verdict_kind(difference.verdict) == kind


def test_the_interval_of_a_share_ends_at_0_and_100_percent():
    assert percent_cell(Estimate(0.99, 0.97, 1.02, 1.03)) == Cell("99.00", "97.00 to 100.00")
    assert percent_cell(Estimate(0.01, -0.02, 0.03, 0.04)) == Cell("1.00", "0.00 to 3.00")
    paper = percent_cell(Estimate(0.5, 0.4, 0.6, 0.7), paper="93.36", kind="compatible")
    assert paper == Cell("50.00", "40.00 to 60.00; paper 93.36", "compatible")

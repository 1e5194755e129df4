import jinja2
import pytest

from unibct.report.pages.html import render_template
from unibct.report.plain_table import Cell, PlainTable


def benchmark_page(**changes):
    table = PlainTable(
        "A <b>title</b>", "A note.", ("method", "top-1"), ((Cell("<i>x</i>"), Cell("+1")),)
    )
    values = {
        "about": "5 > 4",
        "tables": [table],
        "curves": {},
        "curves_note": "",
        "matrices": {},
        "queries": [],
        "pictured_scenario": "",
        "run": {},
        "recipe": {},
    }
    return render_template("benchmark.html.jinja", **{**values, **changes})


def test_text_is_escaped():
    page = benchmark_page()
    assert "5 &gt; 4" in page
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    assert "&lt;i&gt;x&lt;/i&gt;" in page


def test_a_missing_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        render_template("benchmark.html.jinja", about="only this")


def test_a_first_column_of_groups_becomes_rows_of_heads():
    rows = (
        (Cell("open-data", kind="head"), Cell("bct"), Cell("1.00", "0.90 to 1.10; paper 2.00")),
        (Cell(""), Cell("none"), Cell("—")),
    )
    grouped = PlainTable("All", "", ("scenario", "method", "cross top-1"), rows)
    page = benchmark_page(tables=[grouped])
    assert page.count('<tr class="group">') == 1
    assert "<th>open-data</th>" in page
    assert "<small>0.90 to 1.10</small><small>paper 2.00</small>" in page

from unibct.benchmark.cell_values import in_mixed_gallery
from unibct.report.mixed_table import mixed_table


def test_each_method_has_a_row_for_each_merging(finished):
    _, results = finished
    table = mixed_table(results)
    assert all(len(row) == len(table.heads) for row in table.rows)
    rows = table.rows[:6]
    assert [row[0].text for row in rows] == ["extended-data", *[""] * 5]
    assert [row[1].text for row in rows] == ["none", "", "unibct-plus", "", "procrustes", ""]
    assert [row[2].text for row in rows] == ["raw", "standardised"] * 3
    means = [
        in_mixed_gallery(results, "extended-data", "unibct-plus", merging, "top-1 mean")
        for merging in ("raw", "standardised")
    ]
    assert [row[3].text for row in rows[2:4]] == [f"{100 * m.values.mean():.2f}" for m in means]
    difference = (means[1] - means[0]).estimate
    assert (rows[2][4].text, rows[3][4].text) == ("—", f"{100 * difference.mean:+.2f}")
    flips = in_mixed_gallery(results, "extended-data", "unibct-plus", "raw", "nfr at half")
    assert rows[2][-1].text == f"{100 * flips.values.mean():.2f}"
    assert "raw scores are merged" in table.note

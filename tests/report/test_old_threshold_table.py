from dataclasses import replace

from unibct.benchmark.cell_values import at_old_threshold
from unibct.report.old_threshold_table import old_threshold_table


def test_each_method_has_a_row_with_old_new_and_scaled_scores(finished):
    _, results = finished
    table = old_threshold_table(results)
    assert all(len(row) == len(table.heads) for row in table.rows)
    rows = table.rows[:3]
    assert [row[0].text for row in rows] == ["extended-data", "", ""]
    assert [row[1].text for row in rows] == ["none", "unibct-plus", "procrustes"]
    old, crossed, scaled = (
        at_old_threshold(results, "extended-data", "unibct-plus", way, "TAR")
        for way in ("old", "cross", "scaled")
    )
    shown = dict(zip(table.heads, rows[1], strict=True))
    assert shown["old: TAR"].text == f"{100 * old.values.mean():.2f}"
    assert shown["new: TAR"].text == f"{100 * crossed.values.mean():.2f}"
    assert shown["scaled: TAR"].text == f"{100 * scaled.values.mean():.2f}"
    gain = (scaled - old).estimate
    assert shown["scaled − old: TAR"].text == f"{100 * gain.mean:+.2f}"
    far = at_old_threshold(results, "extended-data", "unibct-plus", "scaled", "FAR").estimate
    assert shown["scaled: FAR"].text == f"{100 * far.mean:.4f}"
    flips = results.flips("extended-data", "unibct-plus", "nfr")
    assert shown["negative flips, %"].text == f"{100 * flips.values.mean():.2f}"
    free = dict(zip(table.heads, rows[0], strict=True))
    assert (free["score scale"].text, free["scaled: TAR"].text) == ("—", "—")


def test_results_of_an_earlier_version_have_no_such_table(finished):
    _, results = finished
    earlier = {
        folder: {key: value for key, value in result.items() if key != "at_old_threshold"}
        for folder, result in results.by_job.items()
    }
    assert old_threshold_table(replace(results, by_job=earlier)) is None

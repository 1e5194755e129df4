from unibct.benchmark.cell_values import with_blended_weights
from unibct.report.blended_table import blended_table, weights_table


def test_each_cell_has_its_alpha_and_its_gains(finished):
    _, results = finished
    table = blended_table(results)
    metrics = [metric for metric in results.deciding_metrics if metric != "top-5"]
    assert table.heads == (
        "scenario",
        "method",
        "share of the new query",
        *(f"{m}: blended − {other}" for m in metrics for other in ("old self", "cross")),
    )
    assert [row[0].text for row in table.rows] == ["extended-data", "", "", "open-class", "", ""]
    row = table.rows[4]
    assert [cell.text for cell in row[1:3]] == ["unibct-plus", "α = 0.5"]
    gains = []
    for metric in metrics:
        blended = results.blended("open-class", "unibct-plus", metric)
        gains += [
            (blended - results.old_self("open-class", metric)).estimate,
            (blended - results.cross("open-class", "unibct-plus", metric)).estimate,
        ]
    assert [cell.text for cell in row[3:]] == [f"{100 * gain.mean:+.2f}" for gain in gains]
    assert row[3].small == f"{100 * gains[0].low:+.2f} to {100 * gains[0].high:+.2f}"
    assert "α is the midpoint: no validation classes were given" in table.note


def test_only_models_that_started_from_the_old_one_have_blended_weights(finished):
    _, results = finished
    table = weights_table(results)
    metrics = [metric for metric in results.deciding_metrics if metric != "top-5"]
    names = ("blended − old self", "blended − cross", "blended self − new self")
    heads = (f"{m}: {name}" for m in metrics for name in names)
    assert table.heads == ("scenario", "method", "share of the new weights", *heads)
    assert [[cell.text for cell in row[:3]] for row in table.rows] == [
        ["extended-data", "unibct-plus", "α = 0.5"],
        ["open-class", "unibct-plus", "α = 0.5"],
    ]
    cell, column = ("open-class", "unibct-plus"), 3 + 3 * metrics.index("top-1")
    cross, own = (
        with_blended_weights(results, *cell, test, "top-1")
        for test in ("between→old", "between→between")
    )
    expected = [
        cross - results.old_self("open-class", "top-1"),
        cross - results.cross(*cell, "top-1"),
        own - results.new_self(*cell, "top-1"),
    ]
    assert [one.text for one in table.rows[1][column : column + 3]] == [
        f"{100 * difference.estimate.mean:+.2f}" for difference in expected
    ]
    assert "α is the midpoint" in table.note

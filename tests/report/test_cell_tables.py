from unibct.report.cell_tables import blended_table, mixed_table, old_threshold_table, weights_table


def test_each_cell_has_its_alpha_and_its_gains(results):
    table = blended_table(results)
    metrics = [metric for metric in results.deciding_metrics if metric != "top-5"]
    heads = (f"{m}: blended − {other}" for m in metrics for other in ("old self", "cross"))
    assert table.heads == ("scenario", "method", "share of the new query", *heads)
    assert [row[0].text for row in table.rows] == ["extended-data", "", "", "open-class", "", ""]
    row = table.rows[4]
    assert [cell.text for cell in row[1:3]] == ["unibct-plus", "α = 0.5"]
    gains = []
    for metric in metrics:
        blended = results.in_cell("open-class", "unibct-plus", "blend→old", metric)
        gains += [
            (blended - results.old_self("open-class", metric)).estimate,
            (blended - results.cross("open-class", "unibct-plus", metric)).estimate,
        ]
    assert [cell.text for cell in row[3:]] == [f"{100 * gain.mean:+.2f}" for gain in gains]
    assert row[3].small == f"{100 * gains[0].low:+.2f} to {100 * gains[0].high:+.2f}"
    assert "α is the midpoint: no validation classes were given" in table.note


def test_only_models_that_started_from_the_old_one_have_blended_weights(results):
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
        results.in_cell(*cell, test, "top-1") for test in ("between→old", "between→between")
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


def test_each_method_has_a_row_for_each_merging(results):
    table = mixed_table(results)
    assert all(len(row) == len(table.heads) for row in table.rows)
    rows = table.rows[:6]
    assert [row[0].text for row in rows] == ["extended-data", *[""] * 5]
    assert [row[1].text for row in rows] == ["none", "", "unibct-plus", "", "procrustes", ""]
    assert [row[2].text for row in rows] == ["raw", "standardised"] * 3
    means = [
        results.in_cell("extended-data", "unibct-plus", f"mixed {merging}", "top-1 mean")
        for merging in ("raw", "standardised")
    ]
    assert [row[3].text for row in rows[2:4]] == [f"{100 * m.values.mean():.2f}" for m in means]
    difference = (means[1] - means[0]).estimate
    assert (rows[2][4].text, rows[3][4].text) == ("—", f"{100 * difference.mean:+.2f}")
    flips = results.in_cell("extended-data", "unibct-plus", "mixed raw", "nfr at half")
    assert rows[2][-1].text == f"{100 * flips.values.mean():.2f}"
    assert "raw scores are merged" in table.note


def test_each_method_has_a_row_with_old_new_and_scaled_scores(results):
    table = old_threshold_table(results)
    assert all(len(row) == len(table.heads) for row in table.rows)
    rows = table.rows[:3]
    assert [row[0].text for row in rows] == ["extended-data", "", ""]
    assert [row[1].text for row in rows] == ["none", "unibct-plus", "procrustes"]
    old, crossed, scaled = (
        results.in_cell("extended-data", "unibct-plus", f"{way} at old threshold", "TAR")
        for way in ("old", "cross", "scaled")
    )
    shown = dict(zip(table.heads, rows[1], strict=True))
    for name, tar in (("old", old), ("new", crossed), ("scaled", scaled)):
        assert shown[f"{name}: TAR"].text == f"{100 * tar.values.mean():.2f}"
    gain = (scaled - old).estimate
    assert shown["scaled − old: TAR"].text == f"{100 * gain.mean:+.2f}"
    far = results.in_cell("extended-data", "unibct-plus", "scaled at old threshold", "FAR").estimate
    assert shown["scaled: FAR"].text == f"{100 * far.mean:.4f}"
    flips = results.cross("extended-data", "unibct-plus", "nfr")
    assert shown["negative flips, %"].text == f"{100 * flips.values.mean():.2f}"
    free = dict(zip(table.heads, rows[0], strict=True))
    assert (free["score scale"].text, free["scaled: TAR"].text) == ("—", "—")

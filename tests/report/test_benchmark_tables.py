import re
from dataclasses import replace

import numpy as np
import pytest

from tests.report.made_up import made_up
from unibct.benchmark.results import Measured, as_csv
from unibct.evaluation.criterion import seeds_note
from unibct.evaluation.search_test import search_test
from unibct.report.benchmark_tables import (
    all_tables,
    baseline_tables,
    by_method,
    chain_averages,
    chain_gain_table,
    chain_tables,
    flip_table,
    gain_table,
    paper_figure,
    paper_tables,
    price_table,
    scenario_table,
    top_1_first,
    verdict_table,
    weak_note,
)
from unibct.report.plain_table import NO_VALUE, Cell


def test_no_number_of_a_table_stands_without_its_interval(results):
    for sheet in all_tables(results)[:-1]:  # the last one is the cost
        for row in sheet.rows:
            for cell in row:
                if re.fullmatch(r"[+-]?\d+\.\d+", cell.text):
                    assert re.search(r"\d to [+-]?\d", cell.small), (sheet.title, cell)


def test_every_table_of_two_seeds_says_that_it_is_about_these_seeds(results):
    assert len(results.seeds) == 2
    sentence = (
        "Intervals are 95 %, over test classes, of these 2 seeds: they say nothing about other "
        "seeds of training."
    )
    for table in all_tables(results)[:-1]:  # the last one is the cost
        assert table.note.endswith(sentence), table.title
    assert seeds_note(1) == sentence.replace("these 2 seeds", "this one seed")
    assert seeds_note(3) == "Intervals are 95 %, over test classes and seeds of training."


def test_the_word_of_a_verdict_of_two_seeds_claims_these_seeds_alone(results):
    words = [cell.text for row in verdict_table(results).rows for cell in row[1:]]
    judged = [text for text in words if text != NO_VALUE.text]
    assert judged
    assert all(text.endswith(" for these 2 seeds") for text in judged)


def test_an_interval_just_below_zero_is_explained(results):
    assert (
        "Not compatible needs a difference below zero at a one-sided 99.2 %, because any of 3 "
        "metrics may be below by chance; an interval that ends just below zero is within noise"
    ) in verdict_table(results).note


def test_negative_flips_are_shown_with_all_three_intervals(results):
    table = next(table for table in all_tables(results) if table.title == "Negative flips")
    cell = next(row for row in table.rows if row[0].text == "unibct-plus")[1]
    rates = [results.cross(table.heads[1], "unibct-plus", rate) for rate in ("nfr", "pfr")]
    assert cell.text == f"{100 * rates[0].values.mean():.2f}"
    assert f"positive {100 * rates[1].values.mean():.2f} (" in cell.small
    assert len(re.findall(r"\d to -?\d", cell.small)) == 3
    assert "nfr" in as_csv(results)


def test_no_flip_rate_is_below_zero():
    rates = {"nfr": 0.02, "pfr": 0.01, "relative_nfr": 0.1}
    samples = np.linspace(-0.2, 0.2, 50) * np.array([[1], [-1]])

    def of(test, method, rate):
        return Measured(np.full(2, rates[rate]), samples, 50)

    cell = flip_table(made_up(("lce",), (), of)).rows[0][1]
    assert cell.text == "2.00"
    assert "positive 1.00 (0.00 to " in cell.small
    assert "relative 0.10 (0.00 to " in cell.small


def with_weak_models(results, folders):
    """The results, where the old models of some folders are hardly better than raw pixels."""
    by_job = {
        name: result | {"old_model": {"too_weak": name.startswith(folders)}}
        for name, result in results.by_job.items()
    }
    return replace(results, by_job=by_job)


def test_scenarios_with_a_weak_old_model_are_named_below_the_verdicts(results):
    changed = with_weak_models(results, "models/old-classes")
    assert changed.weak_old_models == {"open-class": [0, 1]}
    sentence = "the old model of open-class (seed 0, 1)."
    assert weak_note(changed).endswith(sentence)
    assert verdict_table(changed).note.endswith(sentence)


def made_up_results(*methods, metrics=("TAR@1e-2", "top-1")):
    """Two seeds in one scenario; every method and metric has its own values and samples."""

    def of(test, method, metric):
        kinds = ("new→old", "new→new")
        seed = [kinds.index(test), methods.index(method), metrics.index(metric)]
        generator = np.random.default_rng(seed)
        return Measured(generator.random(2), generator.random((2, 50)), 50)

    return made_up(methods, metrics, of)


def rows_by_title(results):
    tables = [table for table in baseline_tables(results) if table is not None]
    return {table.title: [row[0].text for row in table.rows] for table in tables}


def test_every_method_is_compared_with_the_default_method_in_both_tests():
    results = made_up_results("none", "regress", "unibct", "unibct-plus", "procrustes")
    assert rows_by_title(results) == {
        "Against unibct, top-1": ["regress", "unibct-plus", "procrustes"],
        "Against unibct, TAR@1e-2": ["regress", "unibct-plus", "procrustes"],
        "Against unibct, self test, top-1": ["regress", "unibct-plus"],
        "Against unibct-plus, top-1": ["regress", "unibct", "procrustes"],
        "Against unibct-plus, TAR@1e-2": ["regress", "unibct", "procrustes"],
        "Against unibct-plus, self test, top-1": ["regress", "unibct"],
    }
    tables = {table.title: table for table in baseline_tables(results) if table is not None}
    for title, test, metric in [
        ("Against unibct-plus, TAR@1e-2", results.cross, "TAR@1e-2"),
        ("Against unibct-plus, self test, top-1", results.new_self, "top-1"),
    ]:
        regress, plus = (test("open-class", name, metric) for name in ("regress", "unibct-plus"))
        difference = 100 * np.mean([regress.values[seed] - plus.values[seed] for seed in (0, 1)])
        samples = regress.samples - plus.samples
        paired = Measured(regress.values - plus.values, samples, 50).estimate
        cell = tables[title].rows[0][1]
        assert cell.text == f"{difference:+.2f}"
        assert cell.small == f"{100 * paired.low:+.2f} to {100 * paired.high:+.2f}"


def test_a_pair_of_methods_is_not_compared_twice():
    assert rows_by_title(made_up_results("none", "unibct", "unibct-plus")) == {
        "Against unibct, top-1": ["unibct-plus"],
        "Against unibct, TAR@1e-2": ["unibct-plus"],
        "Against unibct, self test, top-1": ["unibct-plus"],
    }
    # Of the self test, the pair is all that there is: a map leaves the free model as it is.
    assert rows_by_title(made_up_results("unibct", "unibct-plus", "affine")) == {
        "Against unibct, top-1": ["unibct-plus", "affine"],
        "Against unibct, TAR@1e-2": ["unibct-plus", "affine"],
        "Against unibct, self test, top-1": ["unibct-plus"],
        "Against unibct-plus, top-1": ["unibct", "affine"],
        "Against unibct-plus, TAR@1e-2": ["unibct", "affine"],
    }
    assert rows_by_title(made_up_results("none", "unibct-plus")) == {}


SCENARIO = "open-class"


def shown(table, method):
    """The points that a table shows of a method in the scenario."""
    (row,) = [row for row in table.rows if row[0].text == method]
    return float(row[table.heads.index(SCENARIO)].text)


def test_gains_are_shown_in_every_deciding_metric_with_top_1_first(results):
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


def test_the_price_is_new_self_minus_free_self_of_the_trained_methods(results):
    table = price_table(results)
    assert table.title == "New self − free self, points of top-1"
    methods = [row[0].text for row in table.rows]
    assert "unibct-plus" in methods
    assert "none" not in methods
    assert "procrustes" not in methods
    new = results.new_self(SCENARIO, "unibct-plus", "top-1").values
    free = results.free_self(SCENARIO, "top-1").values
    assert shown(table, "unibct-plus") == pytest.approx(100 * (new - free).mean(), abs=0.006)
    kept = {f: result for f, result in results.by_job.items() if not f.startswith("models/free")}
    assert price_table(replace(results, by_job=kept)) is None


def test_a_chain_tests_all_pairs_of_versions(benchmark, results):
    workspace = benchmark.workspace
    folders = ["models/old-images-seed0"] + [f"chains/unibct-plus/seed0/v{v}" for v in (2, 3)]
    vectors = [workspace.vectors(folder) for folder in folders]
    matrix = np.zeros((3, 3))
    for q in range(3):
        for g in range(3):
            matrix[q, g] = search_test(vectors[q], vectors[g], workspace.split).top(1)
            stored = results.between_versions("unibct-plus", q + 1, g + 1, "top-1").values[0]
            assert stored == pytest.approx(matrix[q, g])
    average, share = chain_averages(results, "unibct-plus")
    seeds = [
        np.mean([results.between_versions("unibct-plus", q, g, "top-1").values[s]
                 for q in (1, 2, 3) for g in range(1, q + 1)]) for s in (0, 1)
    ]  # fmt: skip
    assert average.mean == pytest.approx(np.mean(seeds))
    assert re.fullmatch(r"\d of 6", share)
    gains = chain_gain_table(results, "unibct-plus")
    assert [row[0].text for row in gains.rows] == [
        "v2→v1 − v1→v1", "v3→v1 − v1→v1", "v3→v2 − v2→v2",
        "v1→v2 − v1→v1", "v1→v3 − v1→v1", "v2→v3 − v2→v2",
    ]  # fmt: skip
    third, first = (results.between_versions("unibct-plus", 1, g, "top-1").values for g in (3, 1))
    assert gains.heads[1] == "top-1"
    gain = 100 * (third.mean() - first.mean())
    assert float(gains.rows[4][1].text) == pytest.approx(gain, abs=0.006)


@pytest.mark.parametrize(
    ("folders", "ending"),
    [("models/old-images", "hardly better than raw pixels: seed 0, 1."), ("none", "of 6.")],
)
def test_a_chain_that_begins_with_a_weak_model_says_so(finished, folders, ending):
    changed = with_weak_models(finished[1], folders)
    assert chain_tables(changed)[0].note.endswith(ending)


def test_a_row_for_each_method_and_a_column_for_each_scenario():
    def cell(scenario, method):
        return Cell(f"{method} in {scenario}")

    results = made_up(("bct", "lce"), (), None, scenarios=("open-data", "open-class"))
    table = by_method(results, "Title", "Note.", ["bct", "lce"], cell)
    assert (table.title, table.note) == ("Title", "Note.")
    assert table.heads == ("method", "open-data", "open-class")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["bct", "bct in open-data", "bct in open-class"],
        ["lce", "lce in open-data", "lce in open-class"],
    ]
    unfinished = replace(results, wanted=lambda _, method: method == "bct")
    table = by_method(unfinished, "Title", "Note.", ["bct", "lce"], cell)
    assert [cell.text for cell in table.rows[1]] == ["lce", "—", "—"]
    nothing = replace(results, wanted=lambda scenario, method: False)
    assert by_method(nothing, "Title", "Note.", ["bct"], cell) is None


def test_top_1_comes_first():
    assert top_1_first(["TAR@1e-2", "top-1", "top-5"]) == ["top-1", "TAR@1e-2", "top-5"]


@pytest.mark.parametrize(
    ("where", "figure"),
    [
        (("extended-data", "old", "self", "TAR@1e-4"), "93.36"),
        (("extended-data", "old", "self", "top-1"), "69.90"),
        (("extended-data", "unibct", "cross", "top-5"), "81.77"),
        (("extended-data", "old", "cross", "top-1"), None),
        (("extended-data", "unibct", "cross", "mAP"), None),
        (("extended-data", "unibct-plus", "cross", "top-1"), None),
    ],
)
def test_the_papers_figures(where, figure):
    assert paper_figure(*where) == figure


def test_the_papers_tar_is_found_at_any_false_accept_rate():
    at_other_rate = paper_figure("open-class", "unibct", "cross", "TAR@1e-2")
    assert at_other_rate == paper_figure("open-class", "unibct", "cross", "TAR@1e-4")
    assert at_other_rate is not None


PAPER_METRICS = ("TAR@1e-2", "top-1", "top-5")


def paper_results(*methods, scenario="extended-data"):
    """One scenario; the tests have these shares, the same in both seeds."""

    def of(test, method, metric):
        share = {"old→old": 0.5, "new→old": 0.6, "new→new": 0.7}[test]
        share = 0.61 if (test, metric) == ("new→old", "top-1") else share
        return Measured(np.full(2, share), np.full((2, 50), share), 50)

    return made_up(methods, PAPER_METRICS, of, scenarios=(scenario,))


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_the_columns_of_all_scenarios_are_in_the_papers_order():
    table = scenario_table(paper_results("none", "unibct"))
    heads = "cross TAR@1e-2, self TAR@1e-2, cross top-1, cross top-5, self top-1, self top-5"
    assert ", ".join(table.heads[2:]) == heads
    assert texts(table) == [
        ["extended-data", "old", "—", "50.00", "—", "—", "50.00", "50.00"],
        ["", "none", "60.00", "70.00", "61.00", "60.00", "70.00", "70.00"],
        ["", "unibct", "60.00", "70.00", "61.00", "60.00", "70.00", "70.00"],
    ]
    # The paper's cross top-1 and self top-1 in extended-data.
    assert "paper 72.89" in table.rows[2][4].small
    assert "paper 69.90" in table.rows[0][6].small


def test_kinds_of_prototypes_and_other_losses_with_the_papers_figures():
    results = paper_results("regress", "unibct-centroid", "unibct")
    table, others = paper_tables(results)
    assert texts(table)[0][:3] == ["old", "50.00", "—"]
    assert [row[0].text for row in table.rows[1:]] == ["unibct-centroid", "unibct"]
    assert texts(table)[2] == ["unibct", "60.00", "+10.00", "61.00", "+11.00", "60.00", "+10.00"]
    assert "paper 72.46" in table.rows[1][3].small
    assert [row[0].text for row in others.rows[1:]] == ["regress", "unibct-centroid", "unibct"]
    assert "paper 8.12" in others.rows[1][3].small


def test_a_comparison_needs_two_methods_in_extended_data():
    (other_losses,) = paper_tables(paper_results("none", "regress", "unibct"))
    assert "Table 4" in other_losses.title
    assert paper_tables(paper_results("none", "unibct")) == []
    assert paper_tables(paper_results("bct", "unibct", scenario="open-data")) == []

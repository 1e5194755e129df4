import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from unibct.benchmark.results import Measured
from unibct.benchmark.results_csv import as_csv
from unibct.evaluation.criterion import seeds_note
from unibct.report.benchmark_tables import all_tables, flip_table, verdict_table, weak_note
from unibct.report.plain_table import NO_VALUE


def test_no_number_of_a_table_stands_without_its_interval(finished):
    _, results = finished
    for sheet in all_tables(results)[:-1]:  # the last one is the cost
        for row in sheet.rows:
            for cell in row:
                if re.fullmatch(r"[+-]?\d+\.\d+", cell.text):
                    assert re.search(r"\d to [+-]?\d", cell.small), (sheet.title, cell)


def test_every_table_of_two_seeds_says_that_it_is_about_these_seeds(finished):
    _, results = finished
    assert len(results.seeds) == 2
    sentence = (
        "Intervals are 95 %, over test classes, of these 2 seeds: they say nothing about other "
        "seeds of training."
    )
    for table in all_tables(results)[:-1]:  # the last one is the cost
        assert table.note.endswith(sentence), table.title
    assert seeds_note(1) == sentence.replace("these 2 seeds", "this one seed")
    assert seeds_note(3) == "Intervals are 95 %, over test classes and seeds of training."


def test_the_word_of_a_verdict_of_two_seeds_claims_these_seeds_alone(finished):
    _, results = finished
    words = [cell.text for row in verdict_table(results).rows for cell in row[1:]]
    judged = [text for text in words if text != NO_VALUE.text]
    assert judged
    assert all(text.endswith(" for these 2 seeds") for text in judged)


def test_an_interval_just_below_zero_is_explained(finished):
    _, results = finished
    assert (
        "Not compatible needs a difference below zero at a one-sided 99.2 %, because any of 3 "
        "metrics may be below by chance; an interval that ends just below zero is within noise"
    ) in verdict_table(results).note


def test_negative_flips_are_shown_with_all_three_intervals(finished):
    _, results = finished
    table = next(table for table in all_tables(results) if table.title == "Negative flips")
    cell = next(row for row in table.rows if row[0].text == "unibct-plus")[1]
    rates = [results.flips(table.heads[1], "unibct-plus", rate) for rate in ("nfr", "pfr")]
    assert cell.text == f"{100 * rates[0].values.mean():.2f}"
    assert f"positive {100 * rates[1].values.mean():.2f} (" in cell.small
    assert len(re.findall(r"\d to -?\d", cell.small)) == 3
    assert "nfr" in as_csv(results)


def test_no_flip_rate_is_below_zero():
    rates = {"nfr": 0.02, "pfr": 0.01, "relative_nfr": 0.1}
    samples = np.linspace(-0.2, 0.2, 50) * np.array([[1], [-1]])
    results = SimpleNamespace(
        grid=SimpleNamespace(methods=("lce",)),
        scenarios=["open-class"],
        has_cell=lambda scenario, method: True,
        flips=lambda scenario, method, rate: Measured(np.full(2, rates[rate]), samples, 50),
    )
    cell = flip_table(results).rows[0][1]
    assert cell.text == "2.00"
    assert "positive 1.00 (0.00 to " in cell.small
    assert "relative 0.10 (0.00 to " in cell.small


def test_scenarios_with_a_weak_old_model_are_named_below_the_verdicts(finished):
    _, results = finished
    weak = {"recall_at_1": 0.1, "pixel_recall_at_1": 0.1, "too_weak": True}
    strong = weak | {"too_weak": False}
    by_job = {
        folder: result | {"old_model": weak if folder.startswith("models/old-classes") else strong}
        for folder, result in results.by_job.items()
    }
    changed = replace(results, by_job=by_job)
    assert changed.weak_old_models == {"open-class": [0, 1]}
    sentence = "the old model of open-class (seed 0, 1)."
    assert weak_note(changed).endswith(sentence)
    assert verdict_table(changed).note.endswith(sentence)
    earlier = {
        folder: {key: value for key, value in result.items() if key != "old_model"}
        for folder, result in results.by_job.items()
    }
    assert weak_note(replace(results, by_job=earlier)) is None

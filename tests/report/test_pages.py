import csv
import re
import shlex
from dataclasses import replace

import jinja2
import pytest

from tests.conftest import tags_of_offline_page
from tests.report.made_up import made_up
from tests.report.told_story import told_story
from unibct.benchmark import DEFAULT_METHODS
from unibct.benchmark.grid import make_grid
from unibct.benchmark.results import as_csv
from unibct.data.scenarios import SCENARIOS
from unibct.embeddings.recall import ModelRecall
from unibct.evaluation.search_test import CROSS, DIRECTIONS
from unibct.maps import MAPS
from unibct.methods import METHODS, split_methods
from unibct.report.benchmark_tables import all_tables
from unibct.report.curves import METHOD_COLOURS
from unibct.report.decision_tables import decision_tables
from unibct.report.pages import (
    _about,
    command,
    method_colours,
    render_markdown,
    render_report,
    render_template,
    what_was_run,
    write_benchmark_report,
    write_report,
)
from unibct.report.plain_table import Cell, PlainTable
from unibct.training.recipe import load_recipe


def benchmark_page(**changes):
    table = PlainTable(
        "A <b>title</b>", "A note.", ("method", "top-1"), ((Cell("<i>x</i>"), Cell("+1")),)
    )
    values = {"about": "5 > 4", "tables": [table], "queries": []}
    values |= dict.fromkeys(("curves_note", "pictured_scenario"), "")
    values |= {key: {} for key in ("curves", "matrices", "run", "recipe")}
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


def test_the_report_is_whole_plain_and_made_without_training(benchmark, results, tmp_path):
    write_benchmark_report(results, benchmark, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    opened = tags_of_offline_page(page)
    assert opened.count("svg") == 2 * 2 + 1
    assert opened.count("table") == len(all_tables(results))
    gain = results.gain("open-class", "unibct-plus", "top-1")
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    for text in (page, markdown):
        assert f"{100 * gain.estimate.mean:+.2f}" in text
        assert f"{100 * gain.estimate.low:+.2f} to {100 * gain.estimate.high:+.2f}" in text
        assert "paper 93.46" not in text  # unibct was not run
        assert "92.95" in text  # the paper's old model in open-class
    rows = list(csv.DictReader((tmp_path / "results.csv").open(encoding="utf-8")))
    values = {(r["scenario"], r["method"], r["seed"], r["test"], r["metric"]): r for r in rows}
    cross = results.cross("open-class", "unibct-plus", "top-1").values[1]
    row = values["open-class", "unibct-plus", "1", "new→old", "top-1"]
    assert float(row["value"]) == pytest.approx(cross, abs=1e-6)
    assert as_csv(results) == (tmp_path / "results.csv").read_text(encoding="utf-8")


def test_a_report_without_free_models_lacks_only_what_compares_with_them(
    benchmark, results, tmp_path
):
    by_job = {f: r for f, r in results.by_job.items() if not f.startswith("models/free")}
    grid = replace(results.grid, methods=("unibct-plus",))
    write_benchmark_report(replace(results, grid=grid, by_job=by_job), benchmark, tmp_path)
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    gain = results.gain("open-class", "unibct-plus", "top-1")
    assert f"{100 * gain.estimate.mean:+.2f}" in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| unibct-plus |")]
    assert any(row.endswith("| — | — | — |") for row in rows), "new self − free self"
    assert "× the time of none" not in markdown
    assert "free→free" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    csv_rows = list(csv.DictReader((tmp_path / "results.csv").open(encoding="utf-8")))
    assert {row["method"] for row in csv_rows} == {"old", "unibct-plus"}


def test_the_report_names_the_command_that_makes_it():
    recipe = load_recipe("glyphs", ["eta=1.0", "refresh_epochs=[3, 4]"])
    methods = ["unibct", "unibct@eta=2,warmup_epochs=1", "mlp"]
    grid = make_grid(quick=True, methods=methods, chain=["unibct"], recipe=recipe)
    words = shlex.split(command(grid))[2:]
    options = {}
    for name, value in zip(words[1::2], words[2::2], strict=True):
        options.setdefault(name, []).append(value)
    again = make_grid(
        words[0],
        test=options["--test"][0],
        scenarios=options["--scenarios"][0].split(","),
        methods=split_methods(options["--methods"][0]),
        seeds=[int(seed) for seed in options["--seeds"][0].split(",")],
        chain=options["--chain"][0].split(","),
        recipe=load_recipe(options["--recipe"][0], options["--set"]),
    )
    assert again == grid


def test_the_report_tells_what_has_results_and_who_made_them(results):
    wider = replace(
        results.grid,
        methods=(*results.grid.methods, "unibct", "mlp"),
        scenarios=("extended-data", "open-class", "open-data"),
    )
    by_job = dict(results.by_job)
    folder = "cells/open-class/none/seed1"
    made_by = by_job[folder]["made_by"]
    by_job[folder] = by_job[folder] | {"made_by": made_by | {"torch": "1.0"}}
    changed = replace(results, grid=wider, by_job=by_job)
    text = render_markdown(changed)
    assert "3 methods in 2 scenarios over 2 seeds." in text
    assert not [row for table in all_tables(changed) for row in table.rows if row[0].text == "mlp"]
    assert "Against unibct," not in text
    run = what_was_run(changed)
    assert run["torch"] == f"{made_by['torch']}; 1.0"
    assert run["machine"] == made_by["machine"]


def results_of(methods, has_cell=lambda scenario, method: True):
    return made_up(tuple(methods), (), None, scenarios=tuple(SCENARIOS), wanted=has_cell)


def test_the_report_says_unseen_only_if_it_is_known(results):
    assert {result["seen_classes"]["count"] for result in results.by_job.values()} == {0}
    assert "8 classes that none of them has seen (" in _about(results)
    for count in (None, 3):
        job, result = next(iter(results.by_job.items()))
        doubted = result | {"seen_classes": {"count": count, "note": "it is doubted"}}
        text = _about(replace(results, by_job=results.by_job | {job: doubted}))
        assert "8 classes; it is doubted, and the verdicts are over all of them (" in text
        assert "none of them" not in text


ALL = [*METHODS, *MAPS]
VARIANTS = [f"{name}@warmup_epochs={epochs}" for name in METHODS for epochs in (0, 1)]


def test_no_two_drawn_methods_have_the_same_colour():
    for methods in ([*ALL, *VARIANTS], [*DEFAULT_METHODS, *VARIANTS], ALL):
        results = results_of(methods)
        drawn = [method_colours(results, scenario) for scenario in results.scenarios]
        assert {"unibct", "unibct-plus"} <= drawn[0].keys()
        assert all(len(set(colours.values())) == len(colours) for colours in drawn)
        assert all(colours == drawn[0] for colours in drawn), "the same in all scenarios"


def test_colours_are_distinct_even_if_every_scenario_draws_other_methods():
    def has_cell(scenario, method):
        at = 4 * list(SCENARIOS).index(scenario)
        return method in ("unibct", "unibct-plus", *ALL[at : at + 4])

    results = results_of(ALL, has_cell)
    for scenario in results.scenarios:
        colours = method_colours(results, scenario)
        assert {"unibct", "unibct-plus"} <= colours.keys()
        assert len(set(colours.values())) == len(colours)


def test_few_methods_are_coloured_by_their_place_in_the_grid():
    results = results_of(["none", "unibct", "unibct-plus"], lambda _, method: method != "unibct")
    colours = method_colours(results, "open-class")
    assert (colours["unibct-plus"], colours["unibct"]) == METHOD_COLOURS[:-3:-1]


# The page of the demo.


@pytest.fixture
def result(small_demo):
    return small_demo[0]


def test_the_report_is_whole_and_needs_no_network(result, tmp_path):
    write_report(result, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    opened = tags_of_offline_page(page)
    assert opened.count("svg") == 2
    assert opened.count("table") == 3 + len(decision_tables(result.evaluation))
    assert page.count('class="query"') == 12
    for criterion in result.evaluation.criteria:
        assert f"{100 * criterion.cross:.2f}" in page
        assert f"{100 * criterion.low:+.2f}" in page
    assert result.evaluation.verdict in page
    classes = len(result.plan.test_images.class_names)
    assert f"none of the {classes} test classes was in a model" in page
    assert page == render_report(result), "the same result gives the same page"


def test_a_metric_outside_the_verdict_is_shown_as_such(result):
    page = render_report(result)
    assert 'mAP <span class="soft">not in the verdict</span>' in page
    assert page.count('<span class="soft">not in the verdict</span>') == 3  # two of the open set
    assert f"{100 * result.evaluation.values[CROSS]['mAP']:.2f}" in page


def test_every_test_has_a_row_and_the_cross_test_is_highlighted(result):
    page = render_report(result)
    rows = re.findall(r'<tr( class="main")?><td><span class="dot"[^>]*></span>(\S+)', page)
    tests = result.evaluation.tests
    assert [name for _, name in rows] == [name for name in DIRECTIONS if name in tests]
    assert [name for mark, name in rows if mark] == [CROSS]


def test_a_weak_old_model_is_named_at_the_top(result):
    weak = replace(result, evaluation=replace(result.evaluation, old_model=ModelRecall(0.12, 0.1)))
    page = render_report(weak)
    assert '<span class="badge old-model-too-weak">old model too weak</span></h1>' in page
    assert "too weak to judge an upgrade by: recall@1 12.0 % (raw pixels 10.0 %)" in page


def test_the_gallery_has_a_line_for_each_stage_and_a_curve(small_demo, tmp_path):
    result = replace(small_demo[0], gallery=told_story())
    write_report(result, tmp_path / "report.html")
    picture = (tmp_path / "gallery.svg").read_text(encoding="utf-8")
    assert 'xmlns="http://www.w3.org/2000/svg"' in picture
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    opened = tags_of_offline_page(page)
    assert opened.count("svg") == 3
    for stage in told_story().stages:
        assert f">{stage.title}</td>" in page
    assert "The gallery during the backfill" in page
    without = render_report(replace(result, gallery=None))
    assert "carried out on a gallery" in page
    assert "carried out on a gallery" not in without


def test_a_story_that_ended_early_says_why(result):
    assert result.gallery is not None
    assert "It ends here: the upgrade to" in render_report(result)

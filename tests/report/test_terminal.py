import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.told_story import told_story
from unibct.embeddings.recall import ModelRecall
from unibct.evaluation.criterion import NOT_COMPATIBLE_RULE
from unibct.evaluation.search_test import CROSS
from unibct.report.decision_tables import decision_tables
from unibct.report.terminal import (
    print_benchmark,
    print_counts,
    print_evaluation,
    print_plan,
    print_story,
)


def printed(print_to, *, width=None):
    """What is printed to a pipe, or to a terminal of a width."""
    file = io.StringIO()
    print_to(Console(file=file, width=width, force_terminal=width is not None))
    return file.getvalue()


def require_colours_on_terminals_only(print_to):
    assert "\x1b" not in printed(print_to)
    assert "\x1b[" in printed(print_to, width=120)


def test_a_pipe_gets_an_evaluation_as_plain_text_and_a_terminal_colours(small_demo):
    evaluation = small_demo[0].evaluation
    require_colours_on_terminals_only(lambda console: print_evaluation(evaluation, console))


def test_a_pipe_gets_a_benchmark_as_plain_text_and_a_terminal_colours(results):
    require_colours_on_terminals_only(lambda console: print_benchmark(results, console))


def test_an_evaluation_has_a_row_per_test_and_per_metric(small_demo):
    evaluation = small_demo[0].evaluation
    lines = printed(lambda console: print_evaluation(evaluation, console)).splitlines()
    for test, metrics in evaluation.values.items():
        row = next(line for line in lines if line.startswith(test))
        assert row.split()[-len(metrics) :] == [f"{100 * v:.2f}" for v in metrics.values()]
    for criterion in evaluation.compared:
        row = next(line for line in lines if line.startswith(criterion.metric))
        assert f"{100 * criterion.difference:+.2f}" in row
        assert row.rstrip().endswith(criterion.verdict)
        assert ("(not in the verdict)" in row) != criterion.decides
    assert lines[0].startswith("query → gallery, %")
    assert lines[-1] == f"verdict: {evaluation.verdict}"
    assert any(line.startswith(CROSS) for line in lines)


def test_an_interval_just_below_zero_is_explained_where_there_is_one(small_demo):
    evaluation = small_demo[0].evaluation
    first, *others = evaluation.compared
    for ceiling, explained in ((0.001, True), (-0.001, False)):
        ends = replace(first, low=-0.03, high=-0.01, ceiling=ceiling, classes=50)
        changed = replace(evaluation, compared=(ends, *others))
        text = printed(lambda console, e=changed: print_evaluation(e, console))
        assert (NOT_COMPATIBLE_RULE in text) == explained


def without_old_models(results):
    """The results, without how strong the old models are."""
    return {
        folder: result | {"old_model": None} if "old_model" in result else result
        for folder, result in results.by_job.items()
    }


def test_a_narrow_terminal_wraps_the_heads_and_loses_nothing(results):
    results = replace(results, by_job=without_old_models(results))  # a note names scenarios
    narrow, wide = (
        printed(lambda console: print_benchmark(results, console), width=width)
        for width in (46, 200)
    )
    assert "extended-data" in wide
    assert "extended-data" not in narrow
    assert "extended-" in narrow
    gain = results.gain("open-class", "none", "top-1")
    for text in (narrow, wide):
        assert f"{100 * gain.estimate.mean:+.2f}" in text
        assert "…" not in text
    assert len(narrow.splitlines()) > len(wide.splitlines())


def test_a_benchmark_says_that_test_classes_may_have_been_seen(results):
    job, result = next(iter(results.by_job.items()))
    for seen, said in ({"count": 0, "note": "none"}, False), ({"count": None, "note": "x"}, True):
        changed = replace(results, by_job=results.by_job | {job: result | {"seen_classes": seen}})
        text = printed(lambda console, r=changed: print_benchmark(r, console))
        assert ("\nX.\n" in text) == said


@pytest.mark.parametrize("width", [None, 100])
def test_a_story_has_a_line_for_each_stage(width):
    story = told_story()
    text = printed(lambda console: print_story(story, console), width=width)
    for stage in story.stages:
        assert f"{100 * stage.top_1:.2f}" in text
    assert "…" not in text
    stopped = replace(story, stages=(), stopped="the disk is full [now]")
    assert "It ends here: the disk is full [now]." in printed(lambda c: print_story(stopped, c))


def test_counts_have_separators():
    text = printed(lambda console: print_counts({"old": (1_511_514, 93_431)}, console))
    assert text.split() == ["set", "images", "classes", "old", "1,511,514", "93,431"]


@pytest.mark.parametrize("width", [None, 100])
def test_a_plan_names_every_job_and_its_state(benchmark, width):
    text = printed(lambda console: print_plan(benchmark, console), width=width)
    for job in benchmark.jobs:
        assert job.folder in text
    assert text.count("finished") == len(benchmark.jobs)
    assert f"0 of {len(benchmark.jobs)} jobs to run" in text


def test_a_weak_old_model_is_named_before_the_verdict(small_demo):
    evaluation = replace(small_demo[0].evaluation, old_model=ModelRecall(0.12, 0.1))
    lines = printed(lambda console: print_evaluation(evaluation, console)).splitlines()
    assert any(line.startswith("The old model is too weak to judge an upgrade") for line in lines)
    assert lines[-1] == "verdict: old model too weak"
    single = "on single images, as the rows of a gallery are: "
    assert lines[-2] == single + "old model too weak"
    text = printed(lambda console: print_evaluation(small_demo[0].evaluation, console))
    assert single + small_demo[0].evaluation.single_images_verdict in text


@pytest.mark.parametrize("width", [None, 40, 60, 72, 80, 100])
def test_no_number_of_an_evaluation_is_cut_off(small_demo, width):
    evaluation = small_demo[0].evaluation
    text = printed(lambda console: print_evaluation(evaluation, console), width=width)
    assert "…" not in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    numbers = set(re.findall(r"[-+]?\d+\.\d+", plain))
    for test, metrics in evaluation.values.items():
        assert test in plain
        assert {f"{100 * value:.2f}" for value in metrics.values()} <= numbers
    for criterion in evaluation.compared:
        assert f"{100 * criterion.difference:+.2f}" in numbers
        assert criterion.metric in plain
    for row in evaluation.at_old_threshold:
        shown = {f"{value:.4f}" for value in (row.threshold, row.new_threshold)}
        for accepted in filter(None, (row.old, row.cross, row.mapped, row.scaled)):
            shown |= {f"{100 * accepted.far:.4f}", f"{100 * accepted.tar:.2f}"}
            shown |= {f"{100 * bound:.4f}" for bound in accepted.far_interval}
        assert shown <= numbers


def test_the_tables_of_an_evaluation_are_readable_in_a_pipe(small_demo):
    evaluation = small_demo[0].evaluation
    text = printed(lambda console: print_evaluation(evaluation, console))
    tables = [table for table in decision_tables(evaluation) if "threshold" in table.title.lower()]
    assert len(tables) == 2
    for table in tables:
        lines = text[text.index(f"\n{table.title}\n") :].splitlines()[2 : 3 + len(table.rows)]
        assert lines[0].startswith(table.heads[0])
        assert max(len(line.rstrip()) for line in lines) <= 90

import re
from dataclasses import replace

from tests.conftest import tags_of_offline_page
from tests.report.told_story import told_story
from unibct.embeddings.recall import Strength
from unibct.evaluation.search_test import CROSS, DIRECTIONS
from unibct.report.decision_tables import decision_tables
from unibct.report.demo_page import render_report, write_report


def test_the_report_is_whole_and_needs_no_network(small_demo, tmp_path):
    result, _ = small_demo
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


def test_a_metric_outside_the_verdict_is_shown_as_such(small_demo):
    result, _ = small_demo
    page = render_report(result)
    assert 'mAP <span class="soft">not in the verdict</span>' in page
    assert page.count('<span class="soft">not in the verdict</span>') == 3  # two of the open set
    assert f"{100 * result.evaluation.values[CROSS]['mAP']:.2f}" in page


def test_every_test_has_a_row_and_the_cross_test_is_highlighted(small_demo):
    result, _ = small_demo
    page = render_report(result)
    rows = re.findall(r'<tr( class="main")?><td><span class="dot"[^>]*></span>(\S+)', page)
    assert [name for _, name in rows] == [
        name for name in DIRECTIONS if name in result.evaluation.tests
    ]
    assert [name for mark, name in rows if mark] == [CROSS]


def test_a_weak_old_model_is_named_at_the_top(small_demo):
    result, _ = small_demo
    weak = replace(result, evaluation=replace(result.evaluation, old_model=Strength(0.12, 0.1)))
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


def test_a_story_that_ended_early_says_why(small_demo):
    result, _ = small_demo
    assert result.gallery is not None
    assert "It ends here: the upgrade to" in render_report(result)

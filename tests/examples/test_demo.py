import pytest

from tests.conftest import TINY, tags_of_offline_page
from unibct.errors import UserError
from unibct.examples import demo
from unibct.examples.demo import plan_demo, run_demo
from unibct.report.pages.demo import render_report, write_report
from unibct.training.recipe import load_recipe


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    plan = plan_demo("extended-data", "unibct", seed=0, part="val")
    small = plan.old_images.labels < 12
    tiny = load_recipe("glyphs", TINY)
    plan = demo.DemoPlan(
        plan.scenario,
        plan.method,
        plan.old_images.select(small.nonzero()[0]),
        plan.new_images.select((plan.new_images.labels < 12).nonzero()[0]),
        plan.test_images.select((plan.test_images.labels < 15).nonzero()[0]),
        tiny,
        tiny.updated(seed=1),
    )
    out = tmp_path_factory.mktemp("demo")
    return run_demo(plan, out, device="cpu"), out


def test_the_demo_tests_all_models(result):
    found, out = result
    assert set(found.evaluation.tests) == {
        "old→old",
        "new→old",
        "new→new",
        "free→free",
        "free→old",
    }
    assert found.models["new"].old_fingerprint == found.models["old"].fingerprint
    assert found.models["free"].old_fingerprint is None
    assert sorted(p.name.split("-")[0] for p in (out / "models").iterdir()) == [
        "free",
        "new",
        "old",
    ]


def test_a_second_run_takes_up_what_is_there(result):
    found, out = result
    times = {p: p.stat().st_mtime_ns for p in out.rglob("model.json")}
    again = run_demo(found.plan, out, device="cpu")
    assert {p: p.stat().st_mtime_ns for p in out.rglob("model.json")} == times
    assert again.evaluation.metrics("new→old") == found.evaluation.metrics("new→old")
    run_demo(found.plan, out, fresh=True, device="cpu")
    assert {p: p.stat().st_mtime_ns for p in out.rglob("model.json")} != times


def test_the_report_is_whole_and_needs_no_network(result, tmp_path):
    found, _ = result
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    opened = tags_of_offline_page(page)
    assert opened.count("svg") == 2
    assert opened.count("table") == 2
    assert page.count('class="query"') == 12
    for criterion in found.evaluation.criteria:
        assert f"{100 * criterion.cross:.2f}" in page
        assert f"{100 * criterion.low:+.2f}" in page
    assert found.evaluation.verdict in page
    assert page == render_report(found), "the same result gives the same page"


def test_bad_names_are_refused_before_any_work():
    with pytest.raises(UserError, match="unknown scenario"):
        plan_demo("closed")
    with pytest.raises(UserError, match="unknown method"):
        plan_demo(method="magic")
    with pytest.raises(UserError, match="bct cannot be used here"):
        plan_demo("open-class", "bct")


def test_old_and_new_model_start_from_different_weights():
    plans = [plan_demo(seed=seed) for seed in range(3)]
    seeds = [seed for plan in plans for seed in (plan.old_recipe.seed, plan.new_recipe.seed)]
    assert len(set(seeds)) == 6
    identical = plan_demo("identical-data")
    assert identical.new_recipe.architecture != identical.old_recipe.architecture
    assert identical.old_images.ids == identical.new_images.ids

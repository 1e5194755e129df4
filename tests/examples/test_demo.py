import pytest

from unibct.errors import UserError
from unibct.examples.demo import plan_demo, run_demo


def test_the_demo_tests_all_models(small_demo):
    result, out = small_demo
    assert set(result.evaluation.tests) == {
        "old→old",
        "new→old",
        "old→new",
        "new→new",
        "free→free",
        "free→old",
    }
    assert result.models["new"].old_fingerprint == result.models["old"].fingerprint
    assert result.models["free"].old_fingerprint is None
    assert (result.evaluation.seen.count, result.evaluation.seen.unknown) == (0, None)
    assert sorted(p.name.split("-")[0] for p in (out / "models").iterdir()) == [
        "free",
        "new",
        "old",
    ]


def test_a_second_run_takes_up_what_is_there(small_demo):
    result, out = small_demo
    times = {p: p.stat().st_mtime_ns for p in out.rglob("model.json")}
    again = run_demo(result.plan, out, device="cpu")
    assert {p: p.stat().st_mtime_ns for p in out.rglob("model.json")} == times
    assert again.evaluation.metrics("new→old") == result.evaluation.metrics("new→old")
    run_demo(result.plan, out, fresh=True, device="cpu")
    assert {p: p.stat().st_mtime_ns for p in out.rglob("model.json")} != times


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

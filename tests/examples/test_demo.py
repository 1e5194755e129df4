import pytest

from unibct.errors import UserError
from unibct.examples.demo import plan_demo, run_demo
from unibct.gallery.certificate import read_certificate
from unibct.gallery.gallery import Gallery


def test_the_demo_tests_all_models(small_demo):
    result, out = small_demo
    assert set(result.evaluation.tests) == {
        "old→old",
        "new→old",
        "old→new",
        "new→new",
        "free→free",
        "blend→old",
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


def test_the_gallery_is_of_other_classes_than_the_certificate(small_demo_plan):
    for plan in (small_demo_plan, plan_demo()):
        seen = {*plan.test_images.class_names, *plan.new_images.class_names}
        assert seen.isdisjoint(plan.gallery_images.class_names)


def test_the_gallery_of_the_demo_is_upgraded_or_says_why_not(small_demo):
    result, out = small_demo
    story = result.gallery
    assert story is not None
    assert story.forced == result.evaluation.verdict != "compatible"
    assert story.stages[0].old_rows == 4 * 15
    assert "known queries" in story.stopped, "after three epochs the new model finds nothing"
    certificate = read_certificate(out / "certificate.json")
    assert (certificate.old, certificate.new) == tuple(
        result.models[role].fingerprint for role in ("old", "new")
    )
    assert Gallery(story.folder).status().state.standing.searching == certificate.old


def test_a_second_run_takes_up_what_is_there(small_demo):
    result, out = small_demo
    times = {p: p.stat().st_mtime_ns for p in (out / "models").rglob("model.json")}
    again = run_demo(result.plan, out, device="cpu")
    assert {p: p.stat().st_mtime_ns for p in (out / "models").rglob("model.json")} == times
    assert again.evaluation.metrics("new→old") == result.evaluation.metrics("new→old")
    assert again.gallery == result.gallery
    run_demo(result.plan, out, fresh=True, device="cpu")
    assert {p: p.stat().st_mtime_ns for p in (out / "models").rglob("model.json")} != times


def test_bad_names_are_refused_before_any_work():
    with pytest.raises(UserError, match="unknown scenario"):
        plan_demo("closed")
    with pytest.raises(UserError, match="unknown method"):
        plan_demo(method="magic")
    with pytest.raises(UserError, match="bct cannot be used here"):
        plan_demo("open-class", "bct")
    with pytest.raises(UserError, match="give the seed of the demo with --seed"):
        plan_demo(overrides=["seed=7"])
    with pytest.raises(UserError, match="leaves none of 1 epochs"):
        plan_demo(method="unibct", overrides=["epochs=1"])


def test_old_and_new_model_start_from_different_weights():
    plans = [plan_demo(seed=seed) for seed in range(3)]
    seeds = [seed for plan in plans for seed in (plan.old_recipe.seed, plan.new_recipe.seed)]
    assert len(set(seeds)) == 6
    identical = plan_demo("identical-data")
    assert identical.new_recipe.architecture != identical.old_recipe.architecture
    assert identical.old_images.ids == identical.new_images.ids

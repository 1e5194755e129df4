from dataclasses import replace

import numpy as np
import pytest

from tests.gallery.toys import NEW, OLD, STRANGER, toy_certificate, toy_images
from unibct.embedders import Opener
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.evaluation.certificate import Certificate
from unibct.examples.demo import STAGES, carry_upgrade_out, plan_demo, run_demo, split_images
from unibct.gallery.gallery import Gallery

IMAGES = toy_images(classes=8, per_class=10)


def certificate(new=NEW, **changes):
    old, searching = (Opener().open(model).fingerprint for model in (OLD, new))
    return toy_certificate(old, searching, **changes)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story") / "gallery"
    return carry_upgrade_out(folder, (OLD, NEW), certificate(), IMAGES)


def top_1(query_model, row_model):
    """The same search without a gallery."""
    rows, queries = split_images(IMAGES)
    vectors = [
        np.asarray(embed(Opener().open(model), images).vectors)
        for model, images in ((query_model, queries), (row_model, rows))
    ]
    first = (vectors[0] @ vectors[1].T).argmax(axis=1)
    return float(np.mean(rows.labels[first] == queries.labels))


def test_some_images_of_each_class_are_rows_and_the_others_are_queries():
    rows, queries = split_images(IMAGES)
    assert np.bincount(rows.labels).tolist() == [4] * 8
    assert np.bincount(queries.labels).tolist() == [6] * 8
    assert sorted([*rows.ids, *queries.ids]) == sorted(IMAGES.ids)


def test_each_stage_has_its_rows_and_its_model(story):
    assert [(s.title, s.searching, s.old_rows, s.new_rows) for s in story.stages] == [
        ("before", "old", 32, 0),
        ("upgrade", "new", 32, 0),
        ("backfill 25%", "new", 24, 8),
        ("backfill 50%", "new", 16, 16),
        ("backfill 75%", "new", 8, 24),
        ("backfill 100%", "new", 0, 32),
        ("rollback", "old", 32, 0),
        ("upgrade again, finish", "new", 0, 32),
    ]
    assert len(story.stages) == STAGES
    assert [stage.share for stage in story.curve] == [0, 0.25, 0.5, 0.75, 1]


def test_the_shares_are_those_of_a_plain_search(story):
    stages = {stage.title: stage for stage in story.stages}
    assert stages["before"].top_1 == pytest.approx(top_1(OLD, OLD))
    assert stages["upgrade"].top_1 == pytest.approx(top_1(NEW, OLD))
    assert stages["backfill 100%"].top_1 == pytest.approx(top_1(NEW, NEW))


def test_names_are_counted_at_a_threshold_and_the_rollback_restores_all(story):
    assert story.far == 0.01
    assert all(stage.named.queries == 48 for stage in story.stages)
    assert any(stage.named.lost for stage in story.stages)
    assert story.stages[0].named == story.stages[-2].named
    assert story.restored is True
    assert (story.forced, story.stopped) == ("", "")


@pytest.mark.slow
def test_it_can_be_told_again_in_the_same_folder(story):
    assert carry_upgrade_out(story.folder, (OLD, NEW), certificate(), IMAGES) == story


@pytest.mark.slow
def test_another_verdict_is_forced_and_said(tmp_path, story):
    told = carry_upgrade_out(
        tmp_path / "G", (OLD, NEW), certificate(verdict="within noise"), IMAGES
    )
    assert told == replace(story, folder=tmp_path / "G", forced="within noise")


def test_a_model_that_finds_nothing_ends_the_story(tmp_path):
    given = certificate(STRANGER, verdict="not compatible")
    told = carry_upgrade_out(tmp_path / "G", (OLD, STRANGER), given, IMAGES)
    assert [stage.title for stage in told.stages] == ["before"]
    assert "known queries no longer find their mates" in told.stopped
    assert told.restored is None
    assert told.curve == ()


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
    certificate = Certificate.read(out / "certificate.json")
    assert (certificate.old, certificate.new) == tuple(
        result.models[role].fingerprint for role in ("old", "new")
    )
    assert Gallery(story.folder).status().state.standing.searching == certificate.old


def test_a_second_run_takes_up_what_is_there(small_demo):
    result, out = small_demo
    times = {p: p.stat().st_mtime_ns for p in (out / "models").rglob("model.json")}
    again = run_demo(result.plan, out, device="cpu")
    assert {p: p.stat().st_mtime_ns for p in (out / "models").rglob("model.json")} == times
    assert again.evaluation.values["new→old"] == result.evaluation.values["new→old"]
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
    with pytest.raises(UserError, match="give the seed of the demo as seed"):
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

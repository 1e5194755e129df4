import numpy as np
import pytest

from tests.gallery.toys import NEW, toy_certificate, toy_images, written
from tests.notes import Notes, show
from unibct.embedders import Opening
from unibct.errors import UserError

QUERIES = toy_images(per_class=1, first=50)


def test_a_rate_that_no_certificate_has_is_refused_before_queries_are_embedded(
    upgraded, monkeypatch
):
    monkeypatch.setattr("unibct.gallery.search.make_queries", pytest.fail)
    with pytest.raises(UserError, match="1e-07"):
        upgraded.search(QUERIES, far=1e-7)


def test_the_far_threshold_is_that_of_each_kind_of_row(upgraded):
    upgraded.add(toy_images(per_class=4, first=20))
    new = upgraded.folder.state.standing.searching
    all_hits = [answer.hits for answer in upgraded.search(QUERIES, k=72)]
    some = [answer.hits for answer in upgraded.search(QUERIES, k=72, far=0.01)]
    for everything, passed in zip(all_hits, some, strict=True):
        expected = [
            hit for hit in everything if hit.similarity > (0.9 if hit.model == new else 0.8)
        ]
        assert passed == expected
    with pytest.raises(UserError, match="no threshold for the false accept rate"):
        upgraded.search(QUERIES, far=1e-7)


def test_without_a_certificate_there_is_no_threshold(toy_gallery):
    with pytest.raises(UserError, match="--far needs one"):
        toy_gallery.search(QUERIES, far=0.01)


def test_old_scores_are_on_the_scale_of_the_old_model(upgraded):
    upgraded.add(toy_images(per_class=4, first=20))
    new = upgraded.folder.state.standing.searching
    plain = upgraded.search(QUERIES, k=72)
    for answer, same in zip(plain, upgraded.search(QUERIES, k=72, old_scores=True), strict=True):
        assert [hit.id for hit in same.hits] == [hit.id for hit in answer.hits]
        for hit in same.hits:
            knots = [-1.0, 0.1 if hit.model == new else 0.2, 1.0]
            expected = np.interp(hit.similarity, [-1, 0, 1], knots)
            assert hit.score == pytest.approx(float(expected), abs=1e-6)


def test_a_threshold_above_what_the_score_map_has_seen_is_called_a_guess(upgraded, monkeypatch):
    notes = Notes()
    show(notes)
    for scale in ({"old_scores": True}, {}):  # the last knot is at 1.0
        upgraded.search(QUERIES, threshold=1.0, **scale)
    upgraded.search(QUERIES, threshold=1.1)
    assert notes.texts == []
    upgraded.search(QUERIES, threshold=1.1, old_scores=True)
    assert [text.partition(",")[0] for text in notes.texts] == ["the threshold 1.1 is above 1"]


def test_a_rate_that_the_test_classes_could_not_measure_is_called_rough(
    toy_gallery, monkeypatch, tmp_path
):
    old = toy_gallery.folder.state.standing.searching
    paper = toy_certificate(old, Opening().open(NEW).fingerprint, carried_fars=["0.1"])
    assert paper.rough_fars == (0.01,)
    toy_gallery.upgrade(NEW, [written(paper, tmp_path)])
    notes = Notes()
    show(notes)
    toy_gallery.search(QUERIES, far=0.1)
    assert notes.texts == []
    toy_gallery.search(QUERIES, far=0.01)
    assert notes.texts[0].startswith("the threshold for the false accept rate 0.01 is rough: ")


def test_old_scores_of_the_old_model_itself_are_its_plain_scores(upgraded):
    upgraded.rollback()
    plain, same = (upgraded.search(QUERIES, k=9, old_scores=given) for given in (False, True))
    assert [a.hits for a in same] == [a.hits for a in plain]


def test_old_scores_need_a_certificate(toy_gallery):
    toy_gallery.upgrade(NEW, force=True)
    with pytest.raises(UserError, match="no certificate says how scores"):
        toy_gallery.search(QUERIES, old_scores=True)


def test_old_scores_of_old_queries_are_plain_in_a_mixed_gallery_too(toy_gallery, tmp_path):
    old = toy_gallery.folder.state.standing.searching
    new = Opening().open(NEW).fingerprint
    line = {"choice": {"kind": "standardised", "slope": 2.0, "shift": -0.5}}
    paper = toy_certificate(old, new, further_calibrations={"old→old": line, "blend→old": line})
    toy_gallery.upgrade(NEW, [written(paper, tmp_path)])
    toy_gallery.add(toy_images(per_class=1, first=20))
    for answer in toy_gallery.search(QUERIES, k=54, old_scores=True, encoders="two"):
        older = [hit for hit in answer.hits if hit.row == "older"]
        assert len(older) == 48
        assert all(hit.score == hit.similarity for hit in older)


def test_old_scores_on_the_scales_of_two_old_models_are_refused(upgraded_twice):
    for encoders in ("new", "two"):
        with pytest.raises(UserError, match=r"several old models, .*old_model, .*new_model, each"):
            upgraded_twice.search(QUERIES, old_scores=True, encoders=encoders)
    first = upgraded_twice.backfill(toy_images(per_class=1, first=20))
    assert len(upgraded_twice.search(QUERIES, old_scores=True)) == 6
    upgraded_twice.rollback(to=first.step)
    upgraded_twice.backfill(
        toy_images()
    )  # the other ones: only rows of the newer old model are left
    assert len(upgraded_twice.search(QUERIES, old_scores=True)) == 6


def test_a_blend_is_the_one_that_the_certificate_has_tested(upgraded):
    def hits(**request):
        return [a.hits for a in upgraded.search(QUERIES, k=9, encoders="blend", **request)]

    assert hits() == hits(alpha=0.6) != hits(alpha=0.5)
    assert hits(far=0.1) == hits(far=0.1, alpha=0.6)
    for scale in ({"far": 0.1}, {"old_scores": True}):
        with pytest.raises(UserError, match=r"blends with alpha 0\.6, not 0\.5: leave alpha out"):
            hits(alpha=0.5, **scale)


def test_without_a_certificate_a_blend_is_half_of_each(toy_gallery):
    toy_gallery.upgrade(NEW, force=True)
    default, half = (
        [answer.hits for answer in toy_gallery.search(QUERIES, k=9, encoders="blend", **alpha)]
        for alpha in ({}, {"alpha": 0.5})
    )
    assert default == half

import numpy as np
import pytest

from tests.gallery.conftest import fitted_map, killed
from tests.gallery.toys import (
    NEW,
    NEWEST,
    OLD,
    PauseAfterABatch,
    skipping,
    toy_certificate,
    toy_images,
    with_bad,
    written,
)
from tests.notes import Notes, show
from unibct import progress
from unibct.embedders import Opener
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.gallery.backfill import backfill_hits, vectors_again
from unibct.gallery.gallery import Gallery
from unibct.gallery.rollback import stopped_target, unsearchable_rows
from unibct.gallery.sources import open_source
from unibct.gallery.state import ROLLBACK

BAD = ("c0/0", "c3/2")
LATER = toy_images(per_class=1, first=30)
ENCODED = pytest.mark.parametrize("encoded", [False, True])


def live(gallery):
    return list(gallery.status().live.values())


def noting(gallery):
    show(notes := Notes())
    return Gallery(gallery.folder.path), notes


def test_readable_rows_come_with_the_vectors_of_their_images():
    model = Opener().open(NEW)
    images = toy_images(classes=1, per_class=4)
    stored = {row_id: {} for row_id in images.ids}
    source = open_source(skipping(with_bad(images, "c0/0", "c0/2")))
    made, vectors = vectors_again(source, stored, model)
    assert made.ids == ("c0/1", "c0/3")
    whole = embed(model, images).vectors
    assert vectors == pytest.approx(whole[[1, 3]], abs=1e-6)
    nothing = open_source(skipping(with_bad(images, *images.ids)))
    made, vectors = vectors_again(nothing, stored, model)
    assert (len(made), vectors.shape) == (0, (0, 12))


@ENCODED
def test_a_backfill_leaves_rows_with_unreadable_images_as_they_are(upgraded, encoded):
    images = with_bad(toy_images(), *BAD, encoded=encoded)
    with pytest.raises(UserError, match="skip_bad"):
        upgraded.backfill(images)
    gallery, notes = noting(upgraded)
    result = gallery.backfill(skipping(images))
    assert (result.rows, result.skipped, result.missing) == (46, 2, 0)
    assert live(gallery) == [2, 46]
    assert ["c0/0" in text and "c3/2" in text for text in notes.texts] == [True]
    assert notes.texts[0].startswith("left out 2 unreadable images of toys: ")
    assert gallery.backfill(toy_images()).rows == 2, "a later backfill tries them again"
    assert live(gallery) == [0, 48]
    assert gallery.verify() == []


def test_a_file_that_was_damaged_later_is_unreadable_and_not_another_image(tmp_path):
    gallery = Gallery.create(tmp_path / "G", OLD)
    gallery.add(with_bad(toy_images(), encoded=True))
    gallery.upgrade(NEW, force=True)
    damaged = with_bad(toy_images(), *BAD, encoded=True)
    for step in (gallery.add, gallery.backfill):
        with pytest.raises(UserError, match=r"cannot be read \(broken\).*skip_bad"):
            step(damaged)
    added = gallery.add(skipping(damaged))
    assert (added.added, added.present, added.skipped) == (0, 46, 2)
    assert gallery.backfill(skipping(damaged)).rows == 46
    assert live(gallery) == [2, 46]


def test_in_place_of_an_unreadable_image_the_next_one_helps_to_reach_the_share(
    upgraded, monkeypatch
):
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 5)
    images = toy_images()
    bad = images.ids[::2]
    result = upgraded.backfill(skipping(with_bad(images, *bad)), share=0.25)
    assert (result.rows, result.paused) == (12, False)
    assert live(upgraded) == [36, 12]
    assert upgraded.folder.state.open_backfill is None


def test_a_backfill_that_writes_nothing_leaves_no_step(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    steps = upgraded.folder.state.steps
    result = upgraded.backfill(skipping(with_bad(toy_images(), *toy_images().ids)))
    assert (result.step, result.rows, result.skipped, result.total) == (0, 0, 24, 48)
    assert upgraded.folder.state.steps == steps
    with pytest.raises(UserError, match="is another image"):
        upgraded.backfill(toy_images(seed=1))
    assert upgraded.folder.state.steps == steps
    upgraded.abort()
    assert live(upgraded) == [48, 0], "the backfill that has written rows is the last one"
    assert upgraded.verify() == []


@ENCODED
def test_a_lazy_search_leaves_hits_with_unreadable_images_as_they_are(upgraded, encoded):
    queries = toy_images(per_class=1, first=50)
    found = {hit.id for answer in upgraded.search(queries, k=2) for hit in answer.hits}
    bad = sorted(found)[:2]
    images = with_bad(toy_images(), *bad, encoded=encoded)
    with pytest.raises(UserError, match="skip_bad"):
        upgraded.search(queries, k=2, row_images=images)
    gallery, notes = noting(upgraded)
    answers = gallery.search(queries, k=2, row_images=skipping(images))
    assert live(gallery) == [48 - len(found) + 2, len(found) - 2]
    assert len(answers) == 6
    assert all(row_id in notes.texts[-1] for row_id in bad)
    steps = gallery.folder.state.steps
    nothing = skipping(with_bad(toy_images(), *toy_images().ids))
    gallery.search(queries, k=2, row_images=nothing)
    assert gallery.folder.state.steps == steps


@ENCODED
def test_a_rollback_keeps_rows_that_it_cannot_make_from_unreadable_images(upgraded, encoded):
    whole = with_bad(LATER, encoded=encoded)
    upgraded.add(whole)
    images = with_bad(LATER, "c0/30", "c4/30", encoded=encoded)
    steps = upgraded.folder.state.steps
    with pytest.raises(UserError, match="skip_bad"):
        upgraded.rollback(data=images)
    with pytest.raises(UserError, match="not one of its 6 images can be read"):
        upgraded.rollback(data=skipping(with_bad(LATER, *LATER.ids, encoded=encoded)))
    assert upgraded.folder.state.steps == steps
    gallery, notes = noting(upgraded)
    result = gallery.rollback(data=skipping(images))
    assert (result.restored, result.unsearchable, result.skipped) == (4, 2, 2)
    assert result.first_unsearchable == "c0/30"
    assert "left out 2 unreadable images of toys: c0/30, c4/30" in notes.texts
    assert live(gallery) == [52, 2]
    assert unsearchable_rows(gallery.folder) == ["c0/30", "c4/30"]
    assert gallery.add(whole).added == 2, "the repaired images bring them back"
    assert live(gallery) == [54, 0]
    assert gallery.verify() == []


def test_images_of_other_rows_are_not_taken_in_silence(upgraded):
    upgraded.add(LATER)
    gallery, notes = noting(upgraded)
    others = toy_images(per_class=1, first=500)
    before = gallery.status()
    with pytest.raises(UserError, match=rf"has none of the {len(LATER)} rows .*first 'c0/30'"):
        gallery.rollback(data=others)
    assert gallery.status() == before
    gallery.search(toy_images(per_class=1), k=3, row_images=others)
    assert notes.texts[-1].startswith(f"no hit was embedded again: {others.name} has none of the")
    assert gallery.status().live == before.live


def test_a_stopped_rollback_ends_if_the_images_that_are_left_are_unreadable(upgraded, monkeypatch):
    upgraded.add(LATER)
    monkeypatch.setattr("unibct.gallery.rollback._BATCH", 4)
    with killed(upgraded.folder.engine, after=1):
        upgraded.rollback(data=LATER)
    assert stopped_target(upgraded.folder.state, images=True) is not None
    result = upgraded.rollback(data=skipping(with_bad(LATER, *LATER.ids)))
    assert (result.restored, result.unsearchable, result.skipped) == (4, 2, 2)
    assert stopped_target(upgraded.folder.state, images=True) is None
    assert upgraded.verify() == []


def test_after_finish_a_rollback_with_unreadable_images_loses_no_row(upgraded):
    upgraded.backfill(toy_images())
    upgraded.finish()
    result = upgraded.rollback(data=skipping(with_bad(toy_images(), *BAD)))
    assert (result.restored, result.skipped) == (46, 2)
    assert live(upgraded) == [46, 2]
    assert upgraded.add(toy_images()).added == 2
    assert live(upgraded) == [48, 0]
    assert upgraded.verify() == []


def test_known_queries_of_your_own_with_unreadable_images_are_left_out(tmp_path):
    known = with_bad(toy_images(per_class=1, first=60), "c2/60", "c5/60")
    with pytest.raises(UserError, match=r"c2/60 cannot be read .*skip_bad"):
        Gallery.create(tmp_path / "G", OLD, known=known)
    show(notes := Notes())
    gallery = Gallery.create(tmp_path / "G", OLD, known=skipping(known))
    assert gallery.status().known == 4
    assert notes.texts == ["left out 2 unreadable images of toys: c2/60, c5/60"]
    gallery.add(toy_images())
    assert gallery.status().known == 4, "no rows take the place of those that were left out"
    nothing = skipping(with_bad(known, *known.ids))
    with pytest.raises(UserError, match="not one of its 6 images can be read"):
        Gallery.create(tmp_path / "H", OLD, known=nothing)
    assert not (tmp_path / "H").exists()


def test_named_rows_only(upgraded):
    result = upgraded.backfill(toy_images(), ids=["c0/0", "c5/7"])
    assert (result.rows, live(upgraded)) == (2, [46, 2])
    with pytest.raises(UserError, match="'nobody' is no row"):
        upgraded.backfill(toy_images(), ids=["nobody"])


def test_rows_without_an_image_are_named_unless_the_share_is_reached_without_them(upgraded):
    result = upgraded.backfill(toy_images(classes=4), share=0.25)
    assert (result.rows, result.missing, result.first_missing) == (12, 0, "")
    upgraded.abort()
    result = upgraded.backfill(toy_images(classes=2))
    assert (result.rows, result.missing, result.first_missing) == (16, 32, "c2/0")
    with pytest.raises(UserError, match="none of the 32 rows"):
        upgraded.backfill(toy_images(per_class=1, first=90))


@pytest.mark.parametrize("bad", [(), BAD])
def test_other_images_under_the_same_ids_are_refused(upgraded, bad):
    """Also where unreadable ones are left out."""
    others = with_bad(toy_images(seed=1), *bad)
    with pytest.raises(UserError, match="is another image"):
        upgraded.backfill(skipping(others) if bad else others)
    assert live(upgraded) == [48, 0]


def test_embeddings_by_the_searching_model_serve_as_well(upgraded):
    opener = Opener()
    with pytest.raises(UserError, match=r"need embeddings by .*new_model"):
        upgraded.backfill(embed(opener.open(OLD), toy_images()))
    upgraded.backfill(embed(opener.open(NEW), toy_images()))
    assert live(upgraded) == [0, 48]


@pytest.mark.parametrize("factor", [3, np.nan])
def test_vectors_that_no_search_finds_are_refused(upgraded, factor):
    rows = embed(Opener().open(NEW), toy_images())
    bad = rows.changed(vectors=np.asarray(rows.vectors) * factor, fingerprint=rows.fingerprint)
    with pytest.raises(UserError, match=r"the vector of .* nothing of this batch was written"):
        upgraded.backfill(bad)
    assert live(upgraded) == [48, 0]


def test_the_curve_of_known_queries_is_noted(upgraded, monkeypatch):
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 12)
    curve = upgraded.backfill(toy_images()).curve
    assert [share for share, _ in curve] == [0, 0.25, 0.5, 0.75, 1]
    assert all(found == 1 for _, found in curve)
    assert upgraded.status().as_json()["steps"][-1]["curve"]


def test_a_backfill_after_which_nothing_is_found_is_undone(upgraded):
    rows = embed(Opener().open(NEW), toy_images())
    backwards = rows.changed(vectors=-np.asarray(rows.vectors), fingerprint=rows.fingerprint)
    with pytest.raises(UserError, match="the backfill was undone"):
        upgraded.backfill(backwards)
    assert live(upgraded) == [48, 0]
    assert upgraded.verify() == []


def test_without_images_a_forward_map_makes_a_third_kind_of_row(upgraded, forward_map):
    result = upgraded.backfill(map_folder=forward_map)
    assert (result.rows, result.rows_in_space) == (48, 48)
    printed = result.as_json()
    keys = "step rows own total missing first_missing skipped paused curve share"
    assert (list(printed), printed["own"]) == (keys.split(), 48)
    status = upgraded.status().as_json()
    assert list(status["models"].values()) == [0, 0, 48]
    assert list(status["row_types"].values()) == ["older", "own", "mapped"]
    hits = upgraded.search(toy_images(per_class=1, first=50), k=3)[0].hits
    assert {hit.row for hit in hits} == {"mapped"}
    assert upgraded.backfill(toy_images(), share=0.5).rows == 24, "images are better than a map"
    assert live(upgraded) == [0, 24, 24]
    upgraded.abort()
    assert live(upgraded) == [0, 0, 48]
    upgraded.rollback()
    assert live(upgraded) == [48, 0, 0]
    assert upgraded.verify() == []


def test_the_share_of_a_map_counts_rows_that_other_models_made(upgraded_twice, tmp_path):
    forward = fitted_map(OLD, NEWEST, tmp_path / "newest")
    assert live(upgraded_twice) == [48, 6, 0]
    half = upgraded_twice.backfill(map_folder=forward, share=0.5)
    assert (half.rows, half.rows_in_space, half.total) == (27, 27, 54)
    assert upgraded_twice.backfill(map_folder=forward, share=0.5).rows == 0
    assert upgraded_twice.backfill(map_folder=forward).rows == 21
    assert upgraded_twice.backfill(toy_images(per_class=30), share=0.5).rows == 27


def test_a_map_of_rows_that_the_gallery_does_not_have_is_refused(toy_gallery, tmp_path):
    old, newest = (Opener().open(name).fingerprint for name in (OLD, NEWEST))
    toy_gallery.upgrade(NEWEST, [written(toy_certificate(old, newest), tmp_path)])
    with pytest.raises(UserError, match=rf"maps rows of model .* this gallery has none.*{old}"):
        toy_gallery.backfill(map_folder=fitted_map(NEW, NEWEST, tmp_path / "newest"))


def test_a_map_into_another_space_is_refused(toy_gallery, forward_map):
    with pytest.raises(UserError, match="does not lead into the space"):
        toy_gallery.backfill(map_folder=forward_map)


def test_a_share_lies_between_0_and_1(upgraded):
    for share in (0, -1, 1.5):
        with pytest.raises(UserError, match="share"):
            upgraded.backfill(toy_images(), share=share)
    with pytest.raises(UserError, match="a share has no effect on named rows"):
        upgraded.backfill(toy_images(), share=0.5, ids=["c0/0"])
    with pytest.raises(UserError, match="images of the rows, or a map"):
        upgraded.backfill()


def hits(gallery):
    return [answer.hits for answer in gallery.search(toy_images(per_class=1, first=50), k=2)]


def test_only_found_rows_with_images_are_embedded_again(upgraded):
    own = upgraded.folder.state.standing.searching
    found = hits(upgraded)
    ids = {hit.id for row in found for hit in row}
    some = toy_images(classes=3)
    made = backfill_hits(upgraded.folder, own, found, open_source(some))
    assert made == len(ids & set(some.ids))
    assert set(next(upgraded.folder.engine.scan(own)).ids) == ids & set(some.ids)
    others = open_source(toy_images(per_class=1, first=90))
    assert backfill_hits(upgraded.folder, own, hits(upgraded), others) == 0


def lazily(gallery):
    gallery.search(toy_images(per_class=1, first=50), k=2, row_images=toy_images())
    return live(gallery)


def test_searches_and_the_backfill_after_them_are_undone_one_by_one(upgraded):
    assert lazily(upgraded)[1] > 0
    number = upgraded.folder.state.unfinished.number
    by_searches = lazily(upgraded)
    assert upgraded.folder.state.unfinished.number == number, "searches share a step"
    assert upgraded.status().as_json()["backfill"] is None
    with pytest.raises(UserError, match=r"no backfill of .* is under way"):
        upgraded.pause()
    upgraded.backfill(toy_images(), share=0.5)
    for rows in (by_searches, [48, 0]):
        upgraded.abort()
        assert live(upgraded) == rows
    assert upgraded.verify() == []


def test_while_a_backfill_is_paused_searches_belong_to_it(upgraded, monkeypatch):
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 6)
    with progress.shown(PauseAfterABatch(upgraded.folder)):
        assert upgraded.backfill(toy_images()).paused
    number = upgraded.folder.state.open_backfill.number
    lazily(upgraded)
    assert upgraded.folder.state.open_backfill.number == number
    upgraded.backfill(toy_images())
    upgraded.abort()
    assert live(upgraded) == [48, 0]


def test_while_another_process_writes_the_search_goes_on(upgraded):
    other = Gallery(upgraded.folder.path)
    with upgraded.folder.writing():
        searching = other.folder.state.standing.searching
        assert backfill_hits(other.folder, searching, hits(other), open_source(toy_images())) == 0


def test_after_a_killed_rollback_no_row_is_embedded_by_the_model_that_no_longer_searches(upgraded):
    upgraded.folder.save(upgraded.folder.state.begun(ROLLBACK, to=3))
    queries = toy_images(per_class=1, first=50)
    upgraded.search(queries, k=2, row_images=toy_images())
    assert upgraded.folder.state.searching.name.endswith("old_model")
    assert len(upgraded.search(queries, k=100)[0].hits) == 48

import pytest

from tests.gallery.toys import NEW, OLD, toy_images, with_bad
from tests.notes import Notes
from unibct.embedders.table import Opening
from unibct.embeddings.extraction import embed_images
from unibct.errors import UserError
from unibct.gallery.gallery import Gallery
from unibct.gallery.remaking import vectors_again
from unibct.gallery.rollback import stopped_target, unsearchable_rows
from unibct.gallery.sources import open_source

BAD = ("c0/0", "c3/2")
LATER = toy_images(per_class=1, first=30)
ENCODED = pytest.mark.parametrize("encoded", [False, True])


def live(gallery):
    return list(gallery.status().live.values())


def noting(gallery):
    notes = Notes()
    return Gallery(gallery.folder.path, progress=notes), notes


def test_readable_rows_come_with_the_vectors_of_their_images():
    model = Opening().open(NEW)
    images = toy_images(classes=1, per_class=4)
    stored = {row_id: {} for row_id in images.ids}
    source = open_source(with_bad(images, "c0/0", "c0/2"))
    made, vectors = vectors_again(source, stored, model, skip_bad=True)
    assert made.ids == ("c0/1", "c0/3")
    whole = embed_images(model, images).vectors
    assert vectors == pytest.approx(whole[[1, 3]], abs=1e-6)
    nothing = open_source(with_bad(images, *images.ids))
    made, vectors = vectors_again(nothing, stored, model, skip_bad=True)
    assert (len(made), vectors.shape) == (0, (0, 12))


@ENCODED
def test_a_backfill_leaves_rows_with_unreadable_images_as_they_are(upgraded, encoded):
    images = with_bad(toy_images(), *BAD, encoded=encoded)
    with pytest.raises(UserError, match="--skip-bad-images"):
        upgraded.backfill(images)
    gallery, notes = noting(upgraded)
    result = gallery.backfill(images, skip_bad=True)
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
        with pytest.raises(UserError, match=r"cannot be read \(broken\).*--skip-bad-images"):
            step(damaged)
    added = gallery.add(damaged, skip_bad=True)
    assert (added.added, added.present, added.skipped) == (0, 46, 2)
    assert gallery.backfill(damaged, skip_bad=True).rows == 46
    assert live(gallery) == [2, 46]


def test_other_images_are_refused_also_where_unreadable_ones_are_left_out(upgraded):
    with pytest.raises(UserError, match="is another image"):
        upgraded.backfill(with_bad(toy_images(seed=1), *BAD), skip_bad=True)
    assert live(upgraded) == [48, 0]


def test_in_place_of_an_unreadable_image_the_next_one_helps_to_reach_the_share(
    upgraded, monkeypatch
):
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 5)
    images = toy_images()
    bad = images.ids[::2]
    result = upgraded.backfill(with_bad(images, *bad), share=0.25, skip_bad=True)
    assert (result.rows, result.paused) == (12, False)
    assert live(upgraded) == [36, 12]
    assert upgraded.folder.state.open_backfill is None


def test_a_backfill_that_writes_nothing_leaves_no_step(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    steps = upgraded.folder.state.steps
    result = upgraded.backfill(with_bad(toy_images(), *toy_images().ids), skip_bad=True)
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
    with pytest.raises(UserError, match="--skip-bad-images"):
        upgraded.search(queries, k=2, lazy_images=images)
    gallery, notes = noting(upgraded)
    answers = gallery.search(queries, k=2, lazy_images=images, skip_bad=True)
    assert live(gallery) == [48 - len(found) + 2, len(found) - 2]
    assert len(answers) == 6
    assert all(row_id in notes.texts[-1] for row_id in bad)
    steps = gallery.folder.state.steps
    gallery.search(
        queries, k=2, lazy_images=with_bad(toy_images(), *toy_images().ids), skip_bad=True
    )
    assert gallery.folder.state.steps == steps


@ENCODED
def test_a_rollback_keeps_rows_that_it_cannot_make_from_unreadable_images(upgraded, encoded):
    whole = with_bad(LATER, encoded=encoded)
    upgraded.add(whole)
    images = with_bad(LATER, "c0/30", "c4/30", encoded=encoded)
    steps = upgraded.folder.state.steps
    with pytest.raises(UserError, match="--skip-bad-images"):
        upgraded.rollback(data=images)
    with pytest.raises(UserError, match="not one of its 6 images can be read"):
        upgraded.rollback(data=with_bad(LATER, *LATER.ids, encoded=encoded), skip_bad=True)
    assert upgraded.folder.state.steps == steps
    gallery, notes = noting(upgraded)
    result = gallery.rollback(data=images, skip_bad=True)
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
    gallery.search(toy_images(per_class=1), k=3, lazy_images=others)
    assert notes.texts[-1].startswith(f"no hit was embedded again: {others.name} has none of the")
    assert gallery.status().live == before.live


def test_a_stopped_rollback_ends_if_the_images_that_are_left_are_unreadable(upgraded, monkeypatch):
    upgraded.add(LATER)
    monkeypatch.setattr("unibct.gallery.rollback._BATCH", 4)
    engine = upgraded.folder.engine
    write, calls = engine.write, []

    def stopped(*arguments, **options):
        if calls:
            raise KeyboardInterrupt
        calls.append(arguments)
        write(*arguments, **options)

    monkeypatch.setattr(engine, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        upgraded.rollback(data=LATER)
    monkeypatch.setattr(engine, "write", write)
    assert stopped_target(upgraded.folder.state, images=True) is not None
    result = upgraded.rollback(data=with_bad(LATER, *LATER.ids), skip_bad=True)
    assert (result.restored, result.unsearchable, result.skipped) == (4, 2, 2)
    assert stopped_target(upgraded.folder.state, images=True) is None
    assert upgraded.verify() == []


def test_after_finish_a_rollback_with_unreadable_images_loses_no_row(upgraded):
    upgraded.backfill(toy_images())
    upgraded.finish()
    result = upgraded.rollback(data=with_bad(toy_images(), *BAD), skip_bad=True)
    assert (result.restored, result.skipped) == (46, 2)
    assert live(upgraded) == [46, 2]
    assert upgraded.add(toy_images()).added == 2
    assert live(upgraded) == [48, 0]
    assert upgraded.verify() == []


def test_known_queries_of_your_own_with_unreadable_images_are_left_out(tmp_path):
    known = with_bad(toy_images(per_class=1, first=60), "c2/60", "c5/60")
    with pytest.raises(UserError, match=r"c2/60 cannot be read .*--skip-bad-images"):
        Gallery.create(tmp_path / "G", OLD, known=known)
    notes = Notes()
    gallery = Gallery.create(tmp_path / "G", OLD, known=known, skip_bad=True, progress=notes)
    assert gallery.status().known == 4
    assert notes.texts == ["left out 2 unreadable images of toys: c2/60, c5/60"]
    gallery.add(toy_images())
    assert gallery.status().known == 4, "no rows take the place of those that were left out"
    nothing = with_bad(known, *known.ids)
    with pytest.raises(UserError, match="not one of its 6 images can be read"):
        Gallery.create(tmp_path / "H", OLD, known=nothing, skip_bad=True)
    assert not (tmp_path / "H").exists()

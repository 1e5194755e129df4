from dataclasses import replace

import numpy as np
import pytest

from tests.gallery.conftest import broken, killed
from tests.gallery.toys import NEW, NEWEST, OLD, toy_images
from tests.notes import Notes, show
from unibct.embedders import Opener
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.gallery import steps
from unibct.gallery.gallery import Gallery
from unibct.gallery.rollback import rollback_target, stopped_target, unsearchable_rows


def test_any_upgrade_or_backfill_can_be_the_target(upgraded):
    upgraded.backfill(toy_images(), share=0.25)
    upgraded.backfill(toy_images(), share=0.5)
    with pytest.raises(UserError, match=r"choose one of: 3 \(upgrade\), 4 \(backfill\), 5"):
        upgraded.rollback(2)
    upgraded.rollback(5)
    assert list(upgraded.status().live.values()) == [36, 12]
    upgraded.rollback(4)
    assert list(upgraded.status().live.values()) == [48, 0]
    upgraded.rollback(3)
    assert upgraded.folder.state.searching.name.endswith("old_model")
    with pytest.raises(UserError, match="no upgrade and no backfill"):
        upgraded.rollback()


def test_the_newest_rows_are_unsearchable_until_they_are_restored(upgraded):
    upgraded.add(toy_images(per_class=1, first=30))
    upgraded.rollback()
    assert len(unsearchable_rows(upgraded.folder)) == 6
    assert upgraded.add(toy_images(per_class=1, first=30)).added == 6
    assert unsearchable_rows(upgraded.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("again", ["rollback", "add"])
def test_a_row_that_the_earlier_model_makes_again_is_no_second_row(upgraded, again):
    later = toy_images(per_class=1, first=30)
    upgraded.add(later)
    if again == "rollback":
        assert upgraded.rollback(data=later).restored == 6
    else:
        upgraded.rollback()
        assert upgraded.add(later).added == 6
    assert sum(upgraded.status().live.values()) == 54
    upgraded.upgrade(NEW, force=True)
    assert sum(upgraded.status().live.values()) == 54
    images = toy_images()
    ids = [*images.ids, *later.ids]
    for answer in upgraded.search(images, k=60):
        assert sorted(hit.id for hit in answer.hits) == sorted(ids)
    assert upgraded.backfill(later).rows == 6
    upgraded.rollback()
    assert sum(upgraded.status().live.values()) == 54
    assert upgraded.verify() == []


LATER = toy_images(per_class=1, first=30)


def embeddings(model, factor=1.0):
    rows = embed(Opener().open(model), LATER)
    return rows.changed(vectors=np.asarray(rows.vectors) * factor, fingerprint=rows.fingerprint)


def narrow():
    rows = embeddings(OLD)
    return rows.changed(vectors=np.eye(6, 5, dtype=np.float32), fingerprint=rows.fingerprint)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: embeddings(NEW), "need embeddings by .*old_model"),
        (narrow, "vectors of dimension 5; those of .*old_model have 12"),
        (lambda: embeddings(OLD, np.nan), "the vector of 'c0/30' is NaN"),
        (
            lambda: replace(LATER, read=lambda row_id: 255 - LATER.read(row_id)),
            "'c0/30' is another image",
        ),
    ],
)
def test_data_that_cannot_be_the_rows_is_refused_before_anything_changes(upgraded, data, message):
    upgraded.add(LATER)
    steps, before = upgraded.folder.state.steps, upgraded.search(LATER, k=3)
    with pytest.raises(UserError, match=message):
        upgraded.rollback(data=data())
    assert upgraded.folder.state.steps == steps
    assert [a.hits for a in upgraded.search(LATER, k=3)] == [a.hits for a in before]


def test_embeddings_by_the_earlier_model_restore_rows(upgraded):
    upgraded.add(LATER)
    assert upgraded.rollback(data=embeddings(OLD)).restored == 6
    assert unsearchable_rows(upgraded.folder) == []
    assert [a.hits[0].id for a in upgraded.search(LATER, k=1)] == list(LATER.ids)
    assert upgraded.add(LATER).present == 6, "the digests of the images stay"


def test_after_finish_data_must_have_all_rows_whose_old_vectors_are_deleted(upgraded):
    upgraded.backfill(toy_images())
    upgraded.add(LATER)
    upgraded.finish()
    with pytest.raises(UserError, match=r"toys lacks 40 rows .*\(step 6\), first 'c1/0'"):
        upgraded.rollback(data=toy_images(classes=1))
    assert list(upgraded.status().live.values()) == [0, 54]
    result = upgraded.rollback(data=toy_images())
    assert (result.restored, result.unsearchable, result.first_unsearchable) == (48, 6, "c0/30")
    assert unsearchable_rows(upgraded.folder) == sorted(LATER.ids)


def test_an_abort_undoes_no_upgrade(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    upgraded.upgrade(NEWEST, force=True)
    with pytest.raises(UserError, match=r"upgrade of step 5 came after .* --to 4"):
        upgraded.abort()
    upgraded.rollback()
    upgraded.abort()
    assert list(upgraded.status().live.values()) == [48, 0, 0]
    upgraded.backfill(toy_images())
    upgraded.finish()
    upgraded.upgrade(NEWEST, force=True)
    with pytest.raises(UserError, match="cannot go back to step"):
        upgraded.abort()


def test_after_finish_nothing_is_asked_for_if_nothing_is_lost(upgraded):
    upgraded.backfill(toy_images())
    upgraded.upgrade(NEWEST, force=True)
    upgraded.finish()
    result = upgraded.rollback()
    assert (result.restored, result.unsearchable) == (0, 0)
    assert upgraded.search(toy_images(per_class=1), k=1)[0].hits[0].id == "c0/0"


@pytest.mark.slow
@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_rollback_that_was_stopped_while_it_made_rows_again_goes_on(
    upgraded_twice, monkeypatch, written
):
    """It goes no further back, and until it is complete all searches are as before."""
    images = toy_images(per_class=40)
    upgraded_twice.add(toy_images(per_class=1, first=30))
    newest, answers = hits(upgraded_twice)
    new = upgraded_twice.folder.state.steps[-2].before.searching
    monkeypatch.setattr("unibct.gallery.rollback._BATCH", 3)
    in_between, at_the_end = (
        killed(upgraded_twice.folder.engine, after=written),
        broken("rollback.complete_rollback"),
    )
    with in_between if written < 2 else at_the_end:
        upgraded_twice.rollback(data=images)
    assert hits(upgraded_twice) == (newest, answers)
    state = upgraded_twice.folder.state
    target = stopped_target(state, images=True)
    assert target is not None
    assert target.before.searching == new
    assert rollback_target(state, None, images=True) == target
    assert rollback_target(state, target.number, images=True) == target
    assert (stopped_target(state) == target) is (written == 2), "without images rows are not made"
    result = upgraded_twice.rollback(data=images)
    assert stopped_target(upgraded_twice.folder.state, images=True) is None
    assert (result.searching, result.restored, result.unsearchable) == (new, 6, 0)
    assert upgraded_twice.status().unsearchable == 0
    assert upgraded_twice.verify() == []
    assert upgraded_twice.rollback(data=images).searching != new, "now it goes further back"


def hits(gallery):
    """Who searches, and what it finds among all rows."""
    answers = gallery.search(toy_images(per_class=1), k=80)
    return gallery.folder.state.standing.searching, [answer.as_json() for answer in answers]


def test_after_finish_searches_are_as_before_until_all_rows_are_made_again(upgraded, monkeypatch):
    """An empty answer would look like an empty gallery."""
    upgraded.backfill(toy_images())
    upgraded.finish()
    before = hits(upgraded)
    reader = Gallery(upgraded.folder.path)
    monkeypatch.setattr("unibct.gallery.rollback._BATCH", 7)
    engine = upgraded.folder.engine
    write, seen = engine.write, []

    def watched(*arguments, **options):
        write(*arguments, **options)
        seen.append(hits(reader) == before)

    monkeypatch.setattr(engine, "write", watched)
    put_aside = steps._put_newer_aside

    def watched_change(*arguments):
        seen.append(len(hits(reader)[1][0]["hits"]))
        put_aside(*arguments)

    monkeypatch.setattr(steps, "_put_newer_aside", watched_change)
    result = upgraded.rollback(data=toy_images())
    assert seen == [True] * 7 + [48]
    assert result.searching != before[0]


def test_another_step_takes_back_a_rollback_that_was_making_rows(upgraded):
    upgraded.backfill(toy_images())
    upgraded.finish()
    before = hits(upgraded)
    with broken("rollback.found_mates"):
        upgraded.rollback(data=toy_images())
    show(notes := Notes())
    again = Gallery(upgraded.folder.path)
    with pytest.raises(UserError, match="48 old vectors were deleted"):
        again.rollback()
    assert notes.texts == [
        "step 6, rollback, had been interrupted: it is taken back, and the rows are as before it"
    ]
    assert hits(again) == before
    assert [again.folder.engine.count(kind).rows for kind in again.folder.state.kinds] == [0, 48]
    assert again.verify() == []
    assert again.rollback(data=toy_images()).restored == 48
    assert again.verify() == []

import pytest

from tests.gallery.toys import PauseAfterABatch, toy_images
from unibct.errors import UserError
from unibct.gallery.gallery import Gallery
from unibct.gallery.lazy import remake_hits
from unibct.gallery.sources import open_source
from unibct.gallery.state import ROLLBACK


def hits(gallery):
    return [answer.hits for answer in gallery.search(toy_images(per_class=1, first=50), k=2)]


def test_only_found_rows_with_images_are_embedded_again(upgraded):
    own = upgraded.folder.state.standing.searching
    found = hits(upgraded)
    ids = {hit.id for row in found for hit in row}
    some = toy_images(classes=3)
    made = remake_hits(upgraded.folder, own, found, open_source(some))
    assert made == len(ids & set(some.ids))
    assert set(next(upgraded.folder.engine.scan(own)).ids) == ids & set(some.ids)
    others = open_source(toy_images(per_class=1, first=90))
    assert remake_hits(upgraded.folder, own, hits(upgraded), others) == 0


def lazily(gallery):
    gallery.search(toy_images(per_class=1, first=50), k=2, lazy_images=toy_images())
    return list(gallery.status().live.values())


def test_searches_and_the_backfill_after_them_are_undone_one_by_one(upgraded):
    assert lazily(upgraded)[1] > 0
    number = upgraded.folder.state.unfinished.number
    by_searches = lazily(upgraded)
    assert upgraded.folder.state.unfinished.number == number, "searches share a step"
    assert upgraded.status().as_json()["backfill"] is None
    with pytest.raises(UserError, match=r"no backfill of .* is under way"):
        upgraded.pause()
    upgraded.backfill(toy_images(), share=0.5)
    upgraded.abort()
    assert list(upgraded.status().live.values()) == by_searches
    upgraded.abort()
    assert list(upgraded.status().live.values()) == [48, 0]
    assert upgraded.verify() == []


def test_while_a_backfill_is_paused_searches_belong_to_it(upgraded, monkeypatch):
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 6)
    with monkeypatch.context() as patch:
        patch.setattr(upgraded.folder, "progress", PauseAfterABatch(upgraded.folder))
        assert upgraded.backfill(toy_images()).paused
    number = upgraded.folder.state.open_backfill.number
    lazily(upgraded)
    assert upgraded.folder.state.open_backfill.number == number
    upgraded.backfill(toy_images())
    upgraded.abort()
    assert list(upgraded.status().live.values()) == [48, 0]


def test_while_another_process_writes_the_search_goes_on(upgraded):
    other = Gallery(upgraded.folder.path)
    with upgraded.folder.writing():
        searching = other.folder.state.standing.searching
        assert remake_hits(other.folder, searching, hits(other), open_source(toy_images())) == 0


def test_after_a_killed_rollback_no_row_is_embedded_by_the_model_that_no_longer_searches(upgraded):
    upgraded.folder.save(upgraded.folder.state.begun(ROLLBACK, to=3))
    queries = toy_images(per_class=1, first=50)
    upgraded.search(queries, k=2, lazy_images=toy_images())
    assert upgraded.folder.state.searching.name.endswith("old_model")
    assert len(upgraded.search(queries, k=100)[0].hits) == 48

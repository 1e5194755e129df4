import pytest

from tests.gallery.toys import NEW, OLD, toy_images
from unibct.gallery.gallery import Gallery
from unibct.gallery.indexing import IndexRecall, measure_recall, rebuild_spoilt


def test_an_index_is_measured(toy_gallery):
    assert [entry.recall for entry in measure_recall(toy_gallery.folder)] == [None]
    (built,) = toy_gallery.index()
    assert built.recall > 0.95
    answers = toy_gallery.search(toy_images(per_class=1), k=3, approximate=True)
    assert [answer.hits[0].id for answer in answers] == [f"c{i}/0" for i in range(6)]


def test_an_index_that_lost_recall_is_built_again(toy_gallery, monkeypatch):
    toy_gallery.index()
    kind = toy_gallery.folder.state.standing.searching
    built = []
    monkeypatch.setattr(toy_gallery.folder.engine, "build_index", built.append)
    rebuild_spoilt(toy_gallery.folder, [IndexRecall(kind, 0.9)])
    assert built == [], "it is as good as before"
    measured = iter([0.5, 0.99])
    monkeypatch.setattr("unibct.gallery.indexing._recall", lambda *_: next(measured))
    assert rebuild_spoilt(toy_gallery.folder, [IndexRecall(kind, 0.9)]) == [IndexRecall(kind, 0.99)]
    assert built == [kind]


def test_a_backfill_of_an_indexed_gallery_builds_the_index_of_the_new_rows(upgraded):
    upgraded.index()
    upgraded.backfill(toy_images())
    assert upgraded.folder.state.standing.searching in upgraded.status().indexes


def test_with_an_index_steps_and_a_reader_find_right_rows_after_many_changes(tmp_path):
    """The reader stays open; more rows leave than its index skips, all those near one query."""
    images = toy_images(classes=12, per_class=20)
    gallery = Gallery.create(tmp_path / "G", OLD, known=4)
    gallery.add(images)
    gallery.index()
    reader = Gallery(tmp_path / "G")
    queries = toy_images(classes=12, per_class=3, first=50)
    nearest = reader.search(queries, k=90, approximate=True)[-1].hits
    gallery.remove([hit.id for hit in nearest])
    approximate = reader.search(queries, k=10, approximate=True)
    for near, exact in zip(approximate, reader.search(queries, k=10), strict=True):
        rows = {hit.id: hit.similarity for hit in exact.hits}
        assert len(rows.keys() & {hit.id for hit in near.hits}) >= 9
        assert near.hits[0].similarity == pytest.approx(exact.hits[0].similarity)
    gallery.upgrade(NEW, force=True)
    assert gallery.backfill(images).rows == 150

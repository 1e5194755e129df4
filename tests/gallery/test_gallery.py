"""A gallery from its creation to a rollback; the same tests on every engine."""

import numpy as np
import pytest

from tests.gallery.conftest import broken
from tests.gallery.toys import NEW, NEWEST, OLD, STRANGER, toy_certificate, toy_images, written
from tests.notes import Notes, show
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.gallery.gallery import Answer, Gallery, NameCounts, count_names
from unibct.gallery.search import Hit, note_useless_filter, search_source
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import open_source


@pytest.fixture
def gallery(place, tmp_path):
    """48 rows of the old model."""
    engine, where = place
    made = Gallery.create(tmp_path / "G", OLD, engine=engine, at=where.address)
    made.add(toy_images())
    yield made
    made.folder.engine.destroy()
    made.close()


@pytest.fixture
def certificate(gallery, tmp_path):
    old = gallery.folder.state.standing.searching
    new = gallery.folder.opener.open(NEW).fingerprint
    return written(toy_certificate(old, new), tmp_path)


def results(gallery, **settings):
    """What two queries of each class find."""
    queries = toy_images(per_class=2, first=50)
    return [
        [(hit.id, hit.label, hit.score, hit.model) for hit in answer.hits]
        for answer in gallery.search(queries, k=5, **settings)
    ]


def naive(gallery, model, rows, k=5):
    """The same for rows of one model, one by one."""
    embedder = gallery.folder.opener.open(model)
    queries = embed(embedder, toy_images(per_class=2, first=50)).vectors
    vectors = np.asarray(embed(gallery.folder.opener.open(rows), toy_images()).vectors)
    ids = toy_images().ids
    found = []
    for query in np.asarray(queries):
        scores = {i: float(vectors[place] @ query) for place, i in enumerate(ids)}
        found.append(sorted(ids, key=lambda i: (-scores[i], i))[:k])
    return found


def ids_of(found):
    return [[row[0] for row in hits] for hits in found]


def test_search_finds_what_one_by_one_comparison_finds(gallery):
    found = results(gallery)
    assert ids_of(found) == naive(gallery, OLD, OLD)
    assert all(row[1] == row[0].split("/")[0] for hits in found for row in hits)


def test_adding_again_changes_nothing(gallery):
    before = results(gallery)
    result = gallery.add(toy_images())
    assert (result.added, result.present) == (0, 48)
    assert results(gallery) == before
    assert gallery.status().as_json()["rows"] == 48


def test_an_upgrade_changes_no_row_and_the_new_model_searches(gallery, certificate):
    kinds = gallery.folder.state.kinds
    gallery.upgrade(NEW, [certificate])
    status = gallery.status().as_json()
    assert list(status["models"].values()) == [48, 0]
    assert status["searching"] == gallery.folder.opener.open(NEW).fingerprint
    found = results(gallery)
    assert ids_of(found) == naive(gallery, NEW, OLD)
    assert {row[3] for hits in found for row in hits} == set(kinds)


def test_at_none_and_at_all_rows_the_result_is_that_of_one_kind_to_the_bit(
    gallery, certificate, tmp_path
):
    gallery.upgrade(NEW, [certificate])
    alone = Gallery.create(tmp_path / "alone", NEW)
    alone.add(toy_images())
    gallery.backfill(toy_images())
    with_own = [[row[:3] for row in hits] for hits in results(gallery)]
    assert ids_of(with_own) == naive(gallery, NEW, NEW)
    if gallery.folder.state.engine == "embedded":
        assert with_own == [[row[:3] for row in hits] for hits in results(alone)]


def test_a_mixed_gallery_ranks_old_rows_by_their_calibrated_scores(gallery, certificate):
    old = gallery.folder.state.standing.searching
    gallery.upgrade(NEW, [certificate])
    gallery.add(toy_images(per_class=4, first=20))
    answers = gallery.search(toy_images(per_class=2, first=50), k=60)
    for answer in answers:
        scores = [hit.score for hit in answer.hits]
        assert scores == sorted(scores, reverse=True)
        assert len({hit.id for hit in answer.hits}) == 60
        for hit in answer.hits:
            own, older = ("own", hit.similarity), ("older", 2 * hit.similarity - 0.5)
            row, score = older if hit.model == old else own
            assert hit.score == pytest.approx(score, abs=1e-6)
            assert hit.row == row


def test_half_a_backfill_and_back(gallery, certificate):
    before = results(gallery)
    gallery.upgrade(NEW, [certificate])
    as_upgraded = results(gallery)
    done = gallery.backfill(toy_images(), share=0.5)
    assert (done.rows, done.rows_in_space, done.total) == (24, 24, 48)
    assert list(gallery.status().live.values()) == [24, 24]
    assert gallery.verify() == []
    gallery.abort()
    assert results(gallery) == as_upgraded
    gallery.backfill(toy_images(), share=0.25)
    gallery.backfill(toy_images(), share=0.75)
    assert list(gallery.status().live.values()) == [12, 36]
    gallery.rollback()
    assert results(gallery) == before
    assert list(gallery.status().live.values()) == [48, 0]
    assert gallery.verify() == []


def test_rows_that_were_added_since_then_are_kept(gallery, certificate):
    gallery.upgrade(NEW, [certificate])
    gallery.add(toy_images(per_class=2, first=30))
    result = gallery.rollback()
    assert (result.unsearchable, result.first_unsearchable) == (12, "c0/30")
    assert gallery.status().as_json()["rows"] == 60
    assert not any(row[0] == "c0/30" for hits in results(gallery) for row in hits)
    restored = Gallery(gallery.folder.path)
    gallery.upgrade(NEW, [certificate])
    result = restored.rollback(data=toy_images(per_class=2, first=30))
    assert (result.restored, result.unsearchable) == (12, 0)
    query = toy_images(per_class=1, first=30)
    assert [a.hits[0].id for a in restored.search(query, k=1)] == list(query.ids)


def test_after_finish_a_rollback_needs_the_images(gallery, certificate):
    """Until all rows are made again, searches are as before; a kill changes nothing of that."""
    before = results(gallery)
    gallery.upgrade(NEW, [certificate])
    gallery.backfill(toy_images())
    assert gallery.finish() == 48
    with pytest.raises(UserError, match="give the images"):
        gallery.rollback()
    after = results(gallery)
    with broken("rollback.found_mates"):
        gallery.rollback(data=toy_images())
    assert results(gallery) == after
    assert gallery.rollback(data=toy_images()).restored == 48
    assert ids_of(results(gallery)) == ids_of(before)
    assert list(gallery.status().live.values()) == [48, 0]
    assert gallery.verify() == []


def test_removed_rows_are_gone_from_every_kind(gallery, certificate):
    gallery.upgrade(NEW, [certificate])
    gallery.backfill(toy_images(), share=0.5)
    ids = ["c0/0", "c1/1", "c2/2"]
    assert gallery.remove(ids) == 3
    assert gallery.status().as_json()["rows"] == 45
    for kind in gallery.folder.engine.kinds():
        assert gallery.folder.engine.read(kind, ids).ids == ()
    gallery.rollback()
    assert gallery.status().as_json()["rows"] == 45
    assert gallery.verify() == []
    with pytest.raises(UserError, match="'c0/0'"):
        gallery.remove(ids)


def test_a_copy_has_rows_marks_and_history(gallery, certificate, tmp_path):
    gallery.upgrade(NEW, [certificate])
    gallery.backfill(toy_images(), share=0.5)
    assert gallery.copy(tmp_path / "copy") == 72
    copy = Gallery(tmp_path / "copy")
    assert copy.verify() == []
    assert ids_of(results(copy)) == ids_of(results(gallery))
    assert copy.status().live == gallery.status().live
    state = gallery.folder.state
    copy.copy(tmp_path / "back", engine=state.engine, at=state.address)
    back = Gallery(tmp_path / "back")
    try:
        assert back.verify() == []
        for one in (copy, gallery, back):
            one.rollback()
        assert ids_of(results(copy)) == ids_of(results(gallery)) == ids_of(results(back))
    finally:
        back.folder.engine.destroy()


def test_a_lazy_backfill_stores_what_queries_find(gallery, certificate):
    gallery.upgrade(NEW, [certificate])
    queries = toy_images(per_class=2, first=50)
    answers = gallery.search(queries, k=2, row_images=toy_images())
    own = gallery.folder.state.standing.searching
    count = gallery.status().live[own]
    assert 0 < count < 48
    assert all(hit.row in ("own", "older") for answer in answers for hit in answer.hits)
    gallery.backfill(toy_images())
    assert gallery.status().live[own] == 48
    gallery.rollback()
    assert gallery.status().live[own] == 0


def test_a_filter_and_a_threshold(gallery, tmp_path):
    extra = toy_images(per_class=2, first=60)
    lines = ["id,colour,price"]
    lines += [f"{row_id},{'red' if i % 2 else 'blue'},{i}" for i, row_id in enumerate(extra.ids)]
    (tmp_path / "m.csv").write_text("\n".join(lines))
    gallery.add(extra, metadata=tmp_path / "m.csv")
    answers = gallery.search(toy_images(per_class=1, first=60), k=20, where={"colour": ["red"]})
    assert all(len(answer.hits) == 6 for answer in answers)
    assert all(hit.metadata["colour"] == "red" for answer in answers for hit in answer.hits)
    answers = gallery.search(toy_images(per_class=1, first=60), k=60, threshold=0.7)
    assert all(hit.score >= 0.7 for answer in answers for hit in answer.hits)
    assert answers[0].hits[0].id == "c0/60"


def test_a_filter_that_no_row_fits_is_noted(gallery, tmp_path):
    show(notes := Notes())
    extra = toy_images(per_class=2, first=60)
    (tmp_path / "m.csv").write_text("id,colour\n" + "".join(f"{i},red\n" for i in extra.ids))
    gallery.add(extra, metadata=tmp_path / "m.csv")
    notes.texts.clear()
    red = {"colour": ["red"]}
    assert not any(a.hits for a in gallery.search(extra, where=red, threshold=2.0))
    assert notes.texts == [], "rows fit, but their scores are too low"
    for where, keys in (({"color": ["red"]}, "color"), (red | {"size": [1]}, "colour, size")):
        for settings in ({}, {"threshold": 0.0}):
            assert not any(a.hits for a in gallery.search(extra, where=where, **settings))
            assert notes.texts.pop().startswith(f"no row fits the filter on {keys};")


def test_an_upgrade_after_a_search_does_not_fail_its_filter(gallery, certificate):
    request = SearchRequest(where={"color": ["red"]})
    source = open_source(toy_images(per_class=1))
    queries, hits = search_source(gallery.folder, source, request)
    gallery.upgrade(NEW, [certificate])
    note_useless_filter(gallery.folder, queries, request, hits)


def test_three_generations_each_with_its_certificate(gallery, certificate, tmp_path):
    old = gallery.folder.state.standing.searching
    gallery.upgrade(NEW, [certificate])
    gallery.add(toy_images(per_class=2, first=30))
    new = gallery.folder.state.standing.searching
    newest = gallery.folder.opener.open(NEWEST).fingerprint
    from_old = written(toy_certificate(old, newest), tmp_path)
    from_new = written(toy_certificate(new, newest), tmp_path)
    with pytest.raises(UserError, match="12 rows were made by"):
        gallery.upgrade(NEWEST, [from_old])
    gallery.upgrade(NEWEST, [from_old, from_new])
    gallery.add(toy_images(per_class=2, first=40))
    assert list(gallery.status().live.values()) == [48, 12, 12]
    models = {hit.model for a in gallery.search(toy_images(), k=72) for hit in a.hits}
    assert models == {old, new, newest}
    assert gallery.verify() == []


def test_a_stranger_of_the_same_dimension_is_kept_out(gallery, certificate):
    before = results(gallery)
    with pytest.raises(UserError, match="no certificate says that"):
        gallery.upgrade(STRANGER, [certificate])
    with pytest.raises(UserError, match="known queries no longer find their mates"):
        gallery.upgrade(STRANGER, force=True)
    stranger = gallery.folder.opener.open(STRANGER)
    with pytest.raises(UserError, match="which this gallery does not know"):
        gallery.add(embed(stranger, toy_images(per_class=1, first=90)))
    assert results(gallery) == before
    assert len(gallery.folder.state.kinds) == 1
    assert open_source(toy_images()).ids == toy_images().ids


def test_attributes_beside_a_request_are_refused(toy_gallery):
    """One of them would be passed over."""
    with pytest.raises(UserError, match="not both: far"):
        toy_gallery.search(toy_images(per_class=1), SearchRequest(k=3), far=0.1)


def hit(label):
    return Hit("row", label, 0.9, "f", 0.9, "own", {})


def test_right_wrong_and_lost_names_are_counted():
    answers = [
        Answer("1", "a", [hit("a"), hit("b")], False),
        Answer("2", "a", [hit("b"), hit("a")], False),  # only the first row gives its name
        Answer("3", "a", [hit(None)], False),
        Answer("4", "b", [], False),
        Answer("5", "b", [hit("b")], False),
    ]
    names = count_names(answers)
    assert names == NameCounts(right=2, wrong=2, lost=1)
    assert names.queries == 5
    assert names.as_json() == {"right": 2, "wrong": 2, "lost": 1}


def test_a_query_without_a_label_is_refused():
    with pytest.raises(UserError, match="'q' has no label"):
        count_names([Answer("q", None, [hit("a")], False)])


def test_a_threshold_that_nothing_passes_loses_every_name(toy_gallery):
    queries = toy_images(per_class=2, first=50)
    assert count_names(toy_gallery.search(queries, k=1)).lost == 0
    assert count_names(toy_gallery.search(queries, k=1, threshold=1.01)) == NameCounts(0, 0, 12)

import numpy as np
import pytest

from tests.gallery.toys import NEW, NEWEST, OLD, toy_images
from unibct.embedders import Opening
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.evaluation.blending import blended
from unibct.gallery.queries import Queries, make_queries
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import open_source

QUERIES = toy_images(per_class=1, first=50)


def vectors(model, images):
    return np.asarray(embed(Opening().open(model), images).vectors)


def test_queries_by_another_model_are_refused(upgraded):
    with pytest.raises(UserError, match="embed the queries with that one"):
        upgraded.search(embed(Opening().open(OLD), QUERIES))
    by_new = embed(Opening().open(NEW), QUERIES)
    assert [a.hits for a in upgraded.search(by_new)] == [a.hits for a in upgraded.search(QUERIES)]


@pytest.mark.parametrize("factor", [0, 2, np.nan])
def test_queries_that_are_not_of_length_1_are_refused(upgraded, factor):
    queries = embed(Opening().open(NEW), QUERIES)
    bad = np.array(queries.vectors)
    bad[2] *= factor
    with pytest.raises(UserError, match="the vector of 'c2/50' is"):
        upgraded.search(queries.changed(vectors=bad, fingerprint=queries.fingerprint))


def test_embedded_queries_of_another_model_are_refused(upgraded):
    queries = make_queries(upgraded.folder, open_source(QUERIES), SearchRequest())
    assert len(upgraded.search(queries)) == 6
    with pytest.raises(UserError, match="the queries lack those by an older model"):
        upgraded.search(queries, encoders="two")
    upgraded.rollback()
    with pytest.raises(UserError, match=r"the queries were made by model .* embed the queries"):
        upgraded.search(queries)


def test_two_encoders_search_old_rows_with_the_old_query(upgraded):
    rows, ids = vectors(OLD, toy_images()), toy_images().ids
    found = upgraded.search(QUERIES, k=4, encoders="two")
    for answer, query in zip(found, vectors(OLD, QUERIES), strict=True):
        best = np.argsort(-(rows @ query))[:4]
        assert [hit.id for hit in answer.hits] == [ids[i] for i in best]


def test_a_blend_searches_old_rows_with_both_queries(upgraded):
    rows, ids = vectors(OLD, toy_images()), toy_images().ids
    queries = blended(old=vectors(OLD, QUERIES), new=vectors(NEW, QUERIES), alpha=0.3)
    found = upgraded.search(QUERIES, k=4, encoders="blend", alpha=0.3)
    for answer, query in zip(found, queries, strict=True):
        best = np.argsort(-(rows @ query))[:4]
        assert [hit.id for hit in answer.hits] == [ids[i] for i in best]
        expected = [float(rows[i] @ query) for i in best]
        np.testing.assert_allclose([hit.score for hit in answer.hits], expected, atol=1e-5)


def test_rows_of_a_map_get_the_query_of_the_model_in_whose_space_they_are(upgraded, forward_map):
    upgraded.backfill(map_folder=forward_map)
    kind = list(upgraded.folder.state.makers)[2]
    rows = next(upgraded.folder.engine.scan(kind))
    upgraded.upgrade(NEWEST, force=True)
    found = upgraded.search(QUERIES, k=4, encoders="two")
    for answer, query in zip(found, vectors(NEW, QUERIES), strict=True):
        best = np.argsort(-(rows.vectors @ query))[:4]
        assert [hit.id for hit in answer.hits] == [rows.ids[i] for i in best]


def test_a_model_without_rows_is_not_asked_for_queries(upgraded, monkeypatch):
    old, new = upgraded.folder.state.makers
    opened = upgraded.folder.model
    asked = []
    monkeypatch.setattr(upgraded.folder, "model", lambda kind: asked.append(kind) or opened(kind))
    upgraded.search(QUERIES, encoders="two")
    assert set(asked) == {old, new}
    upgraded.backfill(toy_images())
    asked.clear()
    plain = [answer.hits for answer in upgraded.search(QUERIES)]
    assert [answer.hits for answer in upgraded.search(QUERIES, encoders="two")] == plain
    assert set(asked) == {new}


def test_vectors_in_memory_are_queries(upgraded):
    by_new = vectors(NEW, QUERIES)
    searching = upgraded.folder.state.standing.searching
    answers = upgraded.search(Queries(QUERIES.ids, by_new.tolist(), searching))
    assert [a.hits for a in answers] == [a.hits for a in upgraded.search(QUERIES)]
    for ids, bad, message in [
        (QUERIES.ids, 3 * by_new, "not of length 1; a query must have length 1"),
        (QUERIES.ids, np.nan * by_new, "NaN or infinite"),
        (QUERIES.ids[1:], by_new, r"5 ids need vectors of the shape \(5, dim\), not \(6, "),
        (QUERIES.ids[:1], by_new[0], r"1 ids need vectors of the shape \(1, dim\)"),
    ]:
        with pytest.raises(UserError, match=message):
            upgraded.search(Queries(ids, bad, searching))


def test_two_encoders_search_rows_that_a_backfill_has_replaced(upgraded):
    upgraded.backfill(toy_images())
    request = SearchRequest(encoders="two", with_superseded=True)
    assert all(answer.hits for answer in upgraded.search(QUERIES, request))

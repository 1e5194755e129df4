import numpy as np
import pytest

from tests.gallery.toys import NEW, NEWEST, OLD, toy_certificate, toy_images, written
from tests.notes import Notes, show
from unibct.embedders import Opener
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.evaluation.blending import blended
from unibct.gallery import search
from unibct.gallery.backfill import BackfillSource, continued_backfill
from unibct.gallery.gallery import Gallery
from unibct.gallery.search import Queries, make_queries, planned_search
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import open_source
from unibct.gallery.state import ROLLBACK

QUERIES = toy_images(per_class=1, first=50)


def hits(gallery, *request, **settings):
    """What each query finds."""
    return [answer.hits for answer in gallery.search(QUERIES, *request, **settings)]


# Queries.


def vectors(model, images):
    return np.asarray(embed(Opener().open(model), images).vectors)


def test_queries_by_another_model_are_refused(upgraded):
    with pytest.raises(UserError, match="embed the queries with that one"):
        upgraded.search(embed(Opener().open(OLD), QUERIES))
    by_new = embed(Opener().open(NEW), QUERIES)
    assert [a.hits for a in upgraded.search(by_new)] == hits(upgraded)


@pytest.mark.parametrize("factor", [0, 2, np.nan])
def test_queries_that_are_not_of_length_1_are_refused(upgraded, factor):
    queries = embed(Opener().open(NEW), QUERIES)
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


def check(found, queries, rows, ids):
    """Each query found the four rows that are the most similar to it."""
    for row, query in zip(found, queries, strict=True):
        assert [hit.id for hit in row] == [ids[i] for i in np.argsort(-(rows @ query))[:4]]


def test_two_encoders_search_old_rows_with_the_old_query(upgraded):
    found = hits(upgraded, k=4, encoders="two")
    check(found, vectors(OLD, QUERIES), vectors(OLD, toy_images()), toy_images().ids)


def test_a_blend_searches_old_rows_with_both_queries(upgraded):
    rows = vectors(OLD, toy_images())
    queries = blended(old=vectors(OLD, QUERIES), new=vectors(NEW, QUERIES), alpha=0.3)
    found = hits(upgraded, k=4, encoders="blend", alpha=0.3)
    check(found, queries, rows, toy_images().ids)
    expected = -np.sort(-(queries @ rows.T))[:, :4]
    scores = [[hit.score for hit in row] for row in found]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_rows_of_a_map_get_the_query_of_the_model_in_whose_space_they_are(upgraded, forward_map):
    upgraded.backfill(map_folder=forward_map)
    kind = list(upgraded.folder.state.kinds)[2]
    rows = next(upgraded.folder.engine.scan(kind))
    upgraded.upgrade(NEWEST, force=True)
    found = hits(upgraded, k=4, encoders="two")
    check(found, vectors(NEW, QUERIES), rows.vectors, rows.ids)


def test_a_model_without_rows_is_not_asked_for_queries(upgraded, monkeypatch):
    old, new = upgraded.folder.state.kinds
    opened = upgraded.folder.model
    asked = []
    monkeypatch.setattr(upgraded.folder, "model", lambda kind: asked.append(kind) or opened(kind))
    upgraded.search(QUERIES, encoders="two")
    assert set(asked) == {old, new}
    upgraded.backfill(toy_images())
    asked.clear()
    assert hits(upgraded) == hits(upgraded, encoders="two")
    assert set(asked) == {new}


def test_vectors_in_memory_are_queries(upgraded):
    by_new = vectors(NEW, QUERIES)
    searching = upgraded.folder.state.standing.searching
    answers = upgraded.search(Queries(QUERIES.ids, by_new.tolist(), searching))
    assert [answer.hits for answer in answers] == hits(upgraded)
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
    assert all(hits(upgraded, SearchRequest(encoders="two", with_superseded=True)))


# Scores.


def test_a_rate_that_no_certificate_has_is_refused_before_queries_are_embedded(
    upgraded, monkeypatch
):
    monkeypatch.setattr("unibct.gallery.search.make_queries", pytest.fail)
    with pytest.raises(UserError, match="1e-07"):
        upgraded.search(QUERIES, far=1e-7)


def test_the_far_threshold_is_that_of_each_kind_of_row(upgraded):
    upgraded.add(toy_images(per_class=4, first=20))
    new = upgraded.folder.state.standing.searching
    assert hits(upgraded, k=72, far=0.01) == [
        [hit for hit in row if hit.similarity > (0.9 if hit.model == new else 0.8)]
        for row in hits(upgraded, k=72)
    ]
    with pytest.raises(UserError, match="no threshold for the false accept rate"):
        upgraded.search(QUERIES, far=1e-7)


def test_without_a_certificate_there_is_no_threshold(toy_gallery):
    with pytest.raises(UserError, match=r"\(far\) needs one"):
        toy_gallery.search(QUERIES, far=0.01)


def test_old_scores_are_on_the_scale_of_the_old_model(upgraded):
    upgraded.add(toy_images(per_class=4, first=20))
    new = upgraded.folder.state.standing.searching
    plain, scaled = (hits(upgraded, k=72, old_scores=given) for given in (False, True))
    for row, same in zip(plain, scaled, strict=True):
        assert [hit.id for hit in same] == [hit.id for hit in row]
        for hit in same:
            knots = [-1.0, 0.1 if hit.model == new else 0.2, 1.0]
            expected = np.interp(hit.similarity, [-1, 0, 1], knots)
            assert hit.score == pytest.approx(float(expected), abs=1e-6)


def test_a_threshold_above_what_the_score_map_has_seen_is_called_a_guess(upgraded):
    show(notes := Notes())
    for scale in ({"old_scores": True}, {}):  # the last knot is at 1.0
        upgraded.search(QUERIES, threshold=1.0, **scale)
    upgraded.search(QUERIES, threshold=1.1)
    assert notes.texts == []
    upgraded.search(QUERIES, threshold=1.1, old_scores=True)
    assert [text.partition(",")[0] for text in notes.texts] == ["the threshold 1.1 is above 1"]


def test_a_rate_that_the_test_classes_could_not_measure_is_called_rough(toy_gallery, tmp_path):
    old = toy_gallery.folder.state.standing.searching
    certificate = toy_certificate(old, Opener().open(NEW).fingerprint, carried_fars=["0.1"])
    assert certificate.rough_fars == (0.01,)
    toy_gallery.upgrade(NEW, [written(certificate, tmp_path)])
    show(notes := Notes())
    toy_gallery.search(QUERIES, far=0.1)
    assert notes.texts == []
    toy_gallery.search(QUERIES, far=0.01)
    assert notes.texts[0].startswith("the threshold for the false accept rate 0.01 is rough: ")


def test_old_scores_of_the_old_model_itself_are_its_plain_scores(upgraded):
    upgraded.rollback()
    assert hits(upgraded, k=9, old_scores=True) == hits(upgraded, k=9)


def test_old_scores_need_a_certificate(toy_gallery):
    toy_gallery.upgrade(NEW, force=True)
    with pytest.raises(UserError, match="no certificate says how scores"):
        toy_gallery.search(QUERIES, old_scores=True)


def test_old_scores_of_old_queries_are_plain_in_a_mixed_gallery_too(toy_gallery, tmp_path):
    old = toy_gallery.folder.state.standing.searching
    new = Opener().open(NEW).fingerprint
    line = {"choice": {"kind": "standardised", "slope": 2.0, "shift": -0.5}}
    certificate = toy_certificate(
        old, new, further_calibrations={"old→old": line, "blend→old": line}
    )
    toy_gallery.upgrade(NEW, [written(certificate, tmp_path)])
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
    upgraded_twice.backfill(toy_images())  # only rows of the newer old model are left
    assert len(upgraded_twice.search(QUERIES, old_scores=True)) == 6


def test_a_blend_is_the_one_that_the_certificate_has_tested(upgraded):
    def blend(**request):
        return hits(upgraded, k=9, encoders="blend", **request)

    assert blend() == blend(alpha=0.6) != blend(alpha=0.5)
    assert blend(far=0.1) == blend(far=0.1, alpha=0.6)
    for scale in ({"far": 0.1}, {"old_scores": True}):
        with pytest.raises(UserError, match=r"blends with alpha 0\.6, not 0\.5: leave alpha out"):
            blend(alpha=0.5, **scale)


def test_without_a_certificate_a_blend_is_half_of_each(toy_gallery):
    toy_gallery.upgrade(NEW, force=True)
    blend = {"k": 9, "encoders": "blend"}
    assert hits(toy_gallery, **blend) == hits(toy_gallery, **blend, alpha=0.5)


# One search while others write.


def test_queries_are_embedded_again_if_another_model_searches_by_then(upgraded, monkeypatch):
    upgraded.backfill(toy_images(), share=0.5)
    embedded = search.make_queries
    expected = []

    def before_a_rollback(*arguments, **names):
        queries = embedded(*arguments, **names)
        monkeypatch.setattr(search, "make_queries", embedded)
        other = Gallery(upgraded.folder.path)
        other.rollback()
        expected.append(hits(other, k=3))
        return queries

    monkeypatch.setattr(search, "make_queries", before_a_rollback)
    assert [hits(upgraded, k=3)] == expected


def with_changes(monkeypatch, gallery, before, after):
    """Let others write before and after the first search of the engine."""
    engine = gallery.folder.engine
    searched = engine.search

    def searching(*arguments):
        monkeypatch.setattr(engine, "search", searched)
        if before:
            before()
        found = searched(*arguments)
        after()
        return found

    monkeypatch.setattr(engine, "search", searching)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_rows_that_a_backfill_moves_meanwhile_are_found(
    upgraded, forward_map, monkeypatch, moment, is_mapped
):
    """They move before or after the first kind is searched, within a step that is under way."""
    images = toy_images()
    if is_mapped:
        upgraded.backfill(map_folder=forward_map)
        upgraded.backfill(images, ids=["c0/0"])
    writer = Gallery(upgraded.folder.path).folder
    origin = BackfillSource(writer, open_source(images))
    continued_backfill(writer, origin, [])

    def move():
        continued_backfill(writer, origin, images.ids[10:20])

    with_changes(monkeypatch, upgraded, move if moment == "before" else None, move)
    assert {hit.id for hit in hits(upgraded, k=100)[0]} == set(images.ids)


def test_rows_that_a_rollback_brings_back_meanwhile_are_found(upgraded, monkeypatch):
    upgraded.backfill(toy_images(), share=0.5)
    upgraded.folder.save(upgraded.folder.state.begun(ROLLBACK, to=4))
    other = Gallery(upgraded.folder.path).folder.engine
    with_changes(monkeypatch, upgraded, None, lambda: other.undo(4))
    assert {hit.id for hit in hits(upgraded, k=100)[0]} == set(toy_images().ids)


def test_a_rollback_over_two_upgrades_searches_the_oldest_rows_last(upgraded_twice):
    upgraded_twice.add(toy_images(per_class=1, first=30))
    folder = upgraded_twice.folder
    kinds = list(folder.state.kinds)
    assert planned_search(folder, folder.state, SearchRequest()).kinds == kinds
    going_back = folder.state.begun(ROLLBACK, to=3)
    assert planned_search(folder, going_back, SearchRequest()).kinds == kinds[::-1]


def test_hits_as_json_have_the_keys_that_machines_rely_on(upgraded):
    value = upgraded.search(QUERIES, k=1)[0].as_json()
    assert value["query"] == "c0/50"
    assert {"id", "label", "score", "model"} <= set(value["hits"][0])

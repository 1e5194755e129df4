import pytest

from tests.gallery.toys import toy_images
from unibct.gallery import search
from unibct.gallery.backfill import RowRemaker, continued_backfill
from unibct.gallery.gallery import Gallery
from unibct.gallery.search import _filled_kinds
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import open_source
from unibct.gallery.state import ROLLBACK

QUERIES = toy_images(per_class=1, first=50)


def test_queries_are_embedded_again_if_another_model_searches_by_then(upgraded, monkeypatch):
    upgraded.backfill(toy_images(), share=0.5)
    embedded = search.make_queries
    expected = []

    def before_a_rollback(*arguments, **names):
        queries = embedded(*arguments, **names)
        monkeypatch.setattr(search, "make_queries", embedded)
        other = Gallery(upgraded.folder.path)
        other.rollback()
        expected.append([answer.hits for answer in other.search(QUERIES, k=3)])
        return queries

    monkeypatch.setattr(search, "make_queries", before_a_rollback)
    assert [[answer.hits for answer in upgraded.search(QUERIES, k=3)]] == expected


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
    remaker = RowRemaker(writer, open_source(images))
    continued_backfill(writer, remaker, [])
    engine = upgraded.folder.engine
    searched = engine.search

    def searching(*arguments):
        monkeypatch.setattr(engine, "search", searched)
        if moment == "before":
            continued_backfill(writer, remaker, images.ids[10:20])
        hits = searched(*arguments)
        continued_backfill(writer, remaker, images.ids[10:20])
        return hits

    monkeypatch.setattr(engine, "search", searching)
    answer = upgraded.search(QUERIES, k=100)[0]
    assert {hit.id for hit in answer.hits} == set(images.ids)


def test_rows_that_a_rollback_brings_back_meanwhile_are_found(upgraded, monkeypatch):
    upgraded.backfill(toy_images(), share=0.5)
    upgraded.folder.save(upgraded.folder.state.begun(ROLLBACK, to=4))
    engine = upgraded.folder.engine
    searched = engine.search

    def searching(*arguments):
        monkeypatch.setattr(engine, "search", searched)
        hits = searched(*arguments)
        Gallery(upgraded.folder.path).folder.engine.undo(4)
        return hits

    monkeypatch.setattr(engine, "search", searching)
    answer = upgraded.search(QUERIES, k=100)[0]
    assert {hit.id for hit in answer.hits} == set(toy_images().ids)


def test_a_rollback_over_two_upgrades_searches_the_oldest_rows_last(upgraded_twice):
    upgraded_twice.add(toy_images(per_class=1, first=30))
    folder = upgraded_twice.folder
    kinds = list(folder.state.makers)
    assert _filled_kinds(folder, folder.state, SearchRequest()) == kinds
    assert _filled_kinds(folder, folder.state.begun(ROLLBACK, to=3), SearchRequest()) == kinds[::-1]


def test_hits_as_json_have_the_keys_that_machines_rely_on(upgraded):
    value = upgraded.search(QUERIES, k=1)[0].as_json()
    assert value["query"] == "c0/50"
    assert {"id", "label", "score", "model"} <= set(value["hits"][0])

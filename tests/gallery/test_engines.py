"""The contract of engines: the same tests for every one of them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.gallery.conftest import REAL, random_vectors, some_rows
from unibct.errors import UserError
from unibct.gallery.engines import (
    ENGINES,
    Count,
    Engine,
    Place,
    Search,
    open_engine,
    refuse_secret,
    secret_of_url,
)
from unibct.gallery.engines.postgresql import lock_number
from unibct.gallery.rows import GalleryRows, Metadata, changed_rows, sealed_rows

OLD, NEW = "a" * 32, "b" * 32
IDS = [f"{letter}{number}" for letter in "abcd" for number in range(10)]


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """Forty rows of the kind OLD."""
    keep(engine, some_rows(OLD, IDS))
    return engine


def keep(engine: Engine, rows: GalleryRows) -> None:
    """Write rows of the kind OLD, the first ones of this engine."""
    engine.add_kind(OLD, rows.vectors.shape[1])
    engine.write(OLD, rows)


def ids_found(engine: Engine, query: np.ndarray, search: Search) -> list[str]:
    """The ids of what one query finds among the rows of the kind OLD."""
    return [hit.id for hit in engine.search(OLD, query, search)[0]]


def everything(engine: Engine, kind: str) -> dict[str, tuple[object, ...]]:
    rows: dict[str, tuple[object, ...]] = {}
    for part in engine.scan(kind, batch=7):
        for i, row_id in enumerate(part.ids):
            rows[row_id] = (part.labels[i], part.metadata[i], part.vectors[i].tobytes())
    return rows


def nearest(
    rows: GalleryRows, query: np.ndarray, k: int, usable: set[str] | None = None
) -> list[str]:
    """The naive search: every row, one by one."""
    scores = {
        row_id: float(rows.vectors[i] @ query)
        for i, row_id in enumerate(rows.ids)
        if usable is None or row_id in usable
    }
    return sorted(scores, key=lambda row_id: (-scores[row_id], row_id))[:k]


def test_rows_come_back_as_they_were_written(filled: Engine):
    rows = some_rows(OLD, IDS)
    read = filled.read(OLD, ["c3", "a1", "nobody"])
    assert read.ids == ("c3", "a1")
    assert read.labels == ("c", "a")
    np.testing.assert_array_equal(read.vectors, rows.vectors[[IDS.index("c3"), IDS.index("a1")]])
    assert changed_rows(OLD, read) == []
    assert read.steps.tolist() == [1, 1]
    assert filled.read(OLD, ["c3"], vectors=False).vectors.shape == (1, 0)


def test_a_scan_yields_every_row_once_in_order_of_ids(filled: Engine):
    parts = list(filled.scan(OLD, batch=7))
    ids = [row_id for part in parts for row_id in part.ids]
    assert ids == sorted(IDS)
    assert all(changed_rows(OLD, part) == [] for part in parts)


def test_kinds_have_their_own_dimensions(filled: Engine):
    filled.add_kind(NEW, 12)
    filled.add_kind(NEW, 12)
    filled.write(NEW, some_rows(NEW, ["a0"], dim=12, step=2))
    assert filled.kinds() == {OLD: 8, NEW: 12}
    assert filled.count(NEW) == Count(1, 1)
    filled.drop_kind(NEW)
    filled.drop_kind(NEW)
    assert filled.kinds() == {OLD: 8}
    with pytest.raises(UserError, match=NEW):
        filled.count(NEW)


def test_writing_twice_is_as_once(filled: Engine):
    before = everything(filled, OLD)
    filled.write(OLD, some_rows(OLD, IDS))
    assert everything(filled, OLD) == before
    assert filled.count(OLD) == Count(40, 40)


def test_a_row_with_the_same_id_is_replaced(filled: Engine):
    other = some_rows(OLD, ["a0"], seed=9, step=4)
    filled.write(OLD, other)
    read = filled.read(OLD, ["a0"])
    np.testing.assert_array_equal(read.vectors, other.vectors)
    assert read.steps.tolist() == [4]
    assert filled.count(OLD).rows == 40
    assert ids_found(filled, other.vectors, Search(1, {})) == ["a0"]


def test_search_equals_the_naive_search(filled: Engine):
    rows, queries = some_rows(OLD, IDS), random_vectors(6, seed=3)
    for k in (1, 5, 40, 60):
        found = filled.search(OLD, queries, Search(k, {}))
        for hits, query in zip(found, queries, strict=True):
            assert [hit.id for hit in hits] == nearest(rows, query, k)
            scores = [float(rows.vectors[IDS.index(hit.id)] @ query) for hit in hits]
            np.testing.assert_allclose([hit.similarity for hit in hits], scores, atol=1e-6)
            assert [hit.label for hit in hits] == [hit.id[0] for hit in hits]


def test_a_search_of_no_rows_finds_nothing(engine: Engine):
    engine.add_kind(OLD, 8)
    assert engine.search(OLD, random_vectors(2), Search(3, {})) == [[], []]


WHERES = [
    ({"colour": ["red"]}, lambda m: m.get("colour") == "red"),
    ({"colour": ["red", "it's"]}, lambda m: m.get("colour") in ("red", "it's")),
    ({"size": [3]}, lambda m: m.get("size") == 3),
    ({"new": [True]}, lambda m: m.get("new") is True),
    ({"size": [3], "colour": ["red"]}, lambda m: (m.get("size"), m.get("colour")) == (3, "red")),
    ({"colour": ["no such colour"]}, lambda m: False),
    ({"colour": []}, lambda m: False),
    ({"size": [1.0, 2]}, lambda m: m.get("size") in (1, 2)),
    ({"rare": [None]}, lambda m: m.get("rare") is None),
    ({"rare": [None, 'it\'s "x"\n\\']}, lambda m: m.get("rare") != 0.25),
    ({"rare": [0.25]}, lambda m: m.get("rare") == 0.25),
    ({"size": [0.5, 3.0]}, lambda m: m.get("size") == 3),
    ({"new": [False, "true"]}, lambda m: m.get("new") is False),
]


def test_a_filter_keeps_the_nearest_of_the_matching_rows(engine: Engine):
    colours = ["red", "blue", "it's", "grün"]
    metadata = [
        {"colour": colours[i % 4], "size": i % 5, "new": i % 3 == 0} for i in range(len(IDS))
    ]
    for i, rare in enumerate((None, 0.25, 'it\'s "x"\n\\')):
        metadata[i]["rare"] = rare
    rows = some_rows(OLD, IDS, metadata=metadata)
    keep(engine, rows)
    query = random_vectors(1, seed=5)
    for where, matches in WHERES:
        usable = {row_id for row_id, values in zip(IDS, metadata, strict=True) if matches(values)}
        for approximate in (False, True):
            found = engine.search(OLD, query, Search(6, where, approximate=approximate))[0]
            assert [hit.id for hit in found] == nearest(rows, query[0], 6, usable), where
            assert all(matches(hit.metadata) for hit in found)


@pytest.mark.parametrize("place", REAL, indirect=True)
@pytest.mark.parametrize(
    ("choices", "values"),
    [
        (range(3, 5000), [3, 4]),
        ([number / 2 for number in range(2000)], [0, 1, 2, 3, 4, 2.5]),
        ([f"c{number}" for number in range(2000)] + ["grün", 'q"\\'], ["grün", 'q"\\']),
        ([*range(50), *map(str, range(50)), True, None], [0, 1, 2, 3, 4, True, None]),
    ],
)
def test_a_filter_may_have_thousands_of_values(engine: Engine, choices, values):
    every: list[Metadata] = [
        {"key": value} for value in (0, 1, 2, 3, 4, 2.5, "grün", 'q"\\', True, False, None)
    ]
    ids = [f"r{number:02}" for number in range(len(every))]
    keep(engine, some_rows(OLD, ids, metadata=every))
    found = engine.search(OLD, random_vectors(1), Search(99, {"key": list(choices)}))[0]
    expected = [json.dumps(value) for value in values]
    assert sorted(json.dumps(row.metadata["key"]) for row in found) == sorted(expected)


def test_strange_ids_labels_and_metadata_come_back_as_they_were(engine: Engine):
    texts = ["a'b", 'q"x', "back\\slash", "new\nline", "日本", "\u2028", "%s", "{}", "a" * 512]
    ids = sorted([*texts, "Ä", "Z", "~"])
    metadata: list[Metadata] = [
        {"large": 1e16, "minus": -0.0, "none": None, "whole": 2**53 + 1, "text": row_id}
        for row_id in ids
    ]
    labels = [None, "", "null", *ids[3:]]
    rows = sealed_rows(OLD, ids, labels, metadata, random_vectors(len(ids)), 1)
    keep(engine, rows)
    read = engine.read(OLD, ids[::-1])
    assert read.ids == tuple(ids[::-1])
    assert read.labels == tuple(labels[::-1])
    assert changed_rows(OLD, read) == []
    scanned = [row_id for part in engine.scan(OLD, batch=5) for row_id in part.ids]
    assert scanned == ids
    found = engine.search(OLD, rows.vectors[:1], Search(20, {}))[0]
    assert (found[0].id, found[0].metadata) == (ids[0], metadata[0])
    engine.delete(OLD, ids)
    assert engine.count(OLD) == Count(0, 0)


def test_rows_of_equal_similarity_are_in_order_of_ids(engine: Engine):
    vectors = np.repeat(random_vectors(1), 20, axis=0)
    ids = [f"t{(7 * i) % 20:02}" for i in range(20)]
    keep(engine, sealed_rows(OLD, ids, [None] * 20, [{}] * 20, vectors, 1))
    assert ids_found(engine, vectors[:1], Search(30, {})) == sorted(ids)


def test_marks_are_written_as_they_are_read(filled: Engine):
    """A gallery can be copied, with its history."""
    filled.supersede(OLD, IDS[:3], 5)
    rows = filled.read(OLD, IDS)
    filled.drop_kind(OLD)
    filled.add_kind(OLD, 8)
    filled.write(OLD, rows)
    assert filled.count(OLD) == Count(40, 37)
    filled.undo(5)
    assert filled.count(OLD) == Count(40, 40)


def test_a_place_with_rows_is_refused_and_other_galleries_are_left_alone(filled: Engine, place):
    name, where = place
    if where.address:
        with pytest.raises(UserError, match="already"):
            open_engine(name, where).create()
    other = open_engine(name, replace(where, folder=where.folder / "b", name=f"{where.name}_2"))
    other.create()
    other.destroy()
    other.close()
    assert filled.count(OLD) == Count(40, 40)


def test_a_row_of_a_newer_kind_supersedes_the_older_one(filled: Engine):
    filled.add_kind(NEW, 8)
    filled.write(NEW, some_rows(NEW, IDS[:15], step=3, seed=7), supersedes=[OLD])
    assert filled.count(OLD) == Count(40, 25)
    assert filled.count(NEW) == Count(15, 15)
    query = random_vectors(1, seed=2)
    assert sorted(ids_found(filled, query, Search(40, {}))) == sorted(IDS[15:])
    every = ids_found(filled, query, Search(40, {}, with_superseded=True))
    assert every == nearest(some_rows(OLD, IDS), query[0], 40)
    assert filled.read(OLD, ["a0", "d9"]).superseded.tolist() == [3, 0]
    assert changed_rows(OLD, filled.read(OLD, ["a0"])) == []


def test_undo_brings_back_what_was_there(filled: Engine):
    before = everything(filled, OLD)
    filled.add_kind(NEW, 8)
    filled.write(NEW, some_rows(NEW, ["x1"], step=2))
    filled.write(NEW, some_rows(NEW, IDS[:15], step=3, seed=7), supersedes=[OLD])
    filled.write(NEW, some_rows(NEW, IDS[15:20], step=4, seed=8), supersedes=[OLD])
    filled.undo(3)
    filled.undo(3)
    assert filled.count(OLD) == Count(40, 35)
    assert sorted(everything(filled, NEW)) == sorted(["x1", *IDS[15:20]])
    filled.undo(4)
    assert filled.count(OLD) == Count(40, 40)
    assert everything(filled, OLD) == before
    assert sorted(everything(filled, NEW)) == ["x1"]
    query = random_vectors(1, seed=2)
    found = ids_found(filled, query, Search(40, {}))
    assert found == nearest(some_rows(OLD, IDS), query[0], 40)


def test_has_live_sees_rows_that_are_not_superseded(filled: Engine):
    filled.add_kind(NEW, 8)
    assert filled.has_live(OLD)
    assert not filled.has_live(NEW)
    filled.supersede(OLD, IDS, 2)
    assert not filled.has_live(OLD)
    filled.undo(2)
    assert filled.has_live(OLD)


def test_a_mark_is_not_replaced_by_a_later_one(filled: Engine):
    filled.supersede(OLD, ["a0", "a1"], 5)
    filled.supersede(OLD, ["a1", "a2"], 6)
    assert filled.read(OLD, ["a0", "a1", "a2"]).superseded.tolist() == [5, 5, 6]
    assert filled.count(OLD) == Count(40, 37)


def test_deleted_rows_are_gone(filled: Engine):
    filled.delete(OLD, ["a0", "b3", "nobody"])
    filled.delete(OLD, ["a0"])
    assert filled.count(OLD) == Count(38, 38)
    assert filled.read(OLD, ["a0", "b3"]).ids == ()
    assert {"a0", "b3"}.isdisjoint(ids_found(filled, random_vectors(1), Search(40, {})))
    filled.supersede(OLD, ["a1", "a2"], 7)
    assert filled.delete_superseded(OLD) == 2
    assert filled.delete_superseded(OLD) == 0
    assert filled.count(OLD) == Count(36, 36)


def test_approximate_search_finds_nearly_all_while_rows_change(engine: Engine):
    ids = [f"r{i:04}" for i in range(600)]
    keep(engine, some_rows(OLD, ids, dim=16))
    assert not engine.has_index(OLD)
    engine.build_index(OLD)
    assert engine.has_index(OLD)
    queries = random_vectors(20, 16, seed=4)

    def recall() -> float:
        exact = engine.search(OLD, queries, Search(10, {}))
        near = engine.search(OLD, queries, Search(10, {}, approximate=True))
        pairs = zip(exact, near, strict=True)
        shared = [{h.id for h in one} & {h.id for h in other} for one, other in pairs]
        return sum(map(len, shared)) / (10 * len(queries))

    assert recall() > 0.95
    engine.write(OLD, some_rows(OLD, ids[:50], dim=16, seed=11, step=2))
    engine.delete(OLD, ids[100:150])
    engine.supersede(OLD, ids[200:300], 3)
    assert recall() > 0.9
    engine.build_index(OLD)
    assert recall() > 0.95


def test_approximate_search_finds_superseded_rows_too_if_asked_to(filled: Engine):
    filled.supersede(OLD, IDS[:20], 3)
    filled.build_index(OLD)
    query = random_vectors(1, seed=2)
    search = Search(10, {}, approximate=True, with_superseded=True)
    assert ids_found(filled, query, search) == nearest(some_rows(OLD, IDS), query[0], 10)


def test_a_sound_database_reports_no_problem_and_destroy_leaves_nothing(filled: Engine):
    assert filled.problems() == []
    for _ in range(2):  # as after a kill
        filled.destroy()
    filled.create()
    assert filled.kinds() == {}


@pytest.mark.parametrize(
    ("name", "address", "message"),
    [
        ("oracle", "", ", ".join(ENGINES)),
        ("milvus", "", r"needs an address \(at\)"),
        ("embedded", "http://localhost:1", r"takes no address \(at\)"),
    ],
)
def test_an_engine_has_a_known_name_and_a_server_an_address(tmp_path, name, address, message):
    with pytest.raises(UserError, match=message):
        open_engine(name, Place(tmp_path, "g", address))


# Names within a database, and addresses without passwords.

PLACES = ["g", "g_kinds", "G", "x" * 80, "x" * 81]


def names_of(name, tmp_path):
    place = Place(tmp_path, name)
    return {place.registry, place.table(OLD), place.table(NEW)}


def test_names_differ_and_fit_into_postgresql_with_a_word_to_spare(tmp_path):
    names = {name: names_of(name, tmp_path) for name in PLACES}
    assert len(set.union(*names.values())) == 3 * len(PLACES)
    assert len({lock_number(Place(tmp_path, name)) for name in PLACES}) == len(PLACES)
    for name, given in names.items():
        for one in given:
            assert len(one) + len("_hnsw_new") <= 63
            assert one.startswith(Place(tmp_path, name).stem)


@pytest.mark.parametrize(
    ("address", "secret"),
    [
        ("http://host:19530", None),
        ("http://me:hidden@host:19530/db", "me:hidden"),
        ("http://hidden@host", "hidden"),
        ("unix:/tmp/a@b", None),
    ],
)
def test_secrets_in_addresses_are_refused_and_not_shown(address, secret):
    assert secret_of_url(address) == secret
    if secret is None:
        refuse_secret(address, secret, "set X")
        return
    with pytest.raises(UserError, match="contains a password; leave it out and set X") as caught:
        refuse_secret(address, secret, "set X")
    assert "hidden" not in str(caught.value)

from dataclasses import replace

import numpy as np
import pytest

from tests.gallery.toys import NEW, OLD, toy_certificate, toy_images, written
from unibct.embedders.table import Opening
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.folder import Embeddings
from unibct.errors import UserError
from unibct.gallery.engines.engine import Search
from unibct.gallery.gallery import Gallery
from unibct.gallery.gate import ask, known_queries
from unibct.gallery.row_gate import RowGate
from unibct.gallery.rows import sealed_rows


def apart(images):
    """The images, each with a label of its own: the only mate of a query is its row."""
    return replace(images, labels=np.arange(len(images.ids)), class_names=images.ids)


def embeddings(images, model=OLD):
    return embed_images(Opening().open(model), images)


def copies_of_known_rows(gallery, count, model=OLD):
    """Rows of the images of known queries, with other ids and no label."""
    rows = embeddings(toy_images(), model)
    ids = [query.id for query in known_queries(gallery.folder.path)]
    places = [rows.ids.index(row_id) for row_id in ids for _ in range(count)]
    copies = tuple(f"copy {number}" for number in range(len(places)))
    return unlabelled(np.asarray(rows.vectors)[places], copies, rows.fingerprint)


def unlabelled(vectors, ids, fingerprint):
    return Embeddings(vectors, ids, np.full(len(ids), -1), (), fingerprint)


@pytest.fixture
def nobody_searches(toy_gallery, monkeypatch):
    """No search through the gallery works."""
    monkeypatch.setattr(toy_gallery.folder.engine, "search", lambda *_: 1 / 0)


@pytest.mark.usefixtures("nobody_searches")
def test_a_row_below_those_of_known_queries_needs_no_search(toy_gallery):
    known = {query.id for query in known_queries(toy_gallery.folder.path)}
    stranger = next(row_id for row_id in toy_images().ids if row_id not in known)
    assert toy_gallery.remove([stranger]) == 1
    assert toy_gallery.add(toy_images(per_class=1, first=30)).added == 6
    assert toy_gallery.verify() == []


@pytest.mark.usefixtures("nobody_searches")
def test_a_row_as_near_as_that_of_a_known_query_needs_one(toy_gallery):
    with pytest.raises(ZeroDivisionError):
        toy_gallery.add(copies_of_known_rows(toy_gallery, 1))
    with pytest.raises(ZeroDivisionError):
        toy_gallery.remove([known_queries(toy_gallery.folder.path)[0].id])


def test_queries_of_the_users_own_are_always_asked(tmp_path, monkeypatch):
    gallery = Gallery.create(tmp_path / "G", OLD, known=toy_images(per_class=1, first=70))
    gallery.add(toy_images())
    monkeypatch.setattr(gallery.folder.engine, "search", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gallery.add(toy_images(per_class=1, first=30))


@pytest.fixture
def mixed(tmp_path):
    """Old rows, each with a label of its own, searched by a new model."""
    gallery = Gallery.create(tmp_path / "G", OLD)
    gallery.add(apart(toy_images()))
    opening = gallery.folder.opening
    old, new = (opening.open(model).fingerprint for model in (OLD, NEW))
    scale = {"kind": "standardised", "slope": 0.9, "shift": 0.05}
    certificate = toy_certificate(old, new, calibration={"choice": scale})
    gallery.upgrade(NEW, [written(certificate, tmp_path)])
    return gallery


def test_rows_that_hide_the_mates_of_known_queries_are_taken_back(mixed):
    before = ask(mixed.folder)
    with pytest.raises(UserError, match=r"adding .* was undone: \d+ of \d+ known queries"):
        mixed.add(copies_of_known_rows(mixed, 11, NEW))
    assert mixed.status().as_json()["rows"] == 48
    assert mixed.folder.state.steps[-1].undone
    assert ask(mixed.folder) == before


def test_the_answer_before_the_step_is_taken_before_the_first_row_that_matters(mixed, monkeypatch):
    """Earlier batches of the step may be written by then: they have changed nothing."""
    new = mixed.folder.state.standing.searching
    far = -np.asarray(embeddings(toy_images(), NEW).vectors)[:6]
    near = copies_of_known_rows(mixed, 11, NEW)
    ids = (*(f"far {number}" for number in range(6)), *near.ids)
    both = unlabelled(np.concatenate([far, near.vectors]), ids, new)
    monkeypatch.setattr("unibct.gallery.adding.BATCH", 6)
    rows_then = []

    def asking(folder):
        rows_then.append(folder.engine.count(new).rows)
        return ask(folder)

    monkeypatch.setattr("unibct.gallery.row_gate.ask", asking)
    with pytest.raises(UserError, match="was undone"):
        mixed.add(both)
    assert rows_then == [6, len(ids)]
    assert list(mixed.status().live.values()) == [48, 0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_silent_gate_means_that_no_answer_has_changed(mixed, seed, monkeypatch):
    """In a gallery with rows of two models, whose scores are on different scales."""
    monkeypatch.setattr("unibct.gallery.gate._FIRST_ROWS", 1)
    folder, generator = mixed.folder, np.random.default_rng(seed)
    old, new = folder.state.makers
    more = {
        old: embeddings(toy_images(per_class=10, first=100 * seed + 50), OLD),
        new: embeddings(toy_images(per_class=10, first=100 * seed + 50, seed=seed), NEW),
    }
    silent = changed = 0
    before = ask(folder)
    for turn in range(30):
        kind = str(generator.choice([old, new]))
        place = int(generator.integers(len(more[kind].ids)))
        vectors = np.asarray(more[kind].vectors)[[place]]
        row = sealed_rows(kind, [f"row {turn}"], [None], [{}], vectors, 9)
        gate = RowGate(folder)
        gate.expect(kind, row)
        folder.engine.write(kind, row)
        folder._live = {}  # as the end of a step does
        after = ask(folder)
        silent += gate._before is None
        changed += before != after
        assert gate._before in (None, before)
        assert gate._before is not None or before == after
        before = after
    for turn in generator.permutation(30):
        for kind in (old, new):
            gate = RowGate(folder)
            gate.expect(kind, folder.engine.read(kind, [f"row {turn}"]))
            folder.engine.delete(kind, [f"row {turn}"])
            folder._live = {}
            after = ask(folder)
            changed += before != after
            assert gate._before is not None or before == after
            before = after
    assert silent > 5
    assert changed > 3


def test_rows_that_nobody_searches_do_not_matter(upgraded):
    upgraded.add(toy_images(per_class=1, first=30))
    upgraded.rollback()
    old, new = upgraded.folder.state.makers
    rows = upgraded.folder.engine.read(new, ["c0/30"])
    gate = RowGate(upgraded.folder)
    gate.expect(new, rows)
    assert gate._before is None
    assert gate.refusal("a step") is None
    assert upgraded.folder.engine.search(old, rows.vectors, Search(1, {}))[0]

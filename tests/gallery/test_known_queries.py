import itertools
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from tests.gallery.conftest import broken
from tests.gallery.toys import NEW, OLD, STRANGER, toy_certificate, toy_images, written
from tests.notes import Notes, show
from unibct.embedders import Opener
from unibct.embeddings.extraction import embed
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.gallery.engines import Search
from unibct.gallery.gallery import Gallery
from unibct.gallery.known_queries import (
    FoundMates,
    RowChangeCheck,
    drop_queries,
    found_mates,
    read_known_queries,
)
from unibct.gallery.rows import sealed_rows


def passage(asked: str, found: str) -> FoundMates:
    return FoundMates(frozenset(asked), frozenset(found))


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        (("abcdefghij", "abcdefghij"), ("abcdefghij", "abcdefghi"), True),
        (("abcdefghij", "abcdefghij"), ("abcdefghij", "abcdefgh"), False),
        (("ab", "ab"), ("ab", "a"), False),
        (("ab", ""), ("ab", ""), True),
        (("ab", "ab"), ("a", "a"), True),  # the other row cannot be asked any more
        (("ab", "ab"), ("", ""), True),
    ],
)
def test_a_tenth_of_what_was_found_may_be_lost(before, after, allowed):
    assert passage(*before).allows(passage(*after)) is allowed


def test_known_queries_are_kept_with_images_and_find_themselves(toy_gallery):
    known = read_known_queries(toy_gallery.folder.path)
    assert len(known) == 32
    assert len({query.label for query in known}) == 6
    assert all((toy_gallery.folder.path / "known" / query.image).is_file() for query in known)
    result = found_mates(toy_gallery.folder)
    assert len(result.asked_ids) == len(result.successful_ids) == 32


def test_without_images_a_new_model_cannot_be_asked(tmp_path):
    gallery = Gallery.create(tmp_path / "G", OLD, known=5, keep_images=False)
    gallery.add(toy_images())
    assert len(read_known_queries(gallery.folder.path)) == 5
    assert not list((tmp_path / "G" / "known").glob("*.png"))
    assert len(found_mates(gallery.folder).successful_ids) == 5, "by the one that embedded them"
    gallery.upgrade(NEW, force=True)
    assert not found_mates(gallery.folder).asked_ids
    gallery.rollback()
    assert len(found_mates(gallery.folder).asked_ids) == 5


def test_without_images_a_removal_that_takes_all_mates_is_undone(tmp_path):
    own = toy_images(per_class=1, first=70)
    gallery = Gallery.create(tmp_path / "G", OLD, known=own, keep_images=False)
    gallery.add(toy_images())
    with pytest.raises(UserError, match="known queries no longer find"):
        gallery.remove([row_id for row_id in toy_images().ids if row_id.startswith("c0")])
    assert sum(gallery.status().live.values()) == 48


def test_queries_of_the_users_own_find_rows_with_their_labels(tmp_path):
    own = toy_images(per_class=1, first=70)
    gallery = Gallery.create(tmp_path / "G", OLD, known=own)
    assert found_mates(gallery.folder) == FoundMates(frozenset(own.ids), frozenset())
    gallery.add(toy_images())
    assert len(read_known_queries(gallery.folder.path)) == 6
    assert found_mates(gallery.folder).successful_ids == frozenset(own.ids)
    with pytest.raises(UserError, match="known queries no longer find"):
        gallery.upgrade(STRANGER, force=True)


def test_dropped_queries_leave_nothing(toy_gallery):
    drop_queries(toy_gallery.folder, known_ids(toy_gallery)[:30])
    assert len(found_mates(toy_gallery.folder).asked_ids) == 2
    assert len(list((toy_gallery.folder.path / "known").glob("*.png"))) == 2


def test_a_wrong_model_is_stopped(toy_gallery):
    with pytest.raises(UserError, match=r"upgrade to .*stranger was undone"):
        toy_gallery.upgrade(STRANGER, force=True)


def test_images_of_new_known_queries_replace_no_others(toy_gallery):
    toy_gallery.remove(known_ids(toy_gallery)[:1])
    toy_gallery.add(toy_images(per_class=1, first=30))
    known = read_known_queries(toy_gallery.folder.path)
    assert len({query.image for query in known}) == len(known) == 32
    toy_gallery.remove([known[-1].id])
    assert len(found_mates(toy_gallery.folder).successful_ids) == 31


def test_a_kill_while_queries_are_dropped_leaves_a_gallery_that_can_be_written(toy_gallery):
    folder = toy_gallery.folder
    known = read_known_queries(folder.path)
    with broken("known_queries._write"):
        drop_queries(folder, [known[0].id])
    assert len(found_mates(folder).asked_ids) == 32, "the list is written first"
    (folder.path / "known" / known[0].image).unlink()
    assert len(found_mates(folder).asked_ids) == 31, "a missing image is no query"
    (folder.path / "known" / "9999.png").touch()
    drop_queries(folder, [known[0].id])
    assert len(list((folder.path / "known").glob("*.png"))) == 31, "what no query uses goes too"


def test_known_queries_are_asked_exactly(upgraded, monkeypatch):
    search = Mock(wraps=upgraded.folder.engine.search)
    monkeypatch.setattr(upgraded.folder.engine, "search", search)
    found_mates(upgraded.folder)
    asked = [call.args[2].approximate for call in search.call_args_list]
    assert asked
    assert not any(asked)


@pytest.mark.parametrize("why", ["no image", "no mate before", "no query"])
def test_a_step_that_no_known_query_has_tested_says_so(tmp_path, why):
    """Also if queries were asked: one that found nothing before cannot lose anything."""
    strangers = replace(toy_images(per_class=1, first=70), class_names=tuple("uvwxyz"))
    settings = {
        "no image": {"keep_images": False},
        "no mate before": {"known": strangers},
        "no query": {"known": 0},
    }[why]
    show(notes := Notes())
    gallery = Gallery.create(tmp_path / "G", OLD, **settings)
    gallery.add(toy_images())
    assert bool(found_mates(gallery.folder).asked_ids) is (why != "no query")
    assert gallery.upgrade(STRANGER, force=True).known_queries == 0
    gallery.backfill(toy_images())
    gallery.rollback()
    untested = [text for text in notes.texts if text.startswith("no known query has tested the ")]
    assert [text.split(":")[0].split()[-1] for text in untested] == ["backfill", "rollback"]


def test_a_tested_step_counts_the_queries_that_tested_it(toy_gallery):
    assert toy_gallery.upgrade(NEW, force=True).known_queries == 32


def test_a_refusal_counts_what_was_lost_of_what_can_be_asked_again():
    before, after = passage("abcdefghij", "abcdef"), passage("abcdexyz", "axyz")
    text = str(before.refusal(after, "the step"))
    assert "the step was undone: 4 of 5 known queries no longer find their mates" in text
    assert "among the first 10 rows, first 'b' (a tenth may be lost)" in text


def apart(images):
    """The images, each with a label of its own: the only mate of a query is its row."""
    return replace(images, labels=np.arange(len(images.ids)), class_names=images.ids)


def embeddings(images, model=OLD):
    return embed(Opener().open(model), images)


def copies_of_known_rows(gallery, count, model=OLD):
    """Rows of the images of known queries, with other ids and no label."""
    rows = embeddings(toy_images(), model)
    places = [rows.ids.index(row_id) for row_id in known_ids(gallery) for _ in range(count)]
    copies = tuple(f"copy {number}" for number in range(len(places)))
    return unlabelled(np.asarray(rows.vectors)[places], copies, rows.fingerprint)


def unlabelled(vectors, ids, fingerprint):
    return Embeddings(vectors, ids, np.full(len(ids), -1), (), fingerprint)


def known_ids(gallery):
    return [query.id for query in read_known_queries(gallery.folder.path)]


@pytest.fixture
def nobody_searches(toy_gallery, monkeypatch):
    """No search through the gallery works."""
    monkeypatch.setattr(toy_gallery.folder.engine, "search", lambda *_: 1 / 0)


@pytest.mark.usefixtures("nobody_searches")
def test_a_row_below_those_of_known_queries_needs_no_search(toy_gallery):
    known = known_ids(toy_gallery)
    stranger = next(row_id for row_id in toy_images().ids if row_id not in known)
    assert toy_gallery.remove([stranger]) == 1
    assert toy_gallery.add(toy_images(per_class=1, first=30)).added == 6
    assert toy_gallery.verify() == []


@pytest.mark.usefixtures("nobody_searches")
def test_a_row_as_near_as_that_of_a_known_query_needs_one(toy_gallery):
    with pytest.raises(ZeroDivisionError):
        toy_gallery.add(copies_of_known_rows(toy_gallery, 1))
    with pytest.raises(ZeroDivisionError):
        toy_gallery.remove(known_ids(toy_gallery)[:1])


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
    opener = gallery.folder.opener
    old, new = (opener.open(model).fingerprint for model in (OLD, NEW))
    scale = {"kind": "standardised", "slope": 0.9, "shift": 0.05}
    certificate = toy_certificate(old, new, calibration={"choice": scale})
    gallery.upgrade(NEW, [written(certificate, tmp_path)])
    return gallery


def test_rows_that_hide_the_mates_of_known_queries_are_taken_back(mixed):
    before = found_mates(mixed.folder)
    with pytest.raises(UserError, match=r"adding .* was undone: \d+ of \d+ known queries"):
        mixed.add(copies_of_known_rows(mixed, 11, NEW))
    assert mixed.status().as_json()["rows"] == 48
    assert mixed.folder.state.steps[-1].undone
    assert found_mates(mixed.folder) == before


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
        return found_mates(folder)

    monkeypatch.setattr("unibct.gallery.known_queries.found_mates", asking)
    with pytest.raises(UserError, match="was undone"):
        mixed.add(both)
    assert rows_then == [6, len(ids)]
    assert list(mixed.status().live.values()) == [48, 0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_silent_gate_means_that_no_answer_has_changed(mixed, seed, monkeypatch):
    """In a gallery with rows of two models, whose scores are on different scales."""
    monkeypatch.setattr("unibct.gallery.known_queries._FIRST_ROWS", 1)
    folder, generator = mixed.folder, np.random.default_rng(seed)
    old, new = folder.state.kinds
    more = {
        old: embeddings(toy_images(per_class=10, first=100 * seed + 50), OLD),
        new: embeddings(toy_images(per_class=10, first=100 * seed + 50, seed=seed), NEW),
    }
    silent = changed = 0
    before = found_mates(folder)
    for turn in range(30):
        kind = str(generator.choice([old, new]))
        place = int(generator.integers(len(more[kind].ids)))
        vectors = np.asarray(more[kind].vectors)[[place]]
        row = sealed_rows(kind, [f"row {turn}"], [None], [{}], vectors, 9)
        gate = RowChangeCheck(folder)
        gate.expect(kind, row)
        folder.engine.write(kind, row)
        folder._live = {}  # as the end of a step does
        after = found_mates(folder)
        silent += gate._before is None
        changed += before != after
        assert gate._before in (None, before)
        assert gate._before is not None or before == after
        before = after
    for turn, kind in itertools.product(generator.permutation(30), (old, new)):
        gate = RowChangeCheck(folder)
        gate.expect(kind, folder.engine.read(kind, [f"row {turn}"]))
        folder.engine.delete(kind, [f"row {turn}"])
        folder._live = {}
        after = found_mates(folder)
        changed += before != after
        assert gate._before is not None or before == after
        before = after
    assert silent > 5
    assert changed > 3


def test_rows_that_nobody_searches_do_not_matter(upgraded):
    upgraded.add(toy_images(per_class=1, first=30))
    upgraded.rollback()
    old, new = upgraded.folder.state.kinds
    rows = upgraded.folder.engine.read(new, ["c0/30"])
    gate = RowChangeCheck(upgraded.folder)
    gate.expect(new, rows)
    assert gate._before is None
    assert gate.refusal("a step") is None
    assert upgraded.folder.engine.search(old, rows.vectors, Search(1, {}))[0]

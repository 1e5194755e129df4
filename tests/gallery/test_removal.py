import pytest

from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.gate import Passage, ask, known_queries


def test_removing_forgets_known_queries_of_the_rows(toy_gallery):
    known = [query.id for query in known_queries(toy_gallery.folder.path)]
    toy_gallery.remove(known[:2])
    left = {query.id for query in known_queries(toy_gallery.folder.path)}
    assert left == set(known[2:])
    assert toy_gallery.add(toy_images()).added == 2


def test_an_id_that_is_given_twice_counts_once(toy_gallery):
    assert toy_gallery.remove(["c0/0", "c0/0"]) == 1
    assert toy_gallery.folder.state.steps[-1].details["rows"] == 1


def test_a_removal_does_not_look_through_the_whole_gallery(toy_gallery, monkeypatch):
    monkeypatch.setattr(toy_gallery.folder.engine, "scan", lambda *_, **__: 1 / 0)
    assert toy_gallery.remove(["c0/0", "c1/1"]) == 2
    assert toy_gallery.status().as_json()["rows"] == 46


def test_a_text_is_no_list_of_ids(upgraded):
    for change in (upgraded.remove, lambda ids: upgraded.backfill(toy_images(), ids=ids)):
        with pytest.raises(UserError, match=r"give a list of ids, such as \['12'\]"):
            change("12")


def test_an_unknown_id_removes_nothing(toy_gallery):
    with pytest.raises(UserError, match="1 of 2 ids are no rows of this gallery, first 'nobody'"):
        toy_gallery.remove(["c0/0", "nobody"])
    assert toy_gallery.status().as_json()["rows"] == 48


def test_a_refused_removal_keeps_rows_and_known_queries(toy_gallery, monkeypatch):
    known = known_queries(toy_gallery.folder.path)
    passages = iter([ask(toy_gallery.folder), Passage(frozenset({known[5].id}), frozenset())])
    monkeypatch.setattr("unibct.gallery.row_gate.ask", lambda _: next(passages))
    with pytest.raises(UserError, match="the removal was undone"):
        toy_gallery.remove([known[0].id])
    assert known_queries(toy_gallery.folder.path) == known
    assert toy_gallery.status().as_json()["rows"] == 48


def test_a_removal_that_was_killed_after_the_gate_forgets_known_queries_too(
    toy_gallery, monkeypatch
):
    known = known_queries(toy_gallery.folder.path)
    monkeypatch.setattr("unibct.gallery.removal.complete_removal", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        toy_gallery.remove([known[0].id])
    toy_gallery.add(toy_images(per_class=1, first=30, classes=1))
    assert known[0].id not in {query.id for query in known_queries(toy_gallery.folder.path)}
    assert toy_gallery.verify() == []


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [0, 1])
def test_a_removal_that_is_killed_while_it_deletes_leaves_no_vector(upgraded, monkeypatch, deleted):
    """The row was made again by the earlier model: the newer vector is replaced, not searched."""
    upgraded.add(toy_images(per_class=1, first=20))
    upgraded.rollback(data=toy_images(per_class=1, first=20))
    engine = upgraded.folder.engine
    delete, calls = engine.delete, []

    def killed(*arguments):
        if len(calls) == deleted:
            raise KeyboardInterrupt
        calls.append(arguments)
        delete(*arguments)

    monkeypatch.setattr(engine, "delete", killed)
    with pytest.raises(KeyboardInterrupt):
        upgraded.remove(["c0/20"])
    monkeypatch.setattr(engine, "delete", delete)
    upgraded.index()  # any later step that writes
    assert [len(engine.read(kind, ["c0/20"])) for kind in engine.kinds()] == [0, 0]
    assert upgraded.verify() == []

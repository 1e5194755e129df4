from dataclasses import replace

import pytest

from tests.gallery.toys import NEW, OLD, STRANGER, toy_images
from tests.notes import Notes
from unibct.errors import UserError
from unibct.gallery.gallery import Gallery
from unibct.gallery.gate import Passage, ask, drop_queries, known_queries


def passage(asked: str, found: str) -> Passage:
    return Passage(frozenset(asked), frozenset(found))


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
    known = known_queries(toy_gallery.folder.path)
    assert len(known) == 32
    assert len({query.label for query in known}) == 6
    assert all((toy_gallery.folder.path / "known" / query.image).is_file() for query in known)
    result = ask(toy_gallery.folder)
    assert len(result.asked_ids) == len(result.successful_ids) == 32


def test_without_images_a_new_model_cannot_be_asked(tmp_path):
    gallery = Gallery.create(tmp_path / "G", OLD, known=5, keep_images=False)
    gallery.add(toy_images())
    assert len(known_queries(gallery.folder.path)) == 5
    assert not list((tmp_path / "G" / "known").glob("*.png"))
    assert len(ask(gallery.folder).successful_ids) == 5, "but the one that embedded them can"
    gallery.upgrade(NEW, force=True)
    assert not ask(gallery.folder).asked_ids
    gallery.rollback()
    assert len(ask(gallery.folder).asked_ids) == 5


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
    assert ask(gallery.folder) == Passage(frozenset(own.ids), frozenset())
    gallery.add(toy_images())
    assert len(known_queries(gallery.folder.path)) == 6
    assert ask(gallery.folder).successful_ids == frozenset(own.ids)
    with pytest.raises(UserError, match="known queries no longer find"):
        gallery.upgrade(STRANGER, force=True)


def test_dropped_queries_leave_nothing(toy_gallery):
    ids = [query.id for query in known_queries(toy_gallery.folder.path)]
    drop_queries(toy_gallery.folder, ids[:30])
    assert len(ask(toy_gallery.folder).asked_ids) == 2
    assert len(list((toy_gallery.folder.path / "known").glob("*.png"))) == 2


def test_a_wrong_model_is_stopped(toy_gallery):
    with pytest.raises(UserError, match=r"upgrade to .*stranger was undone"):
        toy_gallery.upgrade(STRANGER, force=True)


def test_images_of_new_known_queries_replace_no_others(toy_gallery):
    first = known_queries(toy_gallery.folder.path)[0].id
    toy_gallery.remove([first])
    toy_gallery.add(toy_images(per_class=1, first=30))
    known = known_queries(toy_gallery.folder.path)
    assert len({query.image for query in known}) == len(known) == 32
    toy_gallery.remove([known[-1].id])
    assert len(ask(toy_gallery.folder).successful_ids) == 31


def test_a_kill_while_queries_are_dropped_leaves_a_gallery_that_can_be_written(
    toy_gallery, monkeypatch
):
    folder = toy_gallery.folder
    known = known_queries(folder.path)
    monkeypatch.setattr("unibct.gallery.gate._write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        drop_queries(folder, [known[0].id])
    assert len(ask(folder).asked_ids) == 32, "the list is written first"
    monkeypatch.undo()
    (folder.path / "known" / known[0].image).unlink()
    assert len(ask(folder).asked_ids) == 31, "a missing image is no query"
    (folder.path / "known" / "9999.png").touch()
    drop_queries(folder, [known[0].id])
    assert len(list((folder.path / "known").glob("*.png"))) == 31, "what no query uses goes too"


def test_known_queries_are_asked_exactly(upgraded, monkeypatch):
    asked = []
    engine = upgraded.folder.engine
    search = engine.search

    def watched(kind, queries, request):
        asked.append(request.approximate)
        return search(kind, queries, request)

    monkeypatch.setattr(engine, "search", watched)
    ask(upgraded.folder)
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
    notes = Notes()
    gallery = Gallery.create(tmp_path / "G", OLD, progress=notes, **settings)
    gallery.add(toy_images())
    assert bool(ask(gallery.folder).asked_ids) is (why != "no query")
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

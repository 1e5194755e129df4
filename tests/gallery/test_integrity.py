import sqlite3

import pytest

from tests.gallery.toys import PauseAfterABatch, toy_images
from unibct.errors import UserError
from unibct.gallery.gallery import Gallery


def damaged(gallery, sql, *values):
    gallery.close()
    with sqlite3.connect(gallery.folder.path / "rows.sqlite") as database:
        database.execute(sql, values)
    return Gallery(gallery.folder.path).verify()


def test_a_sound_gallery_has_no_problem(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    assert upgraded.verify() == []


def test_a_changed_byte_of_a_vector_is_found(toy_gallery):
    sql = (
        "UPDATE rows SET vector = CAST(zeroblob(1) || substr(vector, 2) AS BLOB) WHERE id = 'c1/1'"
    )
    problems = damaged(toy_gallery, sql)
    assert len(problems) == 1
    assert "'c1/1'" in problems[0]


def test_a_changed_label_is_found(toy_gallery):
    problems = damaged(toy_gallery, "UPDATE rows SET label = 'c9' WHERE id = 'c1/1'")
    assert "1 rows" in problems[0]
    assert "'c1/1'" in problems[0]


def test_a_row_that_vanished_is_found(toy_gallery):
    problems = damaged(toy_gallery, "DELETE FROM rows WHERE id = 'c1/1'")
    assert "has 47 rows, 47 of them searched; after step 2 there were 48 and 48" in problems[0]


def test_rows_that_come_during_the_check_are_no_problem(toy_gallery, monkeypatch):
    engine, other = toy_gallery.folder.engine, Gallery(toy_gallery.folder.path)
    scan = engine.scan

    def slow_scan(kind):
        yield from scan(kind)
        other.add(toy_images(per_class=1, first=20))

    monkeypatch.setattr(engine, "scan", slow_scan)
    assert toy_gallery.verify() == []


def test_a_backfill_that_ends_after_a_later_step_is_no_problem(upgraded, monkeypatch):
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 12)
    with monkeypatch.context() as patch:
        patch.setattr(upgraded.folder, "progress", PauseAfterABatch(upgraded.folder))
        assert upgraded.backfill(toy_images()).paused
    upgraded.add(toy_images(per_class=1, first=20))
    upgraded.backfill(toy_images())
    assert upgraded.verify() == []
    kind = upgraded.folder.state.standing.searching
    upgraded.folder.engine.delete(kind, ["c0/20"])
    assert "after step 4 there were 54 and 54" in upgraded.verify()[0]


def test_a_changed_mark_is_found(toy_gallery):
    problems = damaged(toy_gallery, "UPDATE rows SET superseded = 7 WHERE id = 'c1/1'")
    assert "48 rows, 47 of them searched" in problems[0]


def test_a_changed_byte_of_the_database_file_is_found(toy_gallery):
    toy_gallery.close()
    path = toy_gallery.folder.path / "rows.sqlite"
    content = bytearray(path.read_bytes())
    place = content.index(b"c1/1")
    content[place] ^= 0x55
    path.write_bytes(bytes(content))
    assert Gallery(toy_gallery.folder.path).verify() != []


def test_a_changed_certificate_is_found(upgraded):
    paper = next((upgraded.folder.path / "certificates").iterdir())
    paper.write_text(paper.read_text().replace('"toys"', '"tays"'))
    assert "was changed" in Gallery(upgraded.folder.path).verify()[0]
    paper.unlink()
    assert "is missing" in Gallery(upgraded.folder.path).verify()[0]


def test_a_damaged_image_of_a_known_query_is_named(toy_gallery):
    image = next(iter((toy_gallery.folder.path / "known").glob("*.png")))
    image.write_bytes(image.read_bytes()[:40])
    assert [str(image) in line for line in toy_gallery.verify()] == [True]
    with pytest.raises(UserError, match=rf"{image.name} is damaged .* remove it"):
        toy_gallery.add(toy_images(per_class=1, first=20))
    image.unlink()
    assert toy_gallery.add(toy_images(per_class=1, first=20)).added == 6
    assert toy_gallery.verify() == []

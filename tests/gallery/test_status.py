import json
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from tests.gallery.toys import NEW, NEWEST, OLD, PauseAfterABatch, toy_images
from tests.notes import Notes, show
from unibct import progress
from unibct.embedders import Opener
from unibct.errors import UserError
from unibct.gallery.gallery import Gallery
from unibct.gallery.known_queries import found_mates, read_known_queries
from unibct.gallery.status import Savings, duration, embedding_rate


def test_cost_is_rows_by_rate():
    savings = Savings(1000, 50.0)
    assert savings.seconds == 20
    assert Savings(1000, None).seconds is None
    assert all(words in savings.summary() for words in ("1,000 rows", "20 s"))
    assert "no rows" in Savings(0, 50.0).summary()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "less than a second"),
        (90, "90 s"),
        (600, "10 min"),
        (9000, "2 h"),
        (864_000, "10 days"),
    ],
)
def test_time_spans_in_words(seconds, text):
    assert duration(seconds) == text


def test_the_rate_counts_images(monkeypatch):
    monkeypatch.setattr("unibct.gallery.status._SECONDS", 0.3)
    ticks = iter([0.0, 0.2, 0.5])
    monkeypatch.setattr("unibct.gallery.status.perf_counter", lambda: next(ticks))
    assert embedding_rate(Opener().open(OLD)) == pytest.approx(2 * 64 / 0.5)


def test_the_keys_that_machines_rely_on(upgraded):
    upgraded.backfill(toy_images(), share=0.25)
    status = upgraded.status().as_json()
    old, new = status["models"]
    assert status["rows"] == 48
    assert status["models"] == {old: 36, new: 12}
    assert status["searching"] == new
    assert status["replaced"] == {old: 12}
    assert status["row_types"] == {old: "older", new: "own"}
    assert status["savings"]["rows"] == 36
    assert status["savings"]["seconds"] == 36 / status["savings"]["images_per_second"]
    assert [step["action"] for step in status["steps"]] == ["create", "add", "upgrade", "backfill"]
    assert status["known_queries"] == 32


def test_rows_of_a_newer_model_are_not_searched_after_a_rollback(upgraded):
    upgraded.add(toy_images(per_class=1, first=30))
    upgraded.rollback()
    status = upgraded.status().as_json()
    assert status["unsearchable"] == 6
    assert list(status["row_types"].values()) == ["own", "not searched"]


def damaged(gallery, sql):
    gallery.close()
    with sqlite3.connect(gallery.folder.path / "rows.sqlite") as database:
        database.execute(sql)
    return Gallery(gallery.folder.path).verify()


def test_a_sound_gallery_has_no_problem(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    assert upgraded.verify() == []


def test_a_changed_byte_of_a_vector_is_found(toy_gallery):
    vector = "CAST(zeroblob(1) || substr(vector, 2) AS BLOB)"
    (problem,) = damaged(toy_gallery, f"UPDATE rows SET vector = {vector} WHERE id = 'c1/1'")
    assert "'c1/1'" in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE rows SET label = 'c9'", ["1 rows", "'c1/1'"]),
        (
            "DELETE FROM rows",
            ["has 47 rows, 47 of them searched; after step 2 there were 48 and 48"],
        ),
        ("UPDATE rows SET superseded = 7", ["48 rows, 47 of them searched"]),
    ],
)
def test_a_changed_or_vanished_row_is_found(toy_gallery, change, words):
    problem = damaged(toy_gallery, f"{change} WHERE id = 'c1/1'")[0]
    assert all(word in problem for word in words)


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
    with progress.shown(PauseAfterABatch(upgraded.folder)):
        assert upgraded.backfill(toy_images()).paused
    upgraded.add(toy_images(per_class=1, first=20))
    upgraded.backfill(toy_images())
    assert upgraded.verify() == []
    kind = upgraded.folder.state.standing.searching
    upgraded.folder.engine.delete(kind, ["c0/20"])
    assert "after step 4 there were 54 and 54" in upgraded.verify()[0]


def test_a_changed_byte_of_the_database_file_is_found(toy_gallery):
    toy_gallery.close()
    path = toy_gallery.folder.path / "rows.sqlite"
    path.write_bytes(path.read_bytes().replace(b"c1/1", b"61/1", 1))
    assert Gallery(toy_gallery.folder.path).verify() != []


def test_a_changed_certificate_is_found(upgraded):
    certificate = next((upgraded.folder.path / "certificates").iterdir())
    certificate.write_text(certificate.read_text().replace('"toys"', '"tays"'))
    assert "was changed" in Gallery(upgraded.folder.path).verify()[0]
    certificate.unlink()
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


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwritten(path):
    path.write_bytes(b"\0" * path.stat().st_size)


DAMAGE = pytest.mark.parametrize("damage", [truncated, overwritten])


@pytest.fixture
def without_images(tmp_path):
    gallery = Gallery.create(tmp_path / "G", OLD, known=5, keep_images=False)
    gallery.add(toy_images())
    return gallery


@DAMAGE
@pytest.mark.parametrize("name", ["npy", "json"])
def test_damaged_vectors_of_known_queries_are_named_and_made_again_from_their_rows(
    without_images, damage, name
):
    known = without_images.folder.path / "known"
    path = next(path for path in known.glob(f"*.{name}") if path.name != "queries.json")
    vectors = next(known.glob("*.npy"))
    whole = np.load(vectors)
    damage(path)
    (problem,) = without_images.verify()
    assert str(vectors.with_suffix("")) in problem
    show(notes := Notes())
    gallery = Gallery(without_images.folder.path)
    assert gallery.add(toy_images(per_class=1, first=20)).added == 6
    assert [str(vectors.with_suffix("")) in text for text in notes.texts] == [True]
    assert gallery.verify() == []
    np.testing.assert_allclose(sorted(np.load(vectors).tolist()), sorted(whole.tolist()))
    assert len(found_mates(gallery.folder).successful_ids) == 5


@DAMAGE
def test_damaged_vectors_of_your_own_queries_are_refused_with_what_to_do(tmp_path, damage):
    own = toy_images(per_class=1, first=70)
    gallery = Gallery.create(tmp_path / "G", OLD, known=own, keep_images=False)
    gallery.add(toy_images())
    path = next((tmp_path / "G" / "known").glob("*.npy"))
    damage(path)
    assert [str(path) in line for line in gallery.verify()] == [True]
    for step, rows in (
        (gallery.add, toy_images(per_class=1, first=20)),
        (gallery.remove, ["c0/0"]),
    ):
        with pytest.raises(UserError, match=rf"{path.name} .*put it back .* or remove it"):
            step(rows)
    path.unlink()
    assert gallery.add(toy_images(per_class=1, first=20)).added == 6
    assert gallery.verify() == []


def test_a_removal_deletes_damaged_vectors_of_a_model_that_does_not_search(without_images):
    without_images.upgrade(NEW, force=True)
    path = next((without_images.folder.path / "known").glob("*.npy"))
    first = read_known_queries(without_images.folder.path)[0].id
    overwritten(path)
    assert without_images.remove([first]) == 1
    assert first not in json.loads(path.with_suffix(".json").read_text())
    assert without_images.verify() == []


@DAMAGE
def test_a_damaged_list_of_known_queries_is_named_with_what_to_do(toy_gallery, damage):
    path = toy_gallery.folder.path / "known" / "queries.json"
    damage(path)
    assert [str(path) in line for line in toy_gallery.verify()] == [True]
    with pytest.raises(UserError, match=r"queries\.json .*put it back .* or remove it"):
        toy_gallery.add(toy_images(per_class=1, first=20))
    path.unlink()
    toy_gallery.add(toy_images(per_class=1, first=20))
    assert toy_gallery.verify() == []
    assert len(found_mates(toy_gallery.folder).successful_ids) == 6


@DAMAGE
@pytest.mark.parametrize("suffix", ["faiss", "npz"])
def test_a_damaged_index_is_named_and_searches_go_without_it(toy_gallery, damage, suffix):
    toy_gallery.index()
    toy_gallery.close()
    damage(toy_gallery.folder.path / f"index-1.{suffix}")
    gallery = Gallery(toy_gallery.folder.path)
    (problem,) = gallery.verify()
    assert "index-1.faiss" in problem
    assert "unibct gallery index" in problem
    queries = toy_images(per_class=1, first=50)
    near, exact = (
        [answer.hits for answer in gallery.search(queries, k=3, approximate=given)]
        for given in (True, False)
    )
    assert near == exact
    gallery.index()
    assert gallery.verify() == []


def test_everything_that_is_damaged_is_named_at_once(upgraded):
    """A certificate that only a rollback needs, a model that is elsewhere, counts of searches."""
    upgraded.search(toy_images(per_class=1), k=3, remember=True)
    upgraded.upgrade(NEWEST, force=True)
    folder = upgraded.folder.path
    (certificate,) = (folder / "certificates").iterdir()
    certificate.unlink()
    overwritten(folder / "asked.sqlite")
    known = next((folder / "known").glob("*.png"))
    overwritten(known)
    with upgraded.folder.writing():
        state = upgraded.folder.state
        searching = replace(state.searching, reference="python:tests.gallery.toys:nobody")
        makers = state.kinds | {searching.fingerprint: searching}
        upgraded.folder.save(replace(state, kinds=makers))
    upgraded.close()
    for damage in (f"certificate {certificate.stem} is missing", "rows.sqlite is not there"):
        problems = "\n".join(Gallery(folder).verify())
        for name in (damage, "nobody", "asked.sqlite", known.name):
            assert name in problems
        (folder / "rows.sqlite").unlink(missing_ok=True)

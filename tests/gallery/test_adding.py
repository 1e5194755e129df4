import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from tests.data.decode_counter import DecodeCounter
from tests.gallery.conftest import broken, killed
from tests.gallery.toys import NEW, OLD, skipping, toy_images, with_bad
from tests.models.cases import small_model
from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import FileSource
from unibct.data.readers import open_images
from unibct.embedders import Opener
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.gallery import adding
from unibct.gallery.gallery import Gallery
from unibct.gallery.known_queries import FoundMates, found_mates, read_known_queries
from unibct.models.model_folder import save_model


def vectors_of(images, model=OLD):
    return embed(Opener().open(model), images)


def test_an_id_with_another_image_label_or_metadata_is_refused(toy_gallery, tmp_path):
    with pytest.raises(UserError, match="'c0/0' is in the gallery with another image"):
        toy_gallery.add(toy_images(seed=1))
    other_names = tuple(f"d{i}" for i in range(6))
    with pytest.raises(UserError, match=r"'c0/0'.*the label 'c0', not 'd0'"):
        toy_gallery.add(replace(toy_images(), class_names=other_names))
    (tmp_path / "m.csv").write_text("id,colour\nc0/0,red\n")
    with pytest.raises(UserError, match=r"'c0/0'.*other metadata"):
        toy_gallery.add(toy_images(), metadata=tmp_path / "m.csv")
    assert toy_gallery.status().as_json()["rows"] == 48


def test_embeddings_and_images_of_the_same_rows_are_the_same(toy_gallery):
    assert toy_gallery.add(vectors_of(toy_images())).present == 48
    with pytest.raises(UserError, match=r"'c0/0'.*another vector"):
        toy_gallery.add(vectors_of(toy_images(seed=1)))


@pytest.mark.parametrize("value", [np.nan, 0.0, np.inf])
def test_vectors_that_no_search_can_find_are_refused_by_id(toy_gallery, value):
    good = vectors_of(toy_images(per_class=2, first=90))
    vectors = np.array(good.vectors)
    vectors[3] = value
    with pytest.raises(UserError, match="'c1/91'"):
        toy_gallery.add(good.changed(vectors=vectors, fingerprint=good.fingerprint))
    assert toy_gallery.status().as_json()["rows"] == 48


def test_embeddings_by_both_models_are_added_unless_nobody_would_find_them(upgraded):
    later = toy_images(per_class=1, first=90)
    assert upgraded.add(vectors_of(later)).added == 6, "the new model searches old rows"
    assert upgraded.add(vectors_of(toy_images(per_class=1, first=91), NEW)).added == 6
    assert list(upgraded.status().live.values()) == [54, 6]
    upgraded.remove([f"c{label}/91" for label in range(6)])
    upgraded.rollback()
    with pytest.raises(UserError, match=r"new_model, whose rows .*old_model may not search"):
        upgraded.add(vectors_of(toy_images(per_class=1, first=95), NEW))
    assert upgraded.status().unsearchable == 0


def test_another_dimension_is_refused(toy_gallery):
    good = vectors_of(toy_images(per_class=1, first=90))
    short = good.changed(vectors=good.vectors[:, :5], fingerprint=good.fingerprint)
    with pytest.raises(UserError, match=r"dimension 5; those of .* have 12"):
        toy_gallery.add(short)


def test_a_killed_add_keeps_what_was_acknowledged_and_goes_on(tmp_path, monkeypatch):
    gallery = Gallery.create(tmp_path / "G", OLD)
    monkeypatch.setattr(adding, "BATCH", 10)
    with killed(gallery.folder.engine, after=3):
        gallery.add(toy_images())
    again = Gallery(tmp_path / "G")
    assert again.status().as_json()["rows"] == 30
    result = again.add(toy_images())
    assert (result.added, result.present) == (18, 30)
    assert again.verify() == []
    assert again.folder.state.step(2).details["interrupted"]


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_last_state_stays_readable(toy_gallery):
    """The system refuses to let files grow, as on a full disk."""
    path = toy_gallery.folder.path
    size = sum(file.stat().st_size for file in path.glob("rows.sqlite*"))
    code = f"""
        import resource, signal
        from tests.gallery.toys import toy_images
        from unibct.gallery.gallery import Gallery
        gallery = Gallery({str(path)!r})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
        try:
            gallery.add(toy_images(per_class=300, first=1000))
        except (ValueError, OSError) as error:
            print("refused", type(error).__name__, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.stdout.startswith("refused"), done.stderr
    again = Gallery(path)
    assert again.verify() == []
    assert len(again.search(toy_images(per_class=1), k=3)[0].hits) == 3
    assert again.add(toy_images(per_class=300, first=1000)).added > 0
    assert again.status().as_json()["rows"] == 48 + 1800


@pytest.mark.parametrize("encoded", [False, True])
def test_unreadable_images_are_left_out(toy_gallery, encoded, monkeypatch):
    monkeypatch.setattr(adding, "BATCH", 2)
    images = toy_images(per_class=1, first=30)
    bad = images.ids[1:4]  # a whole batch, and one more
    more = with_bad(images, *bad, encoded=encoded)
    with pytest.raises(UserError, match="skip_bad"):
        toy_gallery.add(more)
    result = toy_gallery.add(skipping(more))
    assert (result.added + result.present, result.skipped) == (3, 3)
    again = toy_gallery.add(skipping(more))
    assert (again.added, again.present, again.skipped) == (0, 3, 3)
    steps = len(toy_gallery.folder.state.steps)
    with pytest.raises(UserError, match="not one of its 1 images can be read"):
        toy_gallery.add(skipping(more).select([1]))
    assert len(toy_gallery.folder.state.steps) == steps
    assert toy_gallery.status().as_json()["rows"] == 51
    assert toy_gallery.verify() == []


def test_known_queries_are_never_unreadable(tmp_path):
    gallery = Gallery.create(tmp_path / "G", OLD, known=48)
    images = with_bad(toy_images(), "c0/0", "c3/2", encoded=True)
    assert gallery.add(skipping(images)).added == 46
    assert gallery.status().known == 46


def test_an_add_that_wrote_nothing_leaves_no_step(toy_gallery):
    state = toy_gallery.folder.state
    with pytest.raises(UserError, match="unreadable image"):
        toy_gallery.add(with_bad(toy_images(per_class=1, first=30), "c2/30", encoded=True))
    assert toy_gallery.folder.state == state
    assert toy_gallery.add(toy_images(per_class=1, first=30)).added == 6
    assert toy_gallery.folder.state.next_number == state.next_number + 1
    assert toy_gallery.verify() == []


def test_an_interrupted_add_is_not_called_a_backfill(toy_gallery):
    with killed(toy_gallery.folder.engine):
        toy_gallery.add(toy_images(per_class=1, first=30))
    assert toy_gallery.folder.state.unfinished.action == "add"
    assert toy_gallery.status().as_json()["backfill"] is None
    with pytest.raises(UserError, match=r"no backfill of .* is under way"):
        toy_gallery.pause()


def test_an_image_that_cannot_be_read_is_named(toy_gallery):
    def encoded(image_id):
        raise UnreadableImageError("No such file or directory")

    more = replace(toy_images(per_class=1, first=30), encoded=encoded)
    with pytest.raises(UserError, match=r"c0/30 cannot be read \(No such file or directory\)"):
        toy_gallery.add(more)
    assert toy_gallery.folder.state.unfinished is None


def test_removing_forgets_known_queries_of_the_rows(toy_gallery):
    known = [query.id for query in read_known_queries(toy_gallery.folder.path)]
    toy_gallery.remove(known[:2])
    left = {query.id for query in read_known_queries(toy_gallery.folder.path)}
    assert left == set(known[2:])
    assert toy_gallery.add(toy_images()).added == 2


@pytest.mark.parametrize("ids", [["c0/0", "c0/0"], ["c0/0", "c1/1"]])
def test_a_removal_counts_each_id_once_and_does_not_look_through_all(toy_gallery, monkeypatch, ids):
    monkeypatch.setattr(toy_gallery.folder.engine, "scan", lambda *_, **__: 1 / 0)
    count = len(set(ids))
    assert toy_gallery.remove(ids) == toy_gallery.folder.state.steps[-1].details["rows"] == count
    assert toy_gallery.status().as_json()["rows"] == 48 - count


def test_a_text_is_no_list_of_ids(upgraded):
    for change in (upgraded.remove, lambda ids: upgraded.backfill(toy_images(), ids=ids)):
        with pytest.raises(UserError, match=r"give a list of ids, such as \['12'\]"):
            change("12")


def test_an_unknown_id_removes_nothing(toy_gallery):
    with pytest.raises(UserError, match="1 of 2 ids are no rows of this gallery, first 'nobody'"):
        toy_gallery.remove(["c0/0", "nobody"])
    assert toy_gallery.status().as_json()["rows"] == 48


def test_a_refused_removal_keeps_rows_and_known_queries(toy_gallery, monkeypatch):
    known = read_known_queries(toy_gallery.folder.path)
    passages = iter(
        [found_mates(toy_gallery.folder), FoundMates(frozenset({known[5].id}), frozenset())]
    )
    monkeypatch.setattr("unibct.gallery.known_queries.found_mates", lambda _: next(passages))
    with pytest.raises(UserError, match="the removal was undone"):
        toy_gallery.remove([known[0].id])
    assert read_known_queries(toy_gallery.folder.path) == known
    assert toy_gallery.status().as_json()["rows"] == 48


def test_a_removal_that_was_killed_after_the_gate_forgets_known_queries_too(toy_gallery):
    known = read_known_queries(toy_gallery.folder.path)
    with broken("adding.complete_removal"):
        toy_gallery.remove([known[0].id])
    toy_gallery.add(toy_images(per_class=1, first=30, classes=1))
    assert known[0].id not in {query.id for query in read_known_queries(toy_gallery.folder.path)}
    assert toy_gallery.verify() == []


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [0, 1])
def test_a_removal_that_is_killed_while_it_deletes_leaves_no_vector(upgraded, deleted):
    """The row was made again by the earlier model: the newer vector is replaced, not searched."""
    upgraded.add(toy_images(per_class=1, first=20))
    upgraded.rollback(data=toy_images(per_class=1, first=20))
    engine = upgraded.folder.engine
    with killed(engine, "delete", after=deleted):
        upgraded.remove(["c0/20"])
    upgraded.index()  # any later step that writes
    assert [len(engine.read(kind, ["c0/20"])) for kind in engine.kinds()] == [0, 0]
    assert upgraded.verify() == []


def test_each_file_is_read_once_and_the_users_cache_gets_no_record(
    photo_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(adding, "BATCH", 40)
    reads, real = [], FileSource.__call__
    monkeypatch.setattr(FileSource, "__call__", lambda self, i: reads.append(i) or real(self, i))
    decoded, images = DecodeCounter(monkeypatch, adding), open_images(photo_folder)
    save_model(small_model(), tmp_path / "old")
    gallery = Gallery.create(tmp_path / "G", tmp_path / "old", known=0)
    reads.clear()
    assert gallery.add(images).added == len(images)
    assert (sorted(reads), decoded.taken()) == (sorted(images.ids), len(images))
    reads.clear()
    assert gallery.add(images).present == len(images)
    assert (sorted(reads), decoded.taken()) == (sorted(images.ids), 0), "they are compared"
    assert not list((tmp_path / "cache").rglob("*.json"))
    rows = gallery.folder.engine.read(gallery.folder.state.standing.searching, images.ids)
    order = [rows.ids.index(image_id) for image_id in images.ids]
    assert np.allclose(rows.vectors[order], embed(small_model(), images).vectors, atol=1e-6)
    save_model(small_model(seed=5), tmp_path / "new")
    gallery.upgrade(tmp_path / "new", force=True)
    reads.clear()
    decoded.taken()
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "another"))
    assert gallery.backfill(images).rows == len(images)
    assert (sorted(reads), decoded.taken()) == (sorted(images.ids), len(images))
    assert not list((tmp_path / "another").rglob("*.json"))

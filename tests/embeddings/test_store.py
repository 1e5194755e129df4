import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embeddings.random_embeddings import random_embeddings
from unibct.data.image_set import ImageSet
from unibct.data.training_classes import UNKNOWN_CLASSES, UNKNOWN_SOURCE, training_classes
from unibct.embeddings import store
from unibct.embeddings.store import (
    NO_CLASS,
    Embeddings,
    FileDigest,
    Shard,
    append_embeddings,
    check_file,
    file_digest,
    map_array,
    open_embeddings,
    read_text,
    save_embeddings,
    shard_files,
    shard_from_json,
    shard_is_whole,
)
from unibct.errors import UserError

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256 of "abc"


def test_names_are_numbered():
    names = [shard_files(7)[0], shard_files(12)[1], shard_files(0)[2]]
    assert names == ["vectors-000007.npy", "labels-000012.npy", "ids-000000.txt"]


def test_a_shard_is_whole_if_all_its_files_are(tmp_path):
    (tmp_path / "ids").write_text("abc")
    assert file_digest(tmp_path / "ids") == FileDigest(3, ABC)
    entry = {"first": 4, "rows": 1, "files": {"ids": {"bytes": 3, "sha256": ABC}}}
    shard = shard_from_json(entry)
    assert shard == Shard(4, 1, {"ids": FileDigest(3, ABC)})
    assert shard_is_whole(tmp_path, shard)
    (tmp_path / "ids").write_text("abd")
    assert not shard_is_whole(tmp_path, shard)
    (tmp_path / "ids").unlink()
    assert not shard_is_whole(tmp_path, shard)


def test_a_wrong_file_is_named(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(UserError, match=r"file cannot be read \(No such file"):
        check_file(path, FileDigest(3, ABC), verify=False)
    path.write_text("abd")
    check_file(path, FileDigest(3, ABC), verify=False)
    with pytest.raises(UserError, match=r"file is damaged \(its checksum differs"):
        check_file(path, FileDigest(3, ABC), verify=True)
    with pytest.raises(UserError, match="3 bytes instead of 4"):
        check_file(path, FileDigest(4, ABC), verify=False)
    with pytest.raises(UserError, match=r"not a whole .npy file.*embed the images again"):
        map_array(path, (2,), np.int64)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"cannot be read .*embed the images again"):
        read_text(path)


def test_a_mapped_array_has_the_expected_shape_and_type(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    assert map_array(tmp_path / "a.npy", (3,), np.int64).tolist() == [0, 1, 2]
    for shape, dtype in (((2,), np.int64), ((3,), np.float32)):
        with pytest.raises(UserError, match=r"int64 of shape \(3,\), but embeddings.json says"):
            map_array(tmp_path / "a.npy", shape, dtype)


@pytest.mark.slow
@given(st.lists(st.integers(-25, 24), max_size=60), st.integers(1, 30))
def test_rows_are_taken_as_numpy_takes_them(tmp_path_factory, rows, shard_rows):
    original = random_embeddings(25)
    path = tmp_path_factory.mktemp("s") / "e"
    save_embeddings(original, path, shard_rows=shard_rows)
    taken = open_embeddings(path).vectors
    wanted = np.array(rows, dtype=int)
    for index in (wanted, np.sort(wanted), rows or slice(0, 0), np.isin(np.arange(25), wanted)):
        assert np.array_equal(taken[index], original.vectors[index])
    parts = [(None,), (3, 20), (20, 3), (-8, None, 3), (None, None, -1)]
    for part in (*(slice(*part) for part in parts), -2):
        assert np.array_equal(taken[part], original.vectors[part])
    for wrong in ([25], [-26], [0.5], [[1]], [True]):
        with pytest.raises(IndexError):
            taken[wrong]


def test_rows_are_read_as_stored_into_given_memory(tmp_path):
    original = random_embeddings(25)
    save_embeddings(original, tmp_path / "e", dtype="float16", shard_rows=7)
    rows = open_embeddings(tmp_path / "e").vectors
    out = np.empty((3, 6), np.float16)
    for key in ([20, 3, 20], [5, 6, 7], [1, 9, 24]):
        assert rows.read_stored(key, out) is out
        assert np.array_equal(out, original.vectors[key].astype(np.float16))
    with pytest.raises(AssertionError):
        rows.read_stored([1, 2], out)


def test_opening_reads_nothing_but_the_description(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    with monkeypatch.context() as patch:
        for name in ("map_array", "read_text", "file_digest"):
            patch.setattr(store, name, refuse)
        opened = open_embeddings(folder, verify=False)
        assert opened.vectors.shape == (25, 6)
    assert len(opened.ids) == len(opened.labels) == 25


@pytest.mark.parametrize("name", ["vectors-000001.npy", "labels-000002.npy", "ids-000000.txt"])
def test_damage_is_found_on_opening(folder, name, monkeypatch):
    data = bytearray((folder / name).read_bytes())
    data[-2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=rf"{name} is damaged \(its checksum.*embed the images"):
        open_embeddings(folder)
    monkeypatch.setattr(store, "VERIFIED_BYTES", 100)
    open_embeddings(folder)
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(UserError, match=rf"{name} is damaged \(\d+ bytes instead of"):
        open_embeddings(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"{name} cannot be read"):
        open_embeddings(folder)


def test_damaged_classes_are_found(folder):
    (folder / "classes.txt").write_text("a\nb\nd\n")
    with pytest.raises(UserError, match=r"classes.txt is damaged"):
        open_embeddings(folder)
    (folder / "classes.txt").unlink()
    with pytest.raises(UserError, match=r"classes.txt cannot be read"):
        _ = open_embeddings(folder, verify=False).class_names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "has format 1, and this unibct reads 2; embed the images again"),
        ({"images": 7}, "says 7 images, but its shards have 25"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"shards": [3]}, "cannot be understood"),
        ({"dim": 5}, None),
    ],
)
def test_wrong_descriptions_are_named(folder, change, message):
    path = folder / "embeddings.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | change))
    if message is None:
        with pytest.raises(UserError, match=r"shape \(7, 6\), but embeddings.json says"):
            np.asarray(open_embeddings(folder).vectors)
        return
    with pytest.raises(UserError, match=message):
        open_embeddings(folder)
    del described["model"]
    path.write_text(json.dumps(described))
    with pytest.raises(UserError, match="lacks the entry 'model'"):
        open_embeddings(folder)
    path.write_text("[]")
    with pytest.raises(UserError, match="cannot be understood"):
        open_embeddings(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ids", lambda ids: ids[:2], "3 vectors and 2 ids"),
        ("labels", lambda labels: labels[:2], "3 vectors and 2 labels"),
        ("labels", lambda labels: labels + 3, "beyond the 3 class names"),
        ("vectors", lambda vectors: vectors.astype(float), "must be float32"),
    ],
)
def test_embeddings_check_themselves(name, change, message):
    original = random_embeddings(3)
    names = ("vectors", "ids", "labels", "class_names", "fingerprint")
    values = {n: getattr(original, n) for n in names}
    with pytest.raises(UserError, match=message):
        Embeddings(**values | {name: change(values[name])})


def test_ids_may_be_any_sequence():
    assert Embeddings(np.ones((1, 3), np.float32), ["a"], np.array([0]), ("x",), "m").ids == ("a",)


def test_rows_follow_the_ids(glyph_classes, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(len(glyph_classes), 6)).astype(np.float32)
    original = Embeddings(
        vectors, glyph_classes.ids, glyph_classes.labels, glyph_classes.class_names, "model"
    )
    save_embeddings(original, tmp_path / "emb")
    opened = open_embeddings(tmp_path / "emb")
    three = glyph_classes.select([50, 3, 20])
    assert np.array_equal(opened.rows_of(three), opened.vectors[[50, 3, 20]])
    fewer = original.of_images(glyph_classes.select(range(2)))
    with pytest.raises(UserError, match=r"3 images of .* have no embedding"):
        fewer.rows_of(three)


def test_a_folder_without_embeddings_is_named(folder):
    with pytest.raises(UserError, match="not an embeddings folder"):
        open_embeddings(folder.parent)


def test_folders_that_were_made_before_do_not_know_the_training_classes(folder):
    """They have no entries about it; nothing is guessed."""
    described = json.loads((folder / "embeddings.json").read_text())
    assert not {"class_source", "training_classes"} & set(described)
    opened = open_embeddings(folder)
    assert (opened.class_source, opened.training_classes) == (UNKNOWN_SOURCE, UNKNOWN_CLASSES)


def test_earlier_folders_do_not_know_what_first_weights_have_learnt(folder):
    known = training_classes(["a", "b"], None)
    embeddings = open_embeddings(folder)
    again = folder.with_name("again")
    save_embeddings(embeddings.changed(fingerprint="f", training_classes=known), again)
    assert open_embeddings(again).training_classes == known
    path = again / store.STORE_DESCRIPTION
    content = json.loads(path.read_text())
    del content["training_classes"]["choices"]
    path.write_text(json.dumps(content))
    earlier = open_embeddings(again).training_classes
    assert (earlier.digests, earlier.complete) == (known.digests, False)


def test_some_images_in_their_own_order():
    trained = training_classes(("x",), None)
    whole = random_embeddings(6, fingerprint="m", training_classes=trained)
    ids = (whole.ids[4], whole.ids[1])
    images = ImageSet("two", ids, np.array([1, 0]), ("p", "q"), read=None, class_source="file")
    chosen = whole.of_images(images)
    assert np.array_equal(chosen.vectors, whole.vectors[[4, 1]])
    assert (chosen.ids, chosen.class_names, chosen.class_source) == (ids, ("p", "q"), "file")
    assert (chosen.fingerprint, chosen.training_classes) == ("m", trained)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shard_rows", [1, 7, 25, 100])
def test_round_trip(tmp_path, dtype, shard_rows):
    original = random_embeddings(25)
    save_embeddings(original, tmp_path / "e", dtype=dtype, shard_rows=shard_rows)
    opened = open_embeddings(tmp_path / "e")
    assert len(list((tmp_path / "e").glob("vectors-*.npy"))) == -(-25 // shard_rows)
    assert opened.vectors.dtype == np.float32
    assert opened.vectors.stored_dtype == dtype
    assert np.array_equal(np.asarray(opened.vectors), original.vectors.astype(dtype))
    assert (opened.ids, opened.class_names) == (original.ids, original.class_names)
    assert np.array_equal(opened.labels, original.labels)
    assert opened.fingerprint == "model"


def test_the_training_classes_are_kept(tmp_path):
    trained = training_classes(("x", "y"), None) | training_classes(("0",), "file")
    known = random_embeddings(5, class_source="numbers", training_classes=trained)
    save_embeddings(known, tmp_path / "e")
    opened = open_embeddings(tmp_path / "e")
    assert (opened.class_source, opened.training_classes) == ("numbers", trained)
    append_embeddings(tmp_path / "e", random_embeddings(5, first=5))
    opened = open_embeddings(tmp_path / "e", verify=True)
    assert (opened.class_source, opened.training_classes) == (UNKNOWN_SOURCE, trained)
    assert "x" not in (tmp_path / "e/training_classes.txt").read_text()
    (tmp_path / "e/training_classes.txt").write_text("0" * 16 + "\n")
    with pytest.raises(UserError, match=r"training_classes.txt is damaged"):
        open_embeddings(tmp_path / "e")


def test_the_same_number_of_two_files_is_not_the_same_class(tmp_path):
    folder, names = tmp_path / "e", ("0", "1", "2")
    parts = [
        random_embeddings(5, first=5 * place, classes=names, class_source=source)
        for place, source in enumerate(("file-a", "file-a", "file-b", "file-a"))
    ]
    save_embeddings(parts[0], folder)
    append_embeddings(folder, parts[1])
    assert open_embeddings(folder).class_names == names  # one file: the same classes
    before = open_embeddings(folder)
    for part in parts[2:]:
        append_embeddings(folder, part)
    assert before.class_names == names, "the file that an earlier description names is the same"
    opened = open_embeddings(folder, verify=True)
    assert opened.class_source is None
    assert opened.class_names == tuple(f"{n} of {s}" for s in ("file-a", "file-b") for n in names)
    places = [p.labels + len(names) * (p.class_source == "file-b") for p in parts]
    assert np.array_equal(opened.labels, np.concatenate(places))


def test_training_classes_become_known_with_more_images(tmp_path):
    save_embeddings(random_embeddings(5), tmp_path / "e")
    assert not (tmp_path / "e/training_classes.txt").exists()
    trained = training_classes(("x",), None)
    append_embeddings(tmp_path / "e", random_embeddings(5, first=5, training_classes=trained))
    assert open_embeddings(tmp_path / "e").training_classes == trained


def test_nothing_is_written_over(folder):
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UserError, match="exists already"):
        save_embeddings(open_embeddings(folder), folder)
    assert sorted(folder.parent.rglob("*")) == before


def test_what_cannot_be_stored_is_named(tmp_path):
    large = Embeddings(np.full((2, 3), 1e6, np.float32), ("x", "y"), np.zeros(2, int), ("a",), "m")
    with pytest.raises(UserError, match="embedding of x is not finite as float16"):
        save_embeddings(large, tmp_path / "e", dtype="float16")
    with pytest.raises(UserError, match="unknown dtype 'int8'"):
        save_embeddings(large, tmp_path / "e", dtype="int8")
    broken = Embeddings(large.vectors, ("x\n", "y"), large.labels, ("a",), "m")
    with pytest.raises(UserError, match=r"image id 'x\\n' has a line break"):
        save_embeddings(broken, tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_files_have_rows(tmp_path, folder):
    """A negative number of rows left all of them out."""
    more = random_embeddings(3, first=100)
    for number in (0, -1):
        for write, arguments in (
            (save_embeddings, (more, tmp_path / "new")),
            (append_embeddings, (folder, more)),
        ):
            with pytest.raises(UserError, match=f"shard_rows must be at least 1, not {number}"):
                write(*arguments, shard_rows=number)
    assert not (tmp_path / "new").exists()


def test_more_images_and_classes_come_behind(folder):
    before = random_embeddings(25)
    more = random_embeddings(10, first=25, classes=("z", "b", "a"))
    append_embeddings(folder, more, shard_rows=4)
    opened = open_embeddings(folder, verify=True)
    assert opened.class_names == ("a", "b", "c", "z")
    assert opened.ids == before.ids + more.ids
    assert np.array_equal(np.asarray(opened.vectors), np.r_[before.vectors, more.vectors])
    names = [opened.class_names[label] for label in opened.labels]
    assert names[:25] == [before.class_names[label] for label in before.labels]
    assert names[25:] == [more.class_names[label] for label in more.labels]


def test_what_does_not_belong_there_is_not_appended(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    plain = random_embeddings(2, first=30)
    twice = Embeddings(plain.vectors, ("q", "q"), plain.labels, plain.class_names, "model")
    for wrong, message in [
        (plain.changed(fingerprint="other"), "was made with model model, not other"),
        (random_embeddings(2, dim=5, first=30), "was made with dimension 6, not 5"),
        (random_embeddings(3, first=23), r"has an embedding of 'image 23\.jpg' already"),
        (random_embeddings(2, first=30, classes=()), "has classes, and the .* to add lack them"),
        (twice, "an embedding of 'q' already"),
    ]:
        with pytest.raises(UserError, match=message):
            append_embeddings(folder, wrong)
    (folder / ".lock").unlink(missing_ok=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.store import append_embeddings

left, replace = int(sys.argv[2]), Path.replace

def stop(self, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

Path.replace = stop
more = random_embeddings(9, first=25, classes=("z", "a"))
append_embeddings(sys.argv[1], more, shard_rows=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(12))
def test_a_kill_leaves_the_old_store_and_a_later_append_works(folder, moment):
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(moment)], check=False, cwd=os.getcwd()
    )
    killed = moment < 11  # three files for each of three shards, the classes, the description
    assert run.returncode == (-signal.SIGKILL if killed else 0)
    opened = open_embeddings(folder, verify=True)
    assert len(opened.ids) == (25 if killed else 34)
    assert opened.class_names == (("a", "b", "c") if killed else ("a", "b", "c", "z"))
    if killed:
        more = random_embeddings(5, first=40, classes=("y",))
        append_embeddings(folder, more, shard_rows=4)
        opened = open_embeddings(folder, verify=True)
        assert opened.class_names == ("a", "b", "c", "y")
        assert np.array_equal(opened.vectors[25:], more.vectors)


def test_an_empty_store(tmp_path):
    save_embeddings(random_embeddings(0), tmp_path / "e")
    opened = open_embeddings(tmp_path / "e")
    assert np.asarray(opened.vectors).shape == (0, 6)
    assert opened.ids == ()
    assert len(opened.labels) == 0
    append_embeddings(tmp_path / "e", random_embeddings(3))
    assert len(open_embeddings(tmp_path / "e")) == 3
    shutil.rmtree(tmp_path / "e")


def test_rows_without_classes_come_behind_others_without(tmp_path):
    save_embeddings(random_embeddings(5, classes=()), tmp_path / "e")
    with pytest.raises(UserError, match="has no classes, and the embeddings to add have them"):
        append_embeddings(tmp_path / "e", random_embeddings(5, first=5))
    append_embeddings(tmp_path / "e", random_embeddings(5, first=5, classes=()))
    opened = open_embeddings(tmp_path / "e", verify=True)
    assert opened.labels.tolist() == [NO_CLASS] * 10
    assert opened.class_names == ()

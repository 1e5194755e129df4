import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.data.training_classes import UNKNOWN_SOURCE, training_classes
from unibct.embeddings.folder import NO_CLASS, Embeddings, open_embeddings
from unibct.embeddings.writing import append_embeddings, save_embeddings
from unibct.errors import UserError


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
    plain = random_embeddings(5)
    trained = training_classes(("x", "y"), None) | training_classes(("0",), "file")
    known = Embeddings(
        plain.vectors,
        plain.ids,
        plain.labels,
        plain.class_names,
        "model",
        class_source="numbers",
        training_classes=trained,
    )
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
    def numbered(first, source):
        plain = random_embeddings(5, first=first)
        names = tuple(str(number) for number in range(len(plain.class_names)))
        return Embeddings(
            plain.vectors, plain.ids, plain.labels, names, "model", class_source=source
        )

    folder, sources = tmp_path / "e", ("file-a", "file-a", "file-b", "file-a")
    parts = [numbered(5 * place, source) for place, source in enumerate(sources)]
    save_embeddings(parts[0], folder)
    append_embeddings(folder, parts[1])
    names = parts[0].class_names
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
    more = random_embeddings(5, first=5)
    trained = training_classes(("x",), None)
    added = Embeddings(
        more.vectors, more.ids, more.labels, more.class_names, "model", training_classes=trained
    )
    append_embeddings(tmp_path / "e", added)
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
    for rows in (0, -1):
        with pytest.raises(UserError, match=f"shard_rows must be at least 1, not {rows}"):
            save_embeddings(random_embeddings(3), tmp_path / "new", shard_rows=rows)
        with pytest.raises(UserError, match=f"shard_rows must be at least 1, not {rows}"):
            append_embeddings(folder, random_embeddings(3, first=100), shard_rows=rows)
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
    for wrong, message in [
        (
            random_embeddings(2, first=30, fingerprint="other"),
            "was made with model model, not other",
        ),
        (random_embeddings(2, dim=5, first=30), "was made with dimension 6, not 5"),
        (random_embeddings(3, first=23), r"has an embedding of 'image 23\.jpg' already"),
    ]:
        with pytest.raises(UserError, match=message):
            append_embeddings(folder, wrong)
    nameless = random_embeddings(2, first=30)
    nameless = Embeddings(nameless.vectors, nameless.ids, np.full(2, NO_CLASS), (), "model")
    with pytest.raises(UserError, match="has classes, and the embeddings to add lack them"):
        append_embeddings(folder, nameless)
    twice = random_embeddings(2, first=30)
    twice = Embeddings(twice.vectors, ("q", "q"), twice.labels, twice.class_names, "model")
    with pytest.raises(UserError, match="an embedding of 'q' already"):
        append_embeddings(folder, twice)
    (folder / ".lock").unlink(missing_ok=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.writing import append_embeddings

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
    def nameless(first):
        plain = random_embeddings(5, first=first)
        return Embeddings(plain.vectors, plain.ids, np.full(5, NO_CLASS), (), "model")

    save_embeddings(nameless(0), tmp_path / "e")
    with pytest.raises(UserError, match="has no classes, and the embeddings to add have them"):
        append_embeddings(tmp_path / "e", random_embeddings(5, first=5))
    append_embeddings(tmp_path / "e", nameless(5))
    opened = open_embeddings(tmp_path / "e", verify=True)
    assert opened.labels.tolist() == [NO_CLASS] * 10
    assert opened.class_names == ()

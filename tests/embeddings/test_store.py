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

from unibct.embeddings import store
from unibct.embeddings.store import Embeddings, append_embeddings, open_embeddings, save_embeddings
from unibct.errors import UserError


def some(rows, dim=6, *, first=0, classes=("a", "b", "c"), fingerprint="model", seed=0):
    rng = np.random.default_rng(seed + first)
    vectors = rng.normal(size=(rows, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = rng.integers(0, len(classes), rows)
    ids = tuple(f"image {first + i}.jpg" for i in range(rows))
    return Embeddings(vectors, ids, labels, tuple(classes), fingerprint)


@pytest.fixture
def folder(tmp_path):
    save_embeddings(some(25), tmp_path / "emb", shard_rows=7)
    return tmp_path / "emb"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shard_rows", [1, 7, 25, 100])
def test_round_trip(tmp_path, dtype, shard_rows):
    made = some(25)
    save_embeddings(made, tmp_path / "e", dtype=dtype, shard_rows=shard_rows)
    opened = open_embeddings(tmp_path / "e")
    assert len(list((tmp_path / "e").glob("vectors-*.npy"))) == -(-25 // shard_rows)
    assert opened.vectors.dtype == np.float32
    assert opened.vectors.stored_dtype == dtype
    assert np.array_equal(np.asarray(opened.vectors), made.vectors.astype(dtype))
    assert (opened.ids, opened.class_names) == (made.ids, made.class_names)
    assert np.array_equal(opened.labels, made.labels)
    assert opened.fingerprint == "model"


@given(st.lists(st.integers(-25, 24), max_size=60), st.integers(1, 30))
def test_rows_are_taken_as_numpy_takes_them(tmp_path_factory, rows, shard_rows):
    made = some(25)
    path = tmp_path_factory.mktemp("s") / "e"
    save_embeddings(made, path, shard_rows=shard_rows)
    taken = open_embeddings(path).vectors
    wanted = np.array(rows, dtype=int)
    for index in (wanted, np.sort(wanted), rows or slice(0, 0), np.isin(np.arange(25), wanted)):
        assert np.array_equal(taken[index], made.vectors[index])
    for part in (
        slice(None),
        slice(3, 20),
        slice(20, 3),
        slice(-8, None, 3),
        slice(None, None, -1),
    ):
        assert np.array_equal(taken[part], made.vectors[part])
    assert np.array_equal(taken[-2], made.vectors[-2])
    for wrong in ([25], [-26], [0.5], [[1]], [True]):
        with pytest.raises(IndexError):
            taken[wrong]


def test_opening_reads_nothing_but_the_description(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    with monkeypatch.context() as patch:
        for name in ("_mapped", "_text", "_note"):
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
    monkeypatch.setattr(store, "VERIFIED", 100)
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


def test_nothing_is_written_over(folder):
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UserError, match="exists already"):
        save_embeddings(open_embeddings(folder), folder)
    assert sorted(folder.parent.rglob("*")) == before
    with pytest.raises(UserError, match="not an embeddings folder"):
        open_embeddings(folder.parent)


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


def test_embeddings_check_themselves():
    made = some(3)
    with pytest.raises(UserError, match="3 vectors and 2 ids"):
        Embeddings(made.vectors, made.ids[:2], made.labels, made.class_names, "m")
    with pytest.raises(UserError, match="3 vectors and 2 labels"):
        Embeddings(made.vectors, made.ids, made.labels[:2], made.class_names, "m")
    with pytest.raises(UserError, match="beyond the 3 class names"):
        Embeddings(made.vectors, made.ids, made.labels + 3, made.class_names, "m")
    with pytest.raises(UserError, match="must be float32"):
        Embeddings(made.vectors.astype(float), made.ids, made.labels, made.class_names, "m")


def test_more_images_and_classes_come_behind(folder):
    before = some(25)
    more = some(10, first=25, classes=("z", "b", "a"))
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
        (some(2, first=30, fingerprint="other"), "is of model model, not other"),
        (some(2, dim=5, first=30), "is of dimension 6, not 5"),
        (some(3, first=23), r"has an embedding of 'image 23\.jpg' already"),
    ]:
        with pytest.raises(UserError, match=message):
            append_embeddings(folder, wrong)
    twice = some(2, first=30)
    twice = Embeddings(twice.vectors, ("q", "q"), twice.labels, twice.class_names, "model")
    with pytest.raises(UserError, match="an embedding of 'q' already"):
        append_embeddings(folder, twice)
    (folder / ".lock").unlink(missing_ok=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.embeddings.test_store import some
from unibct import files
from unibct.embeddings import store

left, replace = int(sys.argv[2]), Path.replace

def stop(self, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

Path.replace = stop
store.append_embeddings(sys.argv[1], some(9, first=25, classes=("z", "a")), shard_rows=4)
"""


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
        more = some(5, first=40, classes=("y",))
        append_embeddings(folder, more, shard_rows=4)
        opened = open_embeddings(folder, verify=True)
        assert opened.class_names == ("a", "b", "c", "y")
        assert np.array_equal(opened.vectors[25:], more.vectors)


def test_an_empty_store(tmp_path):
    save_embeddings(some(0), tmp_path / "e")
    opened = open_embeddings(tmp_path / "e")
    assert np.asarray(opened.vectors).shape == (0, 6)
    assert opened.ids == ()
    assert len(opened.labels) == 0
    append_embeddings(tmp_path / "e", some(3))
    assert len(open_embeddings(tmp_path / "e")) == 3
    shutil.rmtree(tmp_path / "e")

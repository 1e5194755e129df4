import pickle

import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.forms.npy import read, require_writable, write
from unibct.errors import UserError

VECTORS = np.array([[3.0, 4.0], [1.0, 0.0]])


def test_two_files_by_someone_else(tmp_path):
    np.save(tmp_path / "old.npy", VECTORS.astype(np.float16))
    (tmp_path / "old.ids.txt").write_text("x/1.jpg\ny/2.jpg")
    embeddings = read(tmp_path / "old.npy")
    assert embeddings.vectors.tolist() == [[3, 4], [1, 0]]  # not normalised here
    assert embeddings.ids == ("x/1.jpg", "y/2.jpg")
    assert embeddings.class_names == ()
    (tmp_path / "old.labels.txt").write_text("x\ny\n")
    assert read(tmp_path / "old.npy").class_names == ("x", "y")


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "old.npy"
    np.save(path, VECTORS)
    with pytest.raises(UserError, match=r"has no ids: put old\.ids\.txt beside it"):
        read(path)
    (tmp_path / "old.ids.txt").write_text("a\nb\nc\n")
    with pytest.raises(UserError, match=r"old\.ids\.txt has 3 lines for 2 rows"):
        read(path)
    np.save(path, VECTORS[0])
    with pytest.raises(UserError, match="must have the shape"):
        read(path)
    np.save(path, VECTORS.astype(np.int32))
    with pytest.raises(UserError, match="int32 values"):
        read(path)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('a pickle ran')",))

    (tmp_path / "old.ids.txt").write_text("a\n")
    np.save(tmp_path / "old.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"not a whole \.npy file"):
        read(tmp_path / "old.npy")
    (tmp_path / "old.npy").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match=r"not a whole \.npy file"):
        read(tmp_path / "old.npy")


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    embeddings, path = random_embeddings(9), tmp_path / "a.npy"

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("numpy.lib.format.open_memmap", full)
        write(embeddings, path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [".a.npy.abcdefgh.tmp", ".a.npy.partial"])
def test_a_killed_write_is_taken_up_again_and_files_of_others_stay(tmp_path, left):
    embeddings, path = random_embeddings(9), tmp_path / "a.npy"
    write(embeddings, path)
    names = {p.name for p in tmp_path.iterdir()}
    path.unlink()
    with pytest.raises(UserError, match=r"a\.ids\.txt exists already"):
        require_writable(path)
    # What was to become the file; or what `unibct embed` leaves with the rows, and removes itself.
    hidden = tmp_path / left
    if hidden.suffix == ".tmp":
        hidden.write_text("half of the vectors")
    else:
        hidden.mkdir()
    require_writable(path)
    write(embeddings, path)
    assert read(path).ids == embeddings.ids
    assert {p.name for p in tmp_path.iterdir()} - {".a.npy.partial"} == names
    (tmp_path / "b.ids.txt").write_text("mine")
    with pytest.raises(UserError, match=r"b\.ids\.txt exists already"):
        write(embeddings, tmp_path / "b.npy")
    assert (tmp_path / "b.ids.txt").read_text() == "mine"

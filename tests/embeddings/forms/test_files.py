import pickle

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.forms.files import (
    Folder,
    Npy,
    Safetensors,
    classes_of,
    decoded_lines,
    encoded_lines,
    names_of,
    read_lines,
)
from unibct.embeddings.store import save_embeddings
from unibct.errors import UserError

VECTORS = np.array([[3.0, 4.0], [1.0, 0.0]])


def test_two_files_by_someone_else(tmp_path):
    np.save(tmp_path / "old.npy", VECTORS.astype(np.float16))
    (tmp_path / "old.ids.txt").write_text("x/1.jpg\ny/2.jpg")
    embeddings = Npy.read(tmp_path / "old.npy")
    assert embeddings.vectors.tolist() == [[3, 4], [1, 0]]  # not normalised here
    assert embeddings.ids == ("x/1.jpg", "y/2.jpg")
    assert embeddings.class_names == ()
    (tmp_path / "old.labels.txt").write_text("x\ny\n")
    assert Npy.read(tmp_path / "old.npy").class_names == ("x", "y")


def test_bad_npy_files_are_named(tmp_path):
    path = tmp_path / "old.npy"
    np.save(path, VECTORS)
    with pytest.raises(UserError, match=r"has no ids: put old\.ids\.txt beside it"):
        Npy.read(path)
    (tmp_path / "old.ids.txt").write_text("a\nb\nc\n")
    with pytest.raises(UserError, match=r"old\.ids\.txt has 3 lines for 2 rows"):
        Npy.read(path)
    for wrong, message in [
        (VECTORS[0], "must have the shape"),
        (VECTORS.astype(np.int32), "int32 values"),
    ]:
        np.save(path, wrong)
        with pytest.raises(UserError, match=message):
            Npy.read(path)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('a pickle ran')",))

    (tmp_path / "old.ids.txt").write_text("a\n")
    np.save(tmp_path / "old.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"not a whole \.npy file"):
        Npy.read(tmp_path / "old.npy")
    (tmp_path / "old.npy").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match=r"not a whole \.npy file"):
        Npy.read(tmp_path / "old.npy")


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    embeddings, path = random_embeddings(9), tmp_path / "a.npy"

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("numpy.lib.format.open_memmap", full)
        Npy.write(embeddings, path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [".a.npy.abcdefgh.tmp", ".a.npy.partial"])
def test_a_killed_write_is_taken_up_again_and_files_of_others_stay(tmp_path, left):
    embeddings, path = random_embeddings(9), tmp_path / "a.npy"
    Npy.write(embeddings, path)
    names = {p.name for p in tmp_path.iterdir()}
    path.unlink()
    with pytest.raises(UserError, match=r"a\.ids\.txt exists already"):
        Npy.require_writable(path)
    # What was to become the file; or what `unibct embed` leaves with the rows, and removes itself.
    hidden = tmp_path / left
    if hidden.suffix == ".tmp":
        hidden.write_text("half of the vectors")
    else:
        hidden.mkdir()
    Npy.require_writable(path)
    Npy.write(embeddings, path)
    assert Npy.read(path).ids == embeddings.ids
    assert {p.name for p in tmp_path.iterdir()} - {".a.npy.partial"} == names
    (tmp_path / "b.ids.txt").write_text("mine")
    with pytest.raises(UserError, match=r"b\.ids\.txt exists already"):
        Npy.write(embeddings, tmp_path / "b.npy")
    assert (tmp_path / "b.ids.txt").read_text() == "mine"


def save(path, **tensors):
    safetensors.torch.save_file(tensors, path)
    return path


def test_a_safetensors_file_by_someone_else(tmp_path):
    path = save(tmp_path / "old.safetensors", weights=torch.eye(2, dtype=torch.bfloat16))
    with pytest.raises(UserError, match=r"has no ids.*old\.ids\.txt beside it"):
        Safetensors.read(path)
    (tmp_path / "old.ids.txt").write_text("a\nb\n")
    embeddings = Safetensors.read(path)
    assert embeddings.vectors.tolist() == [[1, 0], [0, 1]]
    assert embeddings.ids == ("a", "b")


def test_bad_safetensors_files_are_named(tmp_path):
    path = tmp_path / "old.safetensors"
    with pytest.raises(UserError, match="2 floating-point matrices; call the embeddings `vectors`"):
        Safetensors.read(save(path, a=torch.eye(2), b=torch.eye(3)))
    with pytest.raises(UserError, match="tensor `ids` must be uint8"):
        Safetensors.read(save(path, vectors=torch.eye(2), ids=torch.zeros(3)))
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        Safetensors.read(path)


def test_rows_of_a_protocol_are_no_embeddings_of_images(tmp_path):
    save_embeddings(random_embeddings(4), tmp_path / "faces", protocol="ijbc")
    assert Folder.recognises(tmp_path / "faces")
    with pytest.raises(UserError, match="was made for --protocol ijbc"):
        Folder.read(tmp_path / "faces")


def test_a_folder_with_something_else_is_not_recognised(tmp_path):
    assert not Folder.recognises(tmp_path)


def test_lines_come_back_as_they_were():
    values = ("a b", "", "ü/é.jpg", " c ")
    assert decoded_lines(encoded_lines(values, "id"), "ids", 4) == values
    assert decoded_lines(b"a\r\nb", "ids", 2) == ("a", "b")
    assert decoded_lines(b"", "ids", 0) == ()


def test_bad_lines_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"row 1: the id 'a\\nb' has a line break"):
        encoded_lines(("x", "a\nb"), "id")
    with pytest.raises(UserError, match="ids has 2 lines for 3 rows"):
        decoded_lines(b"a\nb\n", "ids", 3)
    (tmp_path / "x").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_lines(tmp_path / "x", 1)


def test_classes_are_numbered_as_they_appear():
    labels, names = classes_of(["b", "a", "b"], 3)
    assert labels.tolist() == [0, 1, 0]
    assert names == ("b", "a")
    assert names_of(labels, names) == ["b", "a", "b"]
    assert classes_of(None, 2)[0].tolist() == [-1, -1]
    assert names_of(np.empty(0, dtype=np.int64), ()) == []

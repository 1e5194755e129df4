import pytest
import safetensors.torch
import torch

from unibct.embeddings.forms.safetensors_file import read
from unibct.errors import UserError


def save(path, **tensors):
    safetensors.torch.save_file(tensors, path)
    return path


def test_a_file_by_someone_else(tmp_path):
    path = save(tmp_path / "old.safetensors", weights=torch.eye(2, dtype=torch.bfloat16))
    with pytest.raises(UserError, match=r"has no ids.*old\.ids\.txt beside it"):
        read(path)
    (tmp_path / "old.ids.txt").write_text("a\nb\n")
    embeddings = read(path)
    assert embeddings.vectors.tolist() == [[1, 0], [0, 1]]
    assert embeddings.ids == ("a", "b")


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "old.safetensors"
    with pytest.raises(UserError, match="2 floating-point matrices; call the embeddings `vectors`"):
        read(save(path, a=torch.eye(2), b=torch.eye(3)))
    with pytest.raises(UserError, match="tensor `ids` must be uint8"):
        read(save(path, vectors=torch.eye(2), ids=torch.zeros(3)))
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        read(path)

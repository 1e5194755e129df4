from pathlib import Path

import numpy as np
import pytest

from unibct.errors import UserError
from unibct.files import atomic_file, atomic_folder, mapped_array, write_json


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder"
    with pytest.raises(RuntimeError), atomic_folder(path) as temporary:
        (temporary / "a").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    path.mkdir()
    with atomic_folder(path) as temporary:
        write_json(temporary / "a.json", {"é": 1})
    assert (path / "a.json").read_text(encoding="utf-8") == '{\n  "é": 1\n}\n'
    with pytest.raises(UserError, match="exists already"), atomic_folder(path):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="current folder"), atomic_folder(Path(".")):
        pass


def test_a_damaged_npy_file_is_an_error_or_an_array(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 2), dtype=np.float32))
    good = path.read_bytes()
    header = len(good) - 24
    damaged = [good[:length] for length in range(len(good))]
    damaged += [
        good[:i] + mark + good[i + 1 :] for i in range(header) for mark in (b"(", b"'", b"9")
    ]
    messages = []
    for data in damaged:
        path.write_bytes(data)
        try:
            mapped_array(path)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > len(good)
    assert all(m.startswith(f"{path} is not a whole .npy file: ") for m in messages)

import os
import time
from pathlib import Path

import numpy as np
import pytest

from unibct.errors import UserError
from unibct.files import (
    atomic_file,
    atomic_folder,
    leftovers,
    mapped_array,
    mark_used,
    read_json,
    remove_leftovers,
    remove_unused,
    sweep,
    user_cache_folder,
    write_json,
    write_text,
)


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


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    for name in (".a.txt.abcdefgh.tmp", ".b.txt.abcdefgh.tmp", "a.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "deep" / ".folder.abcdefgh.tmp").mkdir(parents=True)
    remove_leftovers(tmp_path / "a.txt", tmp_path / "c.txt")
    assert {p.name for p in tmp_path.iterdir()} == {".b.txt.abcdefgh.tmp", "a.txt", "deep"}
    sweep(tmp_path)
    assert {p.name for p in tmp_path.rglob("*")} == {"a.txt", "deep"}


def test_a_writer_that_is_alone_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    killed = [".a[1].npy.x1_y2z3w.tmp", ".folder.abcdefgh.tmp"]
    own = [".a[1].npy.tmp", ".a[1].npy.backup.tmp", "a[1].npy.abcdefgh.tmp", ".b.npy.abcdefgh.tmp",
           ".a1.npy.abcdefgh.tmp"]  # fmt: skip
    for name in (killed[0], *own):
        (tmp_path / name).write_text("")
    (tmp_path / killed[1]).mkdir()
    (tmp_path / killed[1] / "rows.npy").write_text("half")
    path, folder = tmp_path / "a[1].npy", tmp_path / "folder"
    assert [entry.name for entry in leftovers(path)] == killed[:1]
    with atomic_file(path) as temporary:  # another process may be writing it
        assert len(leftovers(path)) == 2
        temporary.write_text("first")
    with atomic_file(path, alone=True) as temporary:
        assert leftovers(path) == [temporary]
        temporary.write_text("whole")
    with atomic_folder(folder, alone=True) as temporary:
        assert leftovers(folder) == [temporary]
    assert {p.name for p in tmp_path.iterdir()} == {*own, path.name, folder.name}
    assert path.read_text() == "whole"
    assert leftovers(tmp_path / "missing" / "a") == []


def test_unreadable_files_are_named(tmp_path):
    path = tmp_path / "a.json"
    for content in (None, b"{", b"\xff"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.json cannot be read"):
            read_json(path)


def test_arrays_are_mapped_and_never_unpickled(tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(UserError, match=r"a\.npy cannot be read: No such file"):
        mapped_array(path)
    np.save(path, np.arange(5))
    mapped = mapped_array(path)
    assert isinstance(mapped, np.memmap)
    assert mapped.tolist() == [0, 1, 2, 3, 4]
    np.save(path, np.array([print]), allow_pickle=True)
    with pytest.raises(UserError, match=r"is not a whole \.npy file"):
        mapped_array(path)
    path.write_bytes(b"no array")
    with pytest.raises(UserError, match=r"is not a whole \.npy file"):
        mapped_array(path)


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNIBCT_CACHE", "here")
    assert user_cache_folder() == tmp_path / "here"
    monkeypatch.delenv("UNIBCT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = user_cache_folder()
    assert folder is not None
    assert folder.is_relative_to(tmp_path)
    assert "unibct" in folder.parts
    assert not folder.exists()


def test_files_of_the_cache_that_nobody_uses_are_removed(tmp_path):
    for name in ("new", "used", "old"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (0, 0))
    mark_used(tmp_path / "used")
    mark_used(tmp_path / "missing")
    os.utime(tmp_path / "new", (0, time.time() - 80 * 24 * 3600))
    remove_unused(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "used"}


def test_without_a_home_folder_there_is_no_cache_folder(monkeypatch):
    monkeypatch.delenv("UNIBCT_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: Path("~/.cache/unibct"))
    assert user_cache_folder() is None


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


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder: name a file") as error:
        write_text(tmp_path, "text")
    assert error.value.filename == str(tmp_path)
    assert not list(tmp_path.parent.glob(".*.tmp"))


def test_a_writer_does_not_remove_its_own_temporary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path("x.bin"), tmp_path / "a" / ".." / "y.bin"):
        (tmp_path / "a").mkdir(exist_ok=True)
        with atomic_file(path, alone=True) as temporary:
            assert temporary.is_file()

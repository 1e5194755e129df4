import pytest
from filelock import FileLock

from unibct.data.resumable_folder import resumable_folder
from unibct.errors import UserError


def write(path, numbers, *, fingerprint="a", stop=None, saves=()):
    """Append numbers to a file of the folder, as a job would; return its messages."""
    notes = []
    with resumable_folder(path, fingerprint, notes.append) as folder:
        file = folder.grow("data/numbers.txt")
        for number in numbers[folder.done :]:
            if number == stop:
                raise KeyboardInterrupt
            file.write(f"{number}\n".encode())
            if number in saves:
                folder.save(numbers.index(number) + 1)
    return notes


@pytest.mark.parametrize("saves", [(), (2,), (2, 5)])
def test_a_run_continues_where_the_last_one_saved(saves, tmp_path):
    path = tmp_path / "out"
    numbers = list(range(9))
    with pytest.raises(KeyboardInterrupt):
        write(path, numbers, stop=7, saves=saves)
    assert not path.exists()
    notes = write(path, numbers)
    expected = [f"going on after {saves[-1] + 1} images of an earlier run"] if saves else []
    assert notes == expected
    assert (path / "numbers.txt").read_text() == "".join(f"{n}\n" for n in numbers)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("fingerprint", ["b", None])
def test_another_fingerprint_starts_from_the_beginning(fingerprint, tmp_path):
    path = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write(path, list(range(9)), stop=7, saves=(2,))
    notes = write(path, list(range(20, 25)), fingerprint=fingerprint)
    assert notes == ["what an earlier run has read may have changed since: starting again"]
    assert (path / "numbers.txt").read_text() == "20\n21\n22\n23\n24\n"


def test_a_truncated_file_starts_from_the_beginning(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write(path, list(range(9)), stop=7, saves=(2,))
    (tmp_path / ".out.partial" / "data" / "numbers.txt").write_bytes(b"0\n")
    assert "starting again" in write(path, list(range(9)))[0]
    assert (path / "numbers.txt").read_text() == "".join(f"{n}\n" for n in range(9))


def test_a_user_error_leaves_nothing(tmp_path):
    with (
        pytest.raises(UserError, match="bad input"),
        resumable_folder(tmp_path / "out", "a", print) as folder,
    ):
        folder.grow("data/numbers.txt").write(b"1\n")
        folder.save(1)
        raise UserError("bad input")
    assert list(tmp_path.iterdir()) == []


def test_refused_folders(tmp_path, monkeypatch):
    (tmp_path / "full" / "deep").mkdir(parents=True)
    with pytest.raises(UserError, match="exists already"):
        write(tmp_path / "full", [1])
    (tmp_path / ".out.partial").mkdir()
    with (
        FileLock(tmp_path / ".out.partial" / "lock"),
        pytest.raises(UserError, match="another process is writing"),
    ):
        write(tmp_path / "out", [1])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="current folder"):
        write(tmp_path / "here", [1])

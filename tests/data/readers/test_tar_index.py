import hashlib
import json
import os
import tarfile

import pytest

from tests.data.example_images import png
from tests.data.readers.example_tars import write_tar
from unibct.data.readers.table import open_images
from unibct.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("index")
    monkeypatch.setenv("UNIBCT_CACHE", str(folder))
    return folder


@pytest.fixture
def opened(monkeypatch):
    """The tar files whose headers are read from now on."""
    paths = []
    real = tarfile.open

    def watched(path, mode):
        if mode == "r:":
            paths.append(path.name)
        return real(path, mode)

    monkeypatch.setattr(tarfile, "open", watched)
    return paths


def content(images):
    return (
        images.name,
        images.ids,
        images.labels.tolist(),
        images.class_names,
        images.digest,
        images.encoded.places,
        [images.encoded(i) for i in images.ids],
    )


def indexes(cache):
    return sorted((cache / "tar-index").iterdir())


def replace_rows(path, change):
    """Change the samples of an index, and make its checksum right."""
    header, rows = map(json.loads, path.read_text().splitlines())
    text = json.dumps(change(rows))
    header["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(f"{json.dumps(header)}\n{text}\n")


def test_the_second_time_no_header_is_read(shards, cache, opened):
    first = open_images(shards)
    assert opened == ["s-00.tar", "s-01.tar"]
    assert len(indexes(cache)) == 2
    second = open_images(shards)
    assert len(opened) == 2
    assert content(second) == content(first)
    assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)
    assert open_images(f"{shards}/s-{{00..01}}.tar").ids == first.ids
    assert len(opened) == 2


def test_relative_and_absolute_paths_have_one_index(shards, cache, opened, monkeypatch):
    open_images(shards / "s-01.tar")
    monkeypatch.chdir(shards)
    images = open_images("s-01.tar")
    assert opened == ["s-01.tar"]
    assert images.encoded("s-01/0001") == png(3)


def test_a_changed_tar_is_noticed(shards, cache, opened):
    path = shards / "s-01.tar"
    open_images(path)
    status = path.stat()
    write_tar(path, [("0009.PNG", png(3)), ("0009.cls", b"8")])
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # the time alone differs
    assert open_images(path).ids == ("s-01/0009",)
    write_tar(path, [(f"{i}.{kind}", png(i)) for i in range(9) for kind in ("png", "txt")])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # the size alone differs
    with pytest.raises(UserError, match="'0' has an image but no label"):
        open_images(path)
    assert len(opened) == 3
    assert len(indexes(cache)) == 1


def test_a_tar_that_changes_while_it_is_read_is_not_indexed(shards, cache, monkeypatch):
    path = shards / "s-01.tar"
    real = tarfile.open

    def touched(*arguments):
        os.utime(path, ns=(1, 1))
        return real(*arguments)

    monkeypatch.setattr(tarfile, "open", touched)
    assert open_images(path).ids == ("s-01/0001",)
    assert not (cache / "tar-index").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-5],
        lambda data: b"\xff" + data,
        lambda data: b"[" * 100_000,
        lambda data: b"null\n[]\n",
        lambda data: data.replace(b'"7"', b'"8"'),
        lambda data: data.replace(b'"0001", 512', b'"0001", 513'),
        lambda data: data.replace(b'"format": 3', b'"format": 2'),
    ],
)
def test_a_damaged_index_is_replaced(damage, shards, cache, opened):
    path = shards / "s-01.tar"
    expected = content(open_images(path))
    (index,) = indexes(cache)
    whole = index.read_bytes()
    assert damage(whole) != whole
    index.write_bytes(damage(whole))
    assert content(open_images(path)) == expected
    assert index.read_bytes() == whole
    assert len(opened) == 2


@pytest.mark.parametrize(
    "rows",
    [
        [["0001", 512, 10**9, "7"]],
        [["0001", 10**9, 70, "7"]],
        [["0001", 10**30, 70, "7"]],
        [["0001", -512, 70, "7"]],
        [["0001", 512, -70, "7"]],
        [["0001", 512.0, 70, "7"]],
        [["0001", "512", 70, "7"]],
        [["0001", None, 70, "7"]],
        [["0001", 512, 70, 7]],
        [["0001", 512, 70, ""]],
        [["0001", 512, 70, "a\nb"]],
        [[1, 512, 70, "7"]],
        [["0001", 512, 70, "7"], ["0001", 512, 70, "7"]],
        [["0001", 512, 70]],
        ["0001"],
        {"0001": [512, 70, "7"]},
        None,
    ],
)
def test_wrong_content_never_reaches_beyond_the_tar(rows, shards, cache, opened):
    path = shards / "s-01.tar"
    expected = content(open_images(path))
    (index,) = indexes(cache)
    whole = index.read_bytes()
    replace_rows(index, lambda _: rows)
    assert content(open_images(path)) == expected
    assert index.read_bytes() == whole
    assert len(opened) == 2


def test_an_index_of_another_tar_is_not_used(shards, cache):
    open_images(shards / "s-00.tar")
    (other,) = indexes(cache)
    text = other.read_bytes()
    open_images(shards / "s-01.tar")
    (index,) = set(indexes(cache)) - {other}
    index.write_bytes(text)
    assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)


def test_errors_are_the_same_from_the_index(tmp_path, opened):
    path = tmp_path / "s.tar"
    for members, match in [
        ([("1.png", png(1))], "'1' has an image but no label; add 1.cls"),
        ([("1.txt", b"1")], "holds no image"),
        ([("1.cls", b"1"), ("2.png", png(1)), ("2.json", b"[]")], "'2' has an image but no"),
        ([("\udcff.cls", b"1")], "is not valid UTF-8; rename it"),
        ([("a\nb.cls", b"1")], "has a line break or a zero byte in its name"),
    ]:
        write_tar(path, members)
        opened.clear()
        messages = []
        for _ in range(2):
            with pytest.raises(UserError, match=match) as caught:
                open_images(path)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert opened == ["s.tar"]
        path.unlink()


def test_a_damaged_tar_is_not_indexed(tmp_path, cache, opened):
    path = tmp_path / "s.tar"
    path.write_bytes(b"no tar file" * 100)
    for _ in range(2):
        with pytest.raises(UserError, match="cannot be read as an uncompressed tar file"):
            open_images(path)
    assert opened == ["s.tar", "s.tar"]
    assert not (cache / "tar-index").exists()


def test_a_folder_that_cannot_be_written_is_no_error(shards, cache, opened, monkeypatch):
    (cache / "tar-index").write_text("a file where the folder should be")
    for _ in range(2):
        assert len(open_images(shards)) == 3
    assert len(opened) == 4
    (cache / "tar-index").unlink()
    cache.chmod(0o500)

    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refused)  # the administrator may write everywhere
    assert len(open_images(shards)) == 3
    cache.chmod(0o700)
    assert not list(cache.rglob("*.json"))


def test_an_index_that_cannot_be_read_is_no_error(shards, cache, opened):
    open_images(shards / "s-01.tar")
    (index,) = indexes(cache)
    index.unlink()
    index.mkdir()
    assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)
    assert len(opened) == 2


def test_without_a_cache_folder_the_tar_is_read(shards, opened, monkeypatch):
    monkeypatch.setattr("unibct.data.readers.tar_index.user_cache_folder", lambda: None)
    for _ in range(2):
        assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)
    assert len(opened) == 2

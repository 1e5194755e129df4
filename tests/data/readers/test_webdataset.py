import hashlib
import json
import os
import tarfile

import pytest

from tests.conftest import in_another_process
from tests.data.example_images import png
from tests.data.readers.example_tars import png_members, write_tar
from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import PassedOverWarning
from unibct.data.readers import open_images
from unibct.errors import UserError


def test_a_damaged_header_within_a_shard_drops_no_samples_silently(tmp_path):
    path = tmp_path / "s.tar"
    write_tar(path, png_members(4))
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        offset = tar.getmembers()[4].offset
    for spoilt in (whole[: offset + 3] + b"?" + whole[offset + 4 :], whole[: offset + 100]):
        path.write_bytes(spoilt)
        with pytest.raises(UserError, match=f"s.tar is damaged: offset {offset} is no tar header"):
            open_images(path)
    path.write_bytes(whole[:-1024])  # some writers leave the zeros at the end out
    assert len(open_images(path)) == 4


IMAGE = ("1.png", png(1))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([IMAGE, ("1.json", b'{"label": "cat"}'), ("1.cls", b"3")], "3"),  # in either order
        ([IMAGE, ("1.cls", b"3"), ("1.json", b'{"label": "cat"}')], "3"),
        ([IMAGE, ("1.cls", b"3"), ("1.json", b"[]")], "3"),
        ([IMAGE, ("1.cls", b"1" * 5000)], "1" * 5000),
        ([IMAGE, ("1.cls", b"3"), ("1.cls", b"4")], r"^\S*s.tar: sample '1' has '1.cls' twice"),
        ([IMAGE, ("1.cls", b"a\rb")], r"^\S*s.tar: 1.cls is not one number or word"),
        ([IMAGE, ("1.cls", b"")], "1.cls is not one number or word"),
        ([IMAGE, ("1.cls", b"\xff")], "1.cls cannot be read as a label"),
        ([IMAGE, ("1.json", b"{")], r"1.json cannot be read as a label"),
        ([IMAGE, ("1.json", b"[" * 100_000)], "1.json cannot be read as a label"),
        ([IMAGE, ("1.json", b'{"label": "a\\nb"}')], "1.json is not one number or word"),
        ([IMAGE, ("1.json", b'{"label": 0.5}')], "a 1.json whose label is a whole number or a"),
        ([IMAGE, ("1.json", b'{"label": true}')], "'1' has an image but no label"),
        ([IMAGE, ("1.json", b" " * (1 << 24) + b"{}")], "too long for a label"),
        ([IMAGE], "'1' has an image but no label; add 1.cls"),
        ([("1.cls", b"1"), ("2.png", png(1)), ("2.json", b"[]")], "'2' has an image but no"),
        ([IMAGE, ("1.jpg", png(1)), ("1.cls", b"0")], "'1' has two images"),
        ([("1.txt", b"1")], "holds no image"),
        ([("\udcff.cls", b"1")], "is not valid UTF-8; rename it"),
        ([("a\nb.cls", b"1")], "has a line break or a zero byte in its name"),
    ],
)
def test_samples_and_their_labels_are_those_of_the_tar_and_of_its_index(
    members, expected, tmp_path, opened, cache
):
    path = tmp_path / "s.tar"
    write_tar(path, members)
    if expected.isdecimal():
        assert open_images(path).class_names == (expected,)
        return
    messages = []
    for _ in range(2):
        with pytest.raises(UserError, match=expected) as caught:
            open_images(path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    # What the tar itself has wrong is not in an index; what its samples lack is.
    assert opened == ["s.tar"] * (1 if (cache / "tar-index").exists() else 2)


def test_links_and_negative_sizes_within_shards(tmp_path):
    path = tmp_path / "s.tar"
    link = tarfile.TarInfo("2.png")
    link.type, link.linkname = tarfile.LNKTYPE, "1.png"
    with tarfile.open(path, "w") as tar:
        tar.addfile(link)
    with pytest.raises(UserError, match=r"s.tar: '2.png' is not a plain file; pack the file"):
        open_images(path)
    endless = tarfile.TarInfo("1.txt")
    endless.size = -512
    path.write_bytes(endless.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UserError, match=r"is cut off within '1.txt'"):
        open_images(path)


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
    described = images.name, images.ids, images.labels.tolist(), images.class_names, images.digest
    return (*described, images.encoded.places, [images.encoded(i) for i in images.ids])


def indexes(cache):
    return sorted((cache / "tar-index").iterdir())


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


def test_relative_and_absolute_paths_have_one_index(shards, opened, monkeypatch):
    open_images(shards / "s-01.tar")
    monkeypatch.chdir(shards)
    assert open_images("s-01.tar").encoded("s-01/0001") == png(3)
    assert opened == ["s-01.tar"]


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


def with_rows(rows):
    """Damage that changes the samples of an index and makes its checksum right."""

    def changed(data):
        text = json.dumps(rows)
        header = json.loads(data.split(b"\n")[0])
        header["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        return f"{json.dumps(header)}\n{text}\n".encode()

    return changed


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
        *(
            with_rows([["0001", *place, "7"]])  # beyond the tar, of another type, or no place
            for place in (
                (512, 10**9), (10**9, 70), (10**30, 70), (-512, 70), (512, -70),
                (512.0, 70), ("512", 70), (None, 70),
            )
        ),
        *(with_rows([["0001", 512, 70, label]]) for label in (7, "", "a\nb")),  # no label
        *(
            with_rows(rows)  # no list of samples
            for rows in (
                [[1, 512, 70, "7"]], [["0001", 512, 70, "7"]] * 2, [["0001", 512, 70]],
                ["0001"], {"0001": [512, 70, "7"]}, None,
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_index_is_replaced_and_never_reaches_beyond_the_tar(
    damage, shards, cache, opened
):
    path = shards / "s-01.tar"
    expected = content(open_images(path))
    (index,) = indexes(cache)
    whole = index.read_bytes()
    assert damage(whole) != whole
    index.write_bytes(damage(whole))
    assert content(open_images(path)) == expected
    assert index.read_bytes() == whole
    assert len(opened) == 2


def test_an_index_that_nobody_uses_is_removed(shards, cache, opened):
    open_images(shards / "s-00.tar")
    (used,) = indexes(cache)
    for path in (used, used.with_name("unused.json")):
        path.touch()
        os.utime(path, (0, 0))
    open_images(shards / "s-00.tar")
    open_images(shards / "s-01.tar")
    assert used in indexes(cache)
    assert len(indexes(cache)) == 2
    assert len(opened) == 2


def test_an_index_of_another_tar_is_not_used(shards, cache):
    open_images(shards / "s-00.tar")
    (other,) = indexes(cache)
    text = other.read_bytes()
    open_images(shards / "s-01.tar")
    (index,) = set(indexes(cache)) - {other}
    index.write_bytes(text)
    assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)


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


@pytest.mark.parametrize("fault", ["a folder in its place", "no cache"])
def test_without_an_index_the_tar_is_read_again(fault, shards, cache, opened, monkeypatch):
    if fault == "no cache":
        monkeypatch.setattr("unibct.data.readers.webdataset.user_cache_folder", lambda: None)
    open_images(shards / "s-01.tar")
    if fault == "a folder in its place":
        (index,) = indexes(cache)
        index.unlink()
        index.mkdir()
    assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)
    assert len(opened) == 2


def test_webdataset_shards(shards):
    for name in (shards, f"{shards}/s-{{00..01}}.tar", f"webdataset:{shards}"):
        images = open_images(name)
        assert images.ids == ("s-00/a/0001", "s-00/0002", "s-01/0001")
        assert images.class_names == ("7", "cat")
        assert images.labels.tolist() == [0, 1, 0]
        assert [int(images.read(i)[0, 0]) for i in images.ids] == [1, 2, 3]
    assert images.encoded("s-00/0002") == png(2)
    assert in_another_process(images.encoded, "s-01/0001") == png(3)
    assert open_images(shards / "s-01.tar").ids == ("s-01/0001",)


def test_bad_shards(shards, tmp_path):
    with pytest.raises(UserError, match=r"names 3 files, but .*s-02.tar is not there"):
        open_images(f"{shards}/s-{{00..02}}.tar")
    with pytest.raises(UserError, match=r"nothing\.tar is not there"):
        open_images(tmp_path / "nothing.tar")
    whole = (shards / "s-00.tar").read_bytes()
    path = tmp_path / "cut.tar"
    for size in range(0, len(whole), 64):
        path.write_bytes(whole[:size])
        try:
            images = open_images(path)
        except UserError as error:
            assert "cut.tar" in str(error)  # noqa: PT017
        else:  # cut between two members: the samples before it are whole
            assert all(images.read(i).shape == (8, 8) for i in images.ids)
    with tarfile.open(tmp_path / "packed.tar", "w:gz") as tar:
        tar.add(shards / "s-01.tar", arcname="1.png")
    with pytest.raises(UserError, match="cannot be read as an uncompressed tar file"):
        open_images(tmp_path / "packed.tar")


def test_more_shards_than_a_process_may_hold_open(tmp_path):
    resource = pytest.importorskip("resource")
    for number in range(100):
        write_tar(tmp_path / f"{number:03}.tar", [("1.png", png(number)), ("1.cls", b"1")])
    images = open_images(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        assert [images.encoded(i) for i in images.ids] == [png(n) for n in range(100)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_shard_that_changes_under_way_is_an_unreadable_image(shards):
    images = open_images(shards / "s-01.tar")
    (shards / "s-01.tar").write_bytes(b"")
    with pytest.raises(UnreadableImageError, match="is shorter than when it was opened"):
        images.encoded("s-01/0001")
    (shards / "s-01.tar").unlink()
    with pytest.raises(UnreadableImageError, match=r"s-01.tar: No such file"):
        images.encoded("s-01/0001")


def test_samples_without_an_image_are_counted(tmp_path):
    members = [("1.png", png(1)), ("1.cls", b"0"), ("photo.0.png", png(2)), ("photo.cls", b"1")]
    write_tar(tmp_path / "s.tar", members)
    with pytest.warns(PassedOverWarning, match="1 entry is passed over, first s/photo"):
        assert open_images(tmp_path / "s.tar").ids == ("s/1",)


def test_images_whose_names_have_two_dots_are_not_passed_over_in_silence(tmp_path):
    path = tmp_path / "s.tar"
    dotted = [("b.001.png", png(2)), ("b.001.cls", b"2"), ("c.1/2.seg.png", png(3))]
    write_tar(path, [("a.png", png(1)), ("a.cls", b"1"), ("a.seg.png", png(9)), *dotted])
    for _ in range(2):  # from the shard, and from its index
        with pytest.warns(PassedOverWarning, match=r"2 entries .* first s/b: .* at the first dot"):
            assert open_images(path).ids == ("s/a",)
    write_tar(path, dotted)
    with pytest.raises(UserError, match=r"holds no image: .* a key has no dot"):
        open_images(path)


def test_names_of_class_numbers_are_read_from_the_file_beside(tmp_path):
    """Two shards are of the same classes only if something says so."""
    for name, labels in (("train", (0, 2)), ("test", (2, 1))):
        write_tar(
            tmp_path / f"{name}.tar",
            [member for i, label in enumerate(labels)
             for member in ((f"{i}.png", png(i)), (f"{i}.cls", f"{label}".encode()))],
        )  # fmt: skip
    first, second = (open_images(tmp_path / f"{name}.tar") for name in ("train", "test"))
    assert not set(first.class_identities) & set(second.class_identities)
    (tmp_path / "classes.txt").write_text("ann\nbob\ncleo\n")
    first, second = (open_images(tmp_path / f"{name}.tar") for name in ("train", "test"))
    assert first.class_identities == ("ann", "cleo")
    assert second.class_identities == ("bob", "cleo")
    assert [second.class_names[label] for label in second.labels] == ["cleo", "bob"]
    (tmp_path / "classes.txt").write_text("ann\nbob\n")
    with pytest.raises(UserError, match=r"classes.txt has 2 lines, but there is a class 2"):
        open_images(tmp_path / "train.tar")

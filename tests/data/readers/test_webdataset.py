import tarfile

import pytest

from tests.conftest import in_another_process
from tests.data.example_images import png
from tests.data.readers.example_tars import write_tar
from unibct.data.decoding import UnreadableImageError
from unibct.data.passed_over import PassedOverWarning
from unibct.data.readers.table import open_images
from unibct.errors import UserError


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
    write_tar(path, [("1.png", png(1))])
    with pytest.raises(UserError, match=r"'1' has an image but no label; add 1.cls"):
        open_images(path)
    write_tar(path, [("1.png", png(1)), ("1.jpg", png(1)), ("1.cls", b"0")])
    with pytest.raises(UserError, match="'1' has two images"):
        open_images(path)
    write_tar(path, [("1.png", png(1)), ("1.json", b"{")])
    with pytest.raises(UserError, match=r"1.json cannot be read as a label"):
        open_images(path)
    write_tar(path, [("1.txt", b"1")])
    with pytest.raises(UserError, match="holds no image"):
        open_images(path)
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

import os

import numpy as np
import pytest

from tests.conftest import in_another_process
from tests.data.example_images import png
from unibct.data.decoding import UnreadableImageError
from unibct.data.encoded_images import (
    FileSource,
    checked_id,
    classes_of,
    encoded_set,
    file_stamp,
    require_outside,
)
from unibct.data.image_set import Stamped
from unibct.data.readers.table import open_images
from unibct.errors import UserError


def test_classes_are_numbers_by_value_and_then_words():
    names, labels = classes_of(["b", "10", "9", "a", "10"])
    assert names == ("9", "10", "a", "b")
    assert labels.tolist() == [3, 1, 0, 2, 1]
    assert labels.dtype == np.int64
    many_digits = "1" * 5000  # more than Python converts
    assert classes_of([many_digits, "2"])[0] == ("2", many_digits)


@pytest.mark.parametrize("image_id", ["a\nb", "a\rb", "a\0b", "\udcff"])
def test_ids_fit_on_a_line_of_utf_8(image_id):
    assert checked_id("çlass é/1 2.png") == "çlass é/1 2.png"
    with pytest.raises(UserError, match="rename it"):
        checked_id(image_id)


def test_stamps_follow_size_and_time(tmp_path):
    path = tmp_path / "a"
    assert file_stamp(path) == ""
    path.write_bytes(b"12345")
    os.utime(path, ns=(0, 7))
    assert file_stamp(path) == "5 7"
    source = FileSource(tmp_path)
    assert isinstance(source, Stamped)
    assert list(source.stamps(["a", "b"])) == ["5 7", ""]


def test_images_are_decoded_when_they_are_read(tmp_path):
    (tmp_path / "a.png").write_bytes(png(7))
    (tmp_path / "b.png").write_bytes(b"no image")
    source = FileSource(tmp_path)
    images = encoded_set("set", ("a.png", "b.png"), np.zeros(2, np.int64), ("x",), source)
    assert images.encoded("a.png") == png(7)
    assert (images.read("a.png") == 7).all()
    assert np.array_equal(in_another_process(images.read, "a.png"), images.read("a.png"))
    assert images.encoded("b.png") == b"no image"
    with pytest.raises(UnreadableImageError, match="not a PNG"):
        images.read("b.png")
    with pytest.raises(UnreadableImageError, match="No such file"):
        images.read("c.png")


def test_nothing_is_written_among_class_folders(photo_folder, tmp_path):
    images = open_images(photo_folder)
    for allowed in (tmp_path / "out", photo_folder / ".hidden", photo_folder.parent):
        require_outside(images, allowed)
    for refused in (photo_folder / "split", photo_folder / "class 00" / "split"):
        with pytest.raises(UserError, match="is within the images"):
            require_outside(images, refused)
    require_outside(open_images("glyphs:val"), tmp_path)

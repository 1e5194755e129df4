import io
import os
import pickle
import pickletools

import numpy as np
import pytest

from tests.data.example_images import png
from unibct.data.readers.pair_file import read_pair_file
from unibct.errors import UserError

IMAGES = [png(value) for value in range(8)]
SAME = [True, False, True, False]


def written(tmp_path, content, protocol=2):
    path = tmp_path / "lfw.bin"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["bytes", "arrays"])
def test_pairs_of_every_protocol(tmp_path, protocol, kind):
    images = IMAGES
    if kind == "arrays":
        images = [np.frombuffer(image, dtype=np.uint8) for image in IMAGES]
    same = [np.bool_(value) for value in SAME] if kind == "arrays" else SAME
    pairs = read_pair_file(written(tmp_path, (images, same), protocol))
    assert pairs.same.tolist() == SAME
    assert [pairs.images.encoded(i) for i in pairs.images.ids] == IMAGES
    assert pairs.images.read("5")[0, 0] == 5


@pytest.mark.parametrize("protocol", range(6))
def test_pairs_as_the_field_s_tools_wrote_them(tmp_path, protocol):
    """Columns of bytes (older OpenCV), a Boolean array for the labels, tuples for lists."""
    columns = [np.frombuffer(image, dtype=np.uint8)[:, None].copy() for image in IMAGES]
    rows = [column.T for column in columns]  # not contiguous in the pickle's view
    for images in (columns, rows, tuple(IMAGES)):
        for same in (np.array(SAME), np.array(SAME)[:, None], tuple(SAME), np.uint8(SAME)):
            pairs = read_pair_file(written(tmp_path, [images, same], protocol))
            assert pairs.same.tolist() == SAME
            assert [pairs.images.encoded(i) for i in pairs.images.ids] == IMAGES


def test_pairs_that_python_2_wrote(tmp_path):
    def py2_string(data):  # BINSTRING, which Python 3 reads as text unless told otherwise
        return b"T" + len(data).to_bytes(4, "little") + data

    content = b"\x80\x02(]" + b"("
    content += b"".join(py2_string(image) for image in IMAGES) + b"e](\x88\x89\x88\x89et."
    pickletools.dis(content, out=io.StringIO())
    pairs = read_pair_file(written(tmp_path, content))
    assert [pairs.images.encoded(i) for i in pairs.images.ids] == IMAGES
    assert pairs.same.tolist() == SAME


class Bomb:
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


def test_a_pickle_cannot_alter_what_answers_it(tmp_path):
    state = b"N}X\x07\0\0\0__doc__X\x01\0\0\0xs\x86"  # (None, {"__doc__": "x"}): attributes to set
    names = ["_codecs\nencode", "numpy\ndtype", "numpy\nndarray", "numpy._core.multiarray\nscalar"]
    for name in names:
        path = written(tmp_path, b"\x80\x02c" + name.encode() + b"\n" + state + b"b.")
        with pytest.raises(UserError, match=r"alters what it asks for|is damaged"):
            read_pair_file(path)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (Bomb(os.system, "touch exploded"), r"asks for (posix|nt).system, .* refused"),
        (Bomb(eval, "1"), r"asks for (builtins|__builtin__).eval"),
        (([Bomb(os.getcwd)] * 8, SAME), "asks for posix.getcwd"),
        ((IMAGES[:7], SAME), "7 images for 4 pairs"),
        ((IMAGES, [1, 0, 2, 0]), "pair 2 says 2, not True or False"),
        ((["text"] * 8, SAME), "image 0 is a str, not bytes"),
        (([np.zeros(3)] * 8, SAME), "array of f8; a pair set has bytes only"),
        (([np.zeros((2, 2), dtype=np.uint8)] * 8, SAME), "not a row of bytes"),
        ((IMAGES, [np.float64(1)] * 4), "array of f8"),
        (([np.zeros(3, dtype=bool)] * 8, SAME), "image 0 is an array of booleans, not bytes"),
        ((IMAGES, np.zeros((2, 2), dtype=bool)), "not a row of bytes"),
        ((IMAGES, np.array([1, 0, 2, 0], dtype=np.uint8)), "pair 2 says 2, not True or False"),
        ((IMAGES, {0: True}), "does not hold two lists"),
        ((b"".join(IMAGES), SAME), "does not hold two lists"),
        ([1, 2, 3], "does not hold 2N encoded images"),
        ({"a": 1}, "does not hold 2N"),
        (([], []), "0 images for 0 pairs"),
        (b"no pickle at all", "is damaged, or no pair set"),
        (b"", "is damaged, or no pair set"),
    ],
)
def test_whatever_else_is_refused_and_never_run(tmp_path, monkeypatch, content, match):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, content)
    with pytest.raises(UserError, match=match) as caught:
        read_pair_file(path)
    assert str(caught.value).startswith(str(path))
    assert not (tmp_path / "exploded").exists()


def test_every_truncation_is_refused(tmp_path):
    whole = pickle.dumps((IMAGES[:2], [True]), 2)
    for size in range(len(whole)):
        with pytest.raises(UserError, match=r"lfw.bin"):
            read_pair_file(written(tmp_path, whole[:size]))

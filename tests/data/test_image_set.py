import dataclasses
import os

import numpy as np
import pytest

from tests.conftest import in_another_process
from tests.data.example_images import png
from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import (
    FileSource,
    ImageSet,
    PassedOverWarning,
    Stamped,
    are_numbers,
    checked_id,
    class_identities,
    classes_of,
    encoded_set,
    file_stamp,
    names_and_source,
    numbering,
    read_id_list,
    require_outside,
    select_listed,
    warn_of_passed_over,
)
from unibct.data.readers import open_images
from unibct.errors import UserError


def test_one_line_counts_them_and_names_the_first(recwarn, monkeypatch):
    warn_of_passed_over("photos", [], "why")
    assert not recwarn
    with pytest.warns(PassedOverWarning) as seen:
        warn_of_passed_over("photos", ["b", "a"], "why")
    assert str(seen[0].message) == "photos: 2 entries are passed over, first a: why"
    monkeypatch.setenv("RANK", "1")
    warn_of_passed_over("photos", ["b", "a"], "why")
    assert not recwarn, "the first process has said it"


def test_lists(tmp_path, glyph_classes):
    path = tmp_path / "list.txt"
    path.write_text("\n".join(glyph_classes.ids[30:50]) + "\n")
    chosen = select_listed(glyph_classes, path)
    assert chosen.ids == glyph_classes.ids[30:50]
    assert chosen.labels.min() == 0
    for text, message in [
        ("U+9999/nowhere\n", "line 1: 'U\\+9999/nowhere' is not an image"),
        (f"{glyph_classes.ids[0]}\n" * 2, "line 2: .* listed twice"),
        ("\n", "lists no id"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            select_listed(glyph_classes, path)
    with pytest.raises(UserError, match=r"missing.txt cannot be read .*one id per line"):
        select_listed(glyph_classes, tmp_path / "missing.txt")


def test_a_list_is_read_with_a_byte_order_mark_and_other_line_ends(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes("\ufeffä/1\r\n\r\nb/ 2\r\n".encode())
    assert read_id_list(path) == {"ä/1": 1, "b/ 2": 3}
    path.write_bytes(b"a\xff\n")
    with pytest.raises(UserError, match=r"list.txt is not a UTF-8 text file"):
        read_id_list(path)


def test_the_source_of_class_numbers_is_kept_and_is_not_in_the_digest(glyph_classes):
    assert glyph_classes.class_identities == glyph_classes.class_names
    numbered = dataclasses.replace(glyph_classes, class_source="file")
    chosen = numbered.select(range(20))
    name = glyph_classes.class_names[0]
    assert chosen.class_identities[0] == f"{name} of file"
    assert chosen.class_names[0] == name
    assert numbered.digest == glyph_classes.digest  # folders of earlier versions stay valid


def test_a_selection_drops_empty_classes(glyph_classes):
    rows = np.flatnonzero(np.isin(glyph_classes.labels, [3, 7]))[::-1]
    chosen = glyph_classes.select(rows)
    assert chosen.ids == tuple(glyph_classes.ids[row] for row in rows)
    assert chosen.class_names == (glyph_classes.class_names[3], glyph_classes.class_names[7])
    assert set(chosen.labels.tolist()) == {0, 1}
    assert [chosen.position[image_id] for image_id in chosen.ids] == list(range(len(chosen)))
    for image_id in chosen.ids:
        before = glyph_classes.labels[glyph_classes.position[image_id]]
        after = chosen.labels[chosen.position[image_id]]
        assert chosen.class_names[after] == glyph_classes.class_names[before]


def test_the_digest_follows_ids_order_and_classes(glyph_classes):
    few = glyph_classes.select(range(50))
    assert few.digest == glyph_classes.select(range(50)).digest
    assert few.digest != glyph_classes.select(range(49)).digest
    assert few.digest != glyph_classes.select(range(50)[::-1]).digest
    renamed = dataclasses.replace(few, class_names=tuple(f"{name}x" for name in few.class_names))
    assert few.digest != renamed.digest


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("a", "b1", "2b", "c-3", "U+0030"), False),
        (("0", "1"), True),
        (("a", "7"), True),  # one number is enough
        (("-1", "a"), True),
        (("3.0",), True),
        (("0007",), True),
        (("3 of set-0123456789ab",), True),
        (("3 of a kind",), False),
    ],
)
def test_what_counts_as_a_number(names, numbers):
    assert are_numbers(names) == numbers
    ids = tuple(f"{name}/x" for name in names)
    images = ImageSet("x", ids, np.arange(len(names)), names, read=print)
    assert (images.class_source is not None) == numbers


def test_a_source_depends_on_ids_classes_and_content(tmp_path):
    """Two sets of the same ids and class numbers, a copy, and parts of one."""

    def opened(folder, labels="0011", first=0):
        (tmp_path / folder).mkdir()
        for place, label in enumerate(labels):
            (tmp_path / folder / label).mkdir(exist_ok=True)
            (tmp_path / folder / label / f"{place}.png").write_bytes(png(first + place))
        return open_images(tmp_path / folder)

    images, copy, content = opened("a"), opened("b"), opened("c", first=9)
    labels, more = opened("d", "0101"), opened("e", "00112")
    sources = [each.class_source for each in (images, copy, content, labels, more)]
    assert sources[0] == sources[1]
    assert len(set(sources)) == 4
    assert images.select([2, 3]).class_identities == (f"1 of {sources[0]}",)
    (tmp_path / "a/0/0.png").unlink()
    assert numbering(images) not in sources  # an image that is gone is no copy


def test_identities_are_taken_apart_again():
    one, two = "set-0123456789ab", "recordio-0123456789ab"
    for names, source in ((("0", "-1", "2.0"), one), (("3",), two)):
        assert names_and_source(class_identities(names, source)) == (names, source)
    for names in (("a", "b"), ("0", "1"), (f"0 of {one}", f"0 of {two}"), (f"0 of {one}", "a"), ()):
        assert names_and_source(names) == (names, None)


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

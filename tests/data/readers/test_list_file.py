import pytest

from tests.data.example_images import png
from unibct.data.decoding import Frame
from unibct.data.loader import read_pixels
from unibct.data.readers import open_images
from unibct.errors import UserError


def test_a_list_file(tmp_path):
    (tmp_path / "some faces").mkdir()
    for number in range(4):
        (tmp_path / "some faces" / f"{number}.png").write_bytes(png(number))
    path = tmp_path / "list.txt"
    path.write_text(
        "# path label\nsome faces/3.png 10\nsome faces/0.png\t2\n\nsome faces/1.png  10\r\n"
    )
    for name in (path, f"list:{path}"):
        images = open_images(name)
        assert images.ids == ("some faces/3.png", "some faces/0.png", "some faces/1.png")
        assert images.class_names == ("2", "10")  # numbers in their order
        assert images.labels.tolist() == [1, 0, 1]
        assert images.read("some faces/3.png")[0, 0] == 3
        assert images.encoded("some faces/3.png") == png(3)
    path.write_text("some faces/0.png one\nsome faces/9.png two\n")
    with pytest.raises(UserError, match=r"1 unreadable image: some faces/9.png \(No such file"):
        read_pixels(open_images(path), Frame(8, 8, 1))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a.png 1\nb.png\n", r"line 2: 'b.png' is not `path label`"),
        ("a/b.png\n", r"a list of ids, such as `unibct split` writes, is given beside the data"),
        ("a.png 1\na.png 2\n", r"line 2: 'a.png' is listed twice"),
        ("a.png 1\n./a.png 1\n", r"line 2: './a.png' is listed twice"),
        ("x/a.png 1\ny/../x//a.png 1\n", r"line 2: 'y/../x//a.png' is listed twice"),
        ("# nothing\n", "lists no image"),
        ("0\t4\ta.png\n", r"line 1: '0\\t4\\ta.png' has more columns than `path label`"),
        ("a\0b.png 1\n", "a zero byte in its name"),
    ],
)
def test_bad_lists(text, match, tmp_path):
    (tmp_path / "l.txt").write_text(text)
    with pytest.raises(UserError, match=match):
        open_images(tmp_path / "l.txt")


def test_a_hash_may_begin_a_path_and_a_label_after_a_tab_may_have_spaces(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# a comment\n#\n#1/a.png x\nb.png \t golden retriever\n")
    images = open_images(path)
    assert images.ids == ("#1/a.png", "b.png")
    assert images.class_names == ("golden retriever", "x")

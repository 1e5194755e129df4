import numpy as np
import pytest

from tests.data.example_images import png, ramp
from unibct.data.image_set import PassedOverWarning, select_listed
from unibct.data.readers import open_images, open_unclassed
from unibct.errors import UserError


def test_folder(photo_folder, glyph_classes):
    images = open_images(str(photo_folder))
    assert len(images) == len(glyph_classes)
    assert images.class_names == tuple(f"class {c:02}" for c in range(12))
    assert images.ids == tuple(sorted(images.ids))
    for image_id, label in zip(images.ids, images.labels, strict=True):
        assert image_id.startswith(images.class_names[label])
    assert images.read(images.ids[0]).dtype == np.uint8


def test_folder_errors(tmp_path):
    with pytest.raises(UserError, match="missing is not there; DATA is one of"):
        open_images(str(tmp_path / "missing"))
    with pytest.raises(UserError, match="no class folders"):
        open_images(str(tmp_path))
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    with pytest.raises(UserError, match=r"class folder .*cats has no PNG, JPEG or WebP image"):
        open_images(str(tmp_path))


def test_folder_takes_the_images_of_class_folders_only(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ramp("L").save(tmp_path / name / "ONE.PNG")
    (tmp_path / "a" / ".thumbs").mkdir()
    ramp("L").save(tmp_path / "a" / ".thumbs" / "x.png")
    ramp("L").save(tmp_path / "a" / ".hidden.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert open_images(tmp_path).ids == ("a/ONE.PNG", "b/ONE.PNG")


def test_classes_named_like_files_are_folders(tmp_path):
    for name in ("x.tar", "y.rec"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png(1))
    assert open_images(tmp_path).class_names == ("x.tar", "y.rec")


def test_unusual_names(tmp_path):
    for name in ("çlass é", "a\u2028b"):
        (tmp_path / name).mkdir()
        ramp("L").save(tmp_path / name / "1.png")
    images = open_images(tmp_path)
    path = tmp_path / "list.txt"
    path.write_text("\ufeff" + "".join(f"{image_id}\n" for image_id in images.ids), "utf-8")
    assert select_listed(images, path).ids == images.ids
    (tmp_path / "line\nbreak").mkdir()
    ramp("L").save(tmp_path / "line\nbreak" / "1.png")
    with pytest.raises(UserError, match="line break"):
        open_images(tmp_path)


def test_what_is_passed_over_is_said_and_a_link_to_nothing_refused(tmp_path):
    for name in ("a/1.jfif", "a/2.gif", "a/deeper/3.png", "b/4.png", "loose.png", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(png(1))
    with pytest.warns(PassedOverWarning, match="3 entries are passed over, first a/2.gif") as seen:
        assert open_images(tmp_path).ids == ("a/1.jfif", "b/4.png")
    assert len(seen) == 1
    (tmp_path / "list.csv").symlink_to(tmp_path / "gone")
    with pytest.warns(PassedOverWarning, match="directly in a class folder"):
        open_images(tmp_path)
    (tmp_path / "c").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="/c is a link to something that is not there"):
        open_images(tmp_path)


def test_a_folder_too_many_is_named(tmp_path):
    (tmp_path / "faces" / "ann").mkdir(parents=True)
    (tmp_path / "faces" / "ann" / "1.png").write_bytes(png(1))
    with pytest.raises(UserError, match=r"folders of images.* give .*/faces as DATA"):
        open_images(tmp_path)


def test_queries_and_rows_of_a_gallery_need_no_class(tmp_path, photo_folder):
    loose = tmp_path / "loose"
    loose.mkdir()
    for name in ("b.PNG", "ä 1.png"):
        (loose / name).write_bytes(png(1))
    (loose / "c.gif").write_bytes(b"GIF89a")
    with pytest.warns(PassedOverWarning, match=r"1 entry is passed over, first c\.gif"):
        images = open_unclassed(loose)
    assert (images.ids, images.class_names) == (("b.PNG", "ä 1.png"), ("",))
    with pytest.warns(PassedOverWarning):
        assert open_unclassed(f"folder:{loose}").ids == images.ids
    one = open_unclassed(loose / "ä 1.png")
    assert one.ids == ("ä 1.png",)
    assert np.array_equal(one.read(one.ids[0]), images.read("ä 1.png"))
    assert open_unclassed(photo_folder).class_names == open_images(photo_folder).class_names
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no class folders"):
        open_unclassed(tmp_path / "empty")
    with pytest.raises(UserError, match="no class folders"):  # training has classes
        open_images(loose)

import dataclasses
import io
import shutil

import numpy as np
import pytest
from PIL import Image

from unibct.data import loader
from unibct.data.decoding import UnreadableImageError, decode, fit
from unibct.data.image_set import select_listed
from unibct.data.loader import read_pixels
from unibct.data.readers.table import open_images
from unibct.errors import UserError


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def ramp(mode: str, size=(20, 12)) -> Image.Image:
    values = np.linspace(0, 255, size[0] * size[1]).reshape(size[1], size[0]).astype(np.uint8)
    image = Image.fromarray(values)
    return Image.merge("RGB", [image, image.rotate(180), image]) if mode == "RGB" else image


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [("PNG", {}, 0), ("WEBP", {"lossless": True}, 0), ("JPEG", {"quality": 95}, 20)],
)
def test_decoding_gives_the_pixels_back(mode, kind, options, tolerance):
    image = ramp(mode)
    pixels = decode(encoded(image, kind, **options))
    want = np.asarray(image).astype(int)
    if kind == "WEBP" and mode == "L":
        want = np.repeat(want[:, :, None], 3, axis=2)  # WebP has no grey images
    assert pixels.shape == want.shape
    assert np.abs(pixels.astype(int) - want).max() <= tolerance


def test_unusual_images():
    transparent = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert (decode(encoded(transparent, "PNG")) == 255).all(), "transparent is white"
    wide = Image.fromarray(np.array([[0, 65535], [256, 32768]], dtype=np.uint16))
    assert decode(encoded(wide, "PNG")).tolist() == [[0, 255], [1, 128]]
    cmyk = decode(encoded(ramp("RGB").convert("CMYK"), "JPEG"))
    assert cmyk.shape == (12, 20, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    assert decode(encoded(ramp("L"), "JPEG", exif=exif)).shape == (20, 12)
    palette = ramp("L").convert("P")
    assert decode(encoded(palette, "PNG")).shape == (12, 20, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_damaged_images_are_refused(kind):
    data = encoded(ramp("RGB", (64, 64)), kind)
    for broken in (b"", b"not an image", data[: len(data) // 2], data[:10]):
        with pytest.raises(UnreadableImageError):
            decode(broken)


def test_other_formats_are_refused():
    with pytest.raises(UnreadableImageError):
        decode(encoded(ramp("RGB"), "BMP"))


def test_fitting():
    colour = np.asarray(ramp("RGB"))
    assert fit(colour, 8, 6, 1).shape == (8, 6, 1)
    grey = np.asarray(ramp("L"))
    fitted = fit(grey, 12, 20, 3)
    assert fitted.shape == (12, 20, 3)
    assert (fitted == grey[:, :, None]).all()
    with pytest.raises(UserError, match="uint8"):
        fit(grey.astype(float), 4, 4, 1)


def test_folder(photo_folder, glyph_classes):
    images = open_images(str(photo_folder))
    assert len(images) == len(glyph_classes)
    assert images.class_names == tuple(f"class {c:02}" for c in range(12))
    assert images.ids == tuple(sorted(images.ids))
    assert all(
        i.startswith(images.class_names[c]) for i, c in zip(images.ids, images.labels, strict=True)
    )
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


def test_glyph_parts_have_disjoint_classes():
    parts = [open_images(f"glyphs:{part}") for part in ("train", "val", "test")]
    names = [set(part.class_names) for part in parts]
    assert not names[0] & names[1]
    assert not (names[0] | names[1]) & names[2]
    with pytest.raises(UserError, match="say which part"):
        open_images("glyphs")
    with pytest.raises(UserError, match="say which part"):
        open_images("glyphs:all")


def test_lists(tmp_path, glyph_classes):
    path = tmp_path / "list.txt"
    path.write_text("\n".join(glyph_classes.ids[30:50]) + "\n")
    chosen = select_listed(glyph_classes, path)
    assert chosen.ids == glyph_classes.ids[30:50]
    assert chosen.labels.min() == 0
    for text, message in [
        ("U+9999/nowhere\n", "line 1: 'U\\+9999/nowhere' is not an image"),
        (f"{glyph_classes.ids[0]}\n" * 2, "line 2: .* listed twice"),
        ("\n", "lists no image"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            select_listed(glyph_classes, path)
    with pytest.raises(UserError, match=r"missing.txt cannot be read .*unibct split"):
        select_listed(glyph_classes, tmp_path / "missing.txt")


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_batches_are_the_same_from_memory_and_from_disk(photo_folder, memory, monkeypatch):
    images = open_images(str(photo_folder))
    pixels = read_pixels(images, 32, 32, 1, memory=memory)
    order = np.random.default_rng(0).permutation(len(images))
    got = np.concatenate(list(pixels.batches(order, 50)))
    want = np.stack([fit(images.read(images.ids[i]), 32, 32, 1) for i in order])
    assert np.array_equal(got, want)


def test_unreadable_images_are_listed_or_left_out(photo_folder, tmp_path, monkeypatch):
    for i, source in enumerate(sorted(photo_folder.glob("*/*"))[:30]):
        target = tmp_path / source.parent.name / source.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(source.read_bytes()[:20] if i in (3, 7) else source.read_bytes())
    images = open_images(str(tmp_path))
    with pytest.raises(UserError, match=r"2 unreadable images: .*--skip-bad-images") as error:
        read_pixels(images, 32, 32, 1)
    assert images.ids[3] in str(error.value)
    assert images.ids[7] in str(error.value)
    for memory in (0, 1 << 30):
        pixels = read_pixels(images, 32, 32, 1, skip_bad=True, memory=memory)
        assert pixels.unreadable == (images.ids[3], images.ids[7])
        assert len(pixels.images) == 28
        assert sum(len(b) for b in pixels.batches(np.arange(28), 10)) == 28
    monkeypatch.setattr(loader, "_NAMED", 1)
    with pytest.raises(UserError, match="and 1 more"):
        read_pixels(images, 32, 32, 1)


def test_folder_takes_the_images_of_class_folders_only(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ramp("L").save(tmp_path / name / "ONE.PNG")
    (tmp_path / "a" / ".thumbs").mkdir()
    ramp("L").save(tmp_path / "a" / ".thumbs" / "x.png")
    ramp("L").save(tmp_path / "a" / ".hidden.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert open_images(tmp_path).ids == ("a/ONE.PNG", "b/ONE.PNG")


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


def test_digest_follows_the_pixels(photo_folder):
    images = open_images(str(photo_folder))
    digest = read_pixels(images, 32, 32, 1).digest
    assert read_pixels(images, 32, 32, 1, memory=0).digest == digest
    assert read_pixels(images.select(range(9)), 32, 32, 1).digest != digest
    white = images.read(images.ids[0]) * 0
    changed = dataclasses.replace(images, read=lambda image_id: white)
    assert read_pixels(changed, 32, 32, 1).digest != digest


def test_an_image_that_vanishes_is_named(photo_folder, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(photo_folder, root)
    images = open_images(root)
    pixels = read_pixels(images, 32, 32, 1, memory=0)
    (root / images.ids[4]).unlink()
    with pytest.raises(UserError, match=f"{images.ids[4]} cannot be read"):
        list(pixels.batches(np.arange(10), 5))


def test_the_memory_for_pixels_is_a_number_of_bytes(photo_folder, monkeypatch):
    images = open_images(photo_folder)
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")
    assert read_pixels(images, 8, 8, 1)._kept is None
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "2G")
    with pytest.raises(UserError, match="UNIBCT_PIXEL_MEMORY=2G: write a number of bytes"):
        read_pixels(images, 8, 8, 1)

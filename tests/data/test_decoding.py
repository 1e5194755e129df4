import io

import numpy as np
import pytest
from PIL import Image

from tests.data.example_images import encoded, ramp
from unibct.data.decoding import (
    UnreadableImageError,
    decode,
    encode_png,
    fit,
    image_suffix,
    unreadable_images_error,
)
from unibct.errors import UserError


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


def test_a_small_jpeg_that_says_it_is_huge_is_not_decoded():
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = (60000).to_bytes(2, "big") * 2
    with pytest.raises(UnreadableImageError, match="60000×60000 pixels are more than 178,956,970"):
        decode(bytes(data))


def test_fitting():
    colour = np.asarray(ramp("RGB"))
    assert fit(colour, 8, 6, 1).shape == (8, 6, 1)
    grey = np.asarray(ramp("L"))
    fitted = fit(grey, 12, 20, 3)
    assert fitted.shape == (12, 20, 3)
    assert (fitted == grey[:, :, None]).all()
    with pytest.raises(UserError, match="uint8"):
        fit(grey.astype(float), 4, 4, 1)


def test_suffixes_are_judged_by_the_first_bytes():
    kinds = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}
    assert {kind: image_suffix(encoded(ramp("RGB"), kind)) for kind in kinds} == kinds
    for data in (b"", b"GIF89a"):
        with pytest.raises(UnreadableImageError):
            image_suffix(data)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_png_keeps_the_pixels(mode):
    pixels = np.asarray(ramp(mode))
    assert np.array_equal(decode(encode_png(pixels)), pixels)


def test_the_error_names_ten_unreadable_images():
    one = str(unreadable_images_error("set", ["a (empty)"]))
    assert one.startswith("set has 1 unreadable image: a (empty). Repair")
    many = str(unreadable_images_error("set", [f"image {i}" for i in range(12)]))
    assert "set has 12 unreadable images: image 0; " in many
    assert "; image 9; and 2 more. Repair or remove them, or leave them out with --skip" in many
    assert "more" not in str(unreadable_images_error("set", ["x"] * 10))

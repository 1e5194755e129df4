import io
import struct
import threading
from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.example_images import encoded, ramp
from unibct.data import decoding as read_ahead
from unibct.data.decoding import (
    FITS,
    UnreadableImageError,
    decode,
    encode_png,
    fit,
    image_suffix,
    reading_threads,
    results_ahead,
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


def test_a_cmyk_image_is_not_inverted():
    colours = [[(255, 0, 0), (0, 0, 255)], [(255, 255, 255), (0, 0, 0)]]
    pixels = np.array(colours, dtype=np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    image = Image.fromarray(pixels).convert("CMYK")
    found = decode(encoded(image, "JPEG", quality=95))
    assert np.abs(found.astype(int) - pixels).max() <= 20


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_palette_image_has_the_colours_of_its_palette(kind):
    image = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8)).convert("P")
    image.putpalette([200, 10, 30, 0, 250, 90, 7, 8, 255])
    red, green, blue = [200, 10, 30], [0, 250, 90], [7, 8, 255]
    found = decode(encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert found.tolist() == [[red, green, blue], [blue, green, red]]
    image.info["transparency"] = 1  # the green entry
    if kind == "PNG":
        white = [255, 255, 255]
        assert decode(encoded(image, kind)).tolist() == [[red, white, blue], [blue, white, red]]


# What a camera stores for the picture [[0, 1, 2], [3, 4, 5]] (times 50) in each position.
STORED = {
    1: [[0, 1, 2], [3, 4, 5]],
    2: [[2, 1, 0], [5, 4, 3]],
    3: [[5, 4, 3], [2, 1, 0]],
    4: [[3, 4, 5], [0, 1, 2]],
    5: [[0, 3], [1, 4], [2, 5]],
    6: [[2, 5], [1, 4], [0, 3]],
    7: [[5, 2], [4, 1], [3, 0]],
    8: [[3, 0], [4, 1], [5, 2]],
}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
def test_pictures_are_turned_upright(orientation, kind):
    def picture(rows):
        return Image.fromarray(50 * np.array(rows, dtype=np.uint8).repeat(16, 0).repeat(16, 1))

    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"PNG": {}, "JPEG": {"quality": 95}, "WEBP": {"lossless": True}}[kind]
    found = decode(encoded(picture(STORED[orientation]), kind, exif=exif, **options)).astype(int)
    found = found if found.ndim == 2 else found[:, :, 0]
    want = np.asarray(picture(STORED[1]))
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= 10


def exif_block(*entries):
    """The EXIF block of (tag, type, count, four bytes of value or offset)."""
    directory = b"".join(struct.pack("<HHI4s", *entry) for entry in entries)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + directory + bytes(4)


def with_segment(jpeg, content, marker=0xE1):
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content + jpeg[2:]


ON_ITS_SIDE = (0x0112, 3, 1, b"\6\0\0\0")


@pytest.mark.parametrize(
    ("block", "turned"),
    [
        # A width and a resolution that are text: Pillow cannot write them again.
        (exif_block(ON_ITS_SIDE, (0x0100, 2, 4, b"\xff\xfe\xfdq")), True),
        (exif_block(ON_ITS_SIDE, (0x011A, 2, 4, b"ab\0\0")), True),
        (exif_block(ON_ITS_SIDE, (0x010F, 2, 5, b"\xff\xff\0\0")), True),  # beyond the block
        (exif_block((0x0112, 2, 2, b"6\0\0\0")), False),  # text
        (exif_block((0x0112, 3, 1, b"\x63\0\0\0")), False),  # 99
        (b"Exif\0\0II*\0\x08\0\0\0\5", False),
        (b"Exif\0\0hello", False),
        (b"Exif\0\0", False),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_malformed_exif_block_does_not_stop_a_run(block, turned):
    plain = encoded(ramp("L"), "JPEG")
    want = np.asarray(Image.open(io.BytesIO(plain)))
    found = decode(with_segment(plain, block))
    assert np.array_equal(found, np.rot90(want, -1) if turned else want)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_a_turn_in_the_xmp_alone_counts_for_bytes_as_for_pillow(kind):
    text = '<rdf:Description tiff:Orientation="6" xmlns:tiff="http://ns.adobe.com/tiff/1.0/"/>'
    data = encoded(ramp("RGB", (16, 8)), kind, xmp=text.encode())
    with Image.open(io.BytesIO(data)) as picture:
        expected = ImageOps.exif_transpose(picture)
        assert decode(data).shape[:2] == (expected.height, expected.width) == (16, 8)


def test_an_exif_block_behind_other_long_segments_is_read():
    plain = encoded(ramp("L"), "JPEG")
    data = with_segment(plain, exif_block(ON_ITS_SIDE))
    for _ in range(2):  # such as a colour profile in parts
        data = with_segment(data, b"ICC_PROFILE\0" + bytes(60_000), marker=0xE2)
    assert data.index(b"Exif") > 65536
    assert np.array_equal(decode(data), np.rot90(decode(plain), -1))


def test_extraneous_bytes_in_a_jpeg_are_passed_over():
    plain = encoded(ramp("RGB", (64, 64)), "JPEG")
    for marker in (b"\xff\xdb", b"\xff\xc4", b"\xff\xda"):
        place = plain.index(marker)
        assert np.array_equal(decode(plain[:place] + b"\0\0\0" + plain[place:]), decode(plain))


@pytest.mark.parametrize("problem", [KeyError("odd"), struct.error("odd"), IndexError("odd")])
def test_what_a_decoder_raises_is_an_unreadable_image(problem, monkeypatch):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(UnreadableImageError, match="odd"):
        decode(encode_png(np.asarray(ramp("L"))))


@pytest.mark.parametrize("with_exif", [False, True])
def test_a_photograph_that_lost_its_end_is_refused(with_exif):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(pixels), "JPEG")
    data = with_segment(data, exif_block(ON_ITS_SIDE)) if with_exif else data
    half = len(data) // 2
    for broken in (data[:half] + b"\xff\xd9", data[:half] + bytes(half)):
        with pytest.raises(UnreadableImageError, match=r"(?i)premature end"):
            decode(broken)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_an_exif_block_does_not_change_the_pixels(mode):
    plain = encoded(ramp(mode, (40, 24)), "JPEG")
    assert np.array_equal(decode(with_segment(plain, exif_block())), decode(plain))
    turned = decode(with_segment(plain, exif_block(ON_ITS_SIDE)))
    assert np.array_equal(turned, np.rot90(decode(plain), -1))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_damaged_images_and_other_formats_are_refused(kind):
    data = encoded(ramp("RGB", (64, 64)), kind)
    other = encoded(ramp("RGB"), "BMP")
    for broken in (b"", b"not an image", data[: len(data) // 2], data[:10], other):
        with pytest.raises(UnreadableImageError):
            decode(broken)


def test_a_small_jpeg_that_says_it_is_huge_is_not_decoded():
    data = bytearray(encoded(Image.new("RGB", (16, 16)), "JPEG"))
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


def oracle(image, how, size):
    """Pillow's own functions for the three fits."""
    functions = {
        "stretch": lambda: image.resize(size, Image.Resampling.BILINEAR),
        "crop": lambda: ImageOps.fit(image, size, Image.Resampling.BILINEAR),
        "letterbox": lambda: ImageOps.pad(image, size, Image.Resampling.BILINEAR),
    }
    return np.asarray(functions[how]())


@pytest.mark.parametrize("how", FITS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("shape", [(61, 40), (40, 61), (50, 50), (7, 200), (400, 13)])
def test_the_three_fits_are_pillows(how, mode, shape):
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    image = Image.fromarray(noise).convert(mode)
    for height, width in [(32, 32), (48, 24), (24, 48), (97, 31)]:
        want = oracle(image, how, (width, height)).reshape(height, width, -1)
        got = fit(np.asarray(image), height, width, want.shape[2], how)
        assert got.shape == want.shape
        # The corners of a cropped part may be rounded differently.
        assert np.abs(got.astype(int) - want).max() <= (how == "crop"), (height, width)


@pytest.mark.parametrize("how", FITS)
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_turned_photograph_is_fitted_upright(how, orientation):
    upright, exif = ramp("RGB", (30, 50)), Image.Exif()
    exif[0x0112] = orientation
    turned = upright.rotate({1: 0, 3: 180, 6: 90, 8: 270}[orientation], expand=True)
    got = fit(decode(encoded(turned, "PNG", exif=exif)), 40, 16, 3, how)
    assert np.abs(got.astype(int) - oracle(upright, how, (16, 40))).max() <= (how == "crop")


def test_the_fits_show_what_they_say():
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 200  # the middle third
    assert (fit(wide, 10, 10, 1, "crop") == 200).all()
    boxed = fit(wide, 30, 30, 1, "letterbox")[:, :, 0]
    assert (boxed[10:20] == wide).all()
    assert not boxed[:10].any()
    assert not boxed[20:].any()
    assert 0 < fit(wide, 10, 10, 1, "stretch").mean() < 200


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
    assert "; image 9; and 2 more. Repair or remove them, or leave them out with skip_bad" in many
    assert "more" not in str(unreadable_images_error("set", ["x"] * 10))


def test_each_process_of_a_machine_has_its_cores(monkeypatch):
    monkeypatch.setattr(read_ahead, "usable_cpus", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert reading_threads() == 8
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert reading_threads() == 2


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_jobs(workers):
    assert list(results_ahead((partial(int, n) for n in range(20)), workers)) == list(range(20))


def test_jobs_run_ahead_but_not_far():
    second = threading.Event()
    taken = []

    def jobs():
        for number in range(10):
            taken.append(number)
            yield second.set if number == 1 else partial(second.wait, 30)

    results = results_ahead(jobs(), 2)
    assert next(results)  # it has waited for the second one, which a thread did meanwhile
    assert len(taken) == 3

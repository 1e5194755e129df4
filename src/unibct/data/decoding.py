"""One encoded image: decoding it, and fitting it to what a model takes."""

import io
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from unibct.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_FORMATS = ("PNG", "JPEG", "WEBP")  # Pillow's other decoders stay out of reach of user files
_MOST_PIXELS = 178_956_970  # Pillow's own limit, against small files that fill the memory

Pixels = NDArray[np.uint8]


class UnreadableImageError(UserError):
    """The bytes are not a whole PNG, JPEG or WebP image."""


def decode(data: bytes) -> Pixels:
    """Pixels of a PNG, JPEG or WebP image: (height, width) if grey, else (height, width, 3).

    Transparent areas become white; the EXIF orientation is applied.
    """
    if not data:
        raise UnreadableImageError("the file is empty")
    try:
        if data[:3] == b"\xff\xd8\xff" and b"Exif\0" not in data[:65536]:
            return _decode_jpeg(data)
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return pillow_pixels(image)
    except UnidentifiedImageError as error:
        raise UnreadableImageError("not a PNG, JPEG or WebP image") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnreadableImageError(str(error).replace("\n", " ")) from error


def image_suffix(data: bytes) -> str:
    """``.jpg``, ``.png`` or ``.webp``, by the first bytes; nothing is decoded."""
    if data[:3] == b"\xff\xd8\xff":
        return ".jpg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return ".png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    raise UnreadableImageError("not a PNG, JPEG or WebP image" if data else "the file is empty")


def encode_png(pixels: Pixels) -> bytes:
    """A PNG file of some pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _decode_jpeg(data: bytes) -> Pixels:
    """JPEG by libjpeg-turbo, about twice as fast as Pillow."""
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    if int(height) * int(width) > _MOST_PIXELS:
        raise UnreadableImageError(f"{width}×{height} pixels are more than {_MOST_PIXELS:,}")
    if colorspace == "Gray":
        return simplejpeg.decode_jpeg(data, colorspace="GRAY")[:, :, 0]
    if colorspace in ("YCbCr", "RGB"):
        return simplejpeg.decode_jpeg(data, colorspace="RGB")
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:  # CMYK
        return pillow_pixels(image)


def pillow_pixels(image: Image.Image) -> Pixels:
    """The pixels of a Pillow image, as ``decode`` gives them."""
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits a pixel
        wide = np.asarray(image).astype(np.int64)
        return (wide >> 8).clip(0, 255).astype(np.uint8)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image).convert("RGB")
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"))
    return np.asarray(image.convert("RGB"))


def fit(pixels: NDArray[Any], height: int, width: int, channels: int) -> Pixels:
    """Pixels as (height, width, channels): grey or colour as asked, stretched to the size.

    Args:
        pixels: uint8, (h, w), (h, w, 1) or (h, w, 3).
        height: rows wanted.
        width: columns wanted.
        channels: 1 or 3.
    """
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise UserError(
            "an image must be uint8 of shape (height, width), (height, width, 1) or "
            f"(height, width, 3), not {pixels.dtype} of shape {pixels.shape}"
        )
    if channels == 1 and pixels.ndim == 3:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    if pixels.shape[:2] != (height, width):
        resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(resized)
    if pixels.ndim == 2:
        pixels = np.broadcast_to(pixels[:, :, None], (height, width, channels))
    return pixels

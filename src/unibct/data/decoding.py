"""Decoding a single image, resizing it to the input of a model, and the threads that do so."""

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from unibct.distributed.cpus import usable_cpus
from unibct.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp")
OTHER_SUFFIXES = (".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".ppm")
FORMATS = ("PNG", "JPEG", "WEBP")  # Pillow's other decoders are never used on user files
_JPEG = b"\xff\xd8\xff"  # how its data begins
_MAX_PIXELS = 178_956_970  # Pillow's limit: a small file must not fill the memory
_ORIENTATION_TAG = 0x0112  # of EXIF
_ORIENTATION_MARKS = (b"Exif\0", b"tiff:Orientation")  # the second one is in XMP
_TURN_UPRIGHT = {  # what to do with a stored picture, by its orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LOST_PIXELS = ("premature end", "bad huffman code")  # what libjpeg says if pixels are missing
_NAMED_IN_ERROR = 10  # an error names this many unreadable images, and then says "and n more"

DEFAULT_FIT = "stretch"
FITS = {  # what happens to an image whose sides have another ratio than the input's
    "stretch": "all of it, stretched",
    "crop": "the largest centred part with the input's ratio",
    "letterbox": "all of it, with black bars",
}

VECTORS = "vectors"  # instead of a name from ``FITS``: no images, but finished vectors
Pixels = NDArray[np.uint8]
T = TypeVar("T")


class Frame(NamedTuple):
    """The form that images are brought into before a network sees them."""

    height: int
    width: int
    channels: int  # 1 for grey, 3 for colour
    fit: str = DEFAULT_FIT  # a name from ``FITS``

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image's pixels."""
        return self.height, self.width, self.channels


class UnreadableImageError(UserError):
    """Raised if bytes are not a complete PNG, JPEG or WebP image."""


def unreadable_images_error(set_name: str, problems: Sequence[str]) -> UserError:
    """Return the error for a set with unreadable images; ``problems`` has one text for each."""
    named = "; ".join(problems[:_NAMED_IN_ERROR])
    more = len(problems) - _NAMED_IN_ERROR
    return UserError(
        f"{set_name} has {len(problems)} unreadable image{'s' if len(problems) > 1 else ''}: "
        f"{named}{f'; and {more} more' if more > 0 else ''}. "
        "Repair or remove them, or leave them out with skip_bad, or by a list of images"
    )


def decode(data: bytes) -> Pixels:
    """Decode a PNG, JPEG or WebP image to (height, width) if grey, else (height, width, 3).

    Transparent areas become white. The EXIF orientation is applied.
    """
    if not data:
        raise UnreadableImageError("the file is empty")
    try:
        if data[:3] == _JPEG:
            return _decode_jpeg(data)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return pillow_pixels(image)
    except (UnreadableImageError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImageError("not a PNG, JPEG or WebP image") from error
    except Exception as error:  # on damaged bytes a decoder can raise almost anything
        reason = str(error).replace("\n", " ") or type(error).__name__
        raise UnreadableImageError(reason) from error


def image_suffix(data: bytes) -> str:
    """Return ``.jpg``, ``.png`` or ``.webp``, judged by the first bytes. Nothing is decoded."""
    if data[:3] == _JPEG:
        return ".jpg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return ".png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    raise UnreadableImageError("not a PNG, JPEG or WebP image" if data else "the file is empty")


def encode_png(pixels: Pixels) -> bytes:
    """Return the bytes of a PNG file with these pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _decode_jpeg(data: bytes) -> Pixels:
    """Decode a JPEG with libjpeg-turbo, about twice as fast as Pillow.

    libjpeg-turbo is strict. What it refuses, such as extraneous bytes between two segments, is
    left to Pillow, unless pixels are missing: Pillow would fill them with grey.
    """
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
        if int(height) * int(width) > _MAX_PIXELS:
            raise UnreadableImageError(f"{width}×{height} pixels are more than {_MAX_PIXELS:,}")
        if colorspace == "Gray":
            return _upright(simplejpeg.decode_jpeg(data, colorspace="GRAY")[:, :, 0], data)
        if colorspace in ("YCbCr", "RGB"):
            return _upright(simplejpeg.decode_jpeg(data, colorspace="RGB"), data)
    except UnreadableImageError:
        raise
    except ValueError as error:
        if any(words in str(error).lower() for words in _LOST_PIXELS):
            raise
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        return pillow_pixels(image)  # also CMYK


def _upright(pixels: Pixels, data: bytes) -> Pixels:
    """Turn the pixels of a JPEG as its EXIF orientation says, or else that of its XMP."""
    if not any(mark in data for mark in _ORIENTATION_MARKS):
        return pixels
    with Image.open(io.BytesIO(data), formats=["JPEG"]) as header:  # decodes no pixels
        turn = _TURN_UPRIGHT.get(_orientation(header))
    return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))


def pillow_pixels(image: Image.Image) -> Pixels:
    """Return the pixels of a Pillow image in the form that ``decode`` returns."""
    image.load()
    turn = _TURN_UPRIGHT.get(_orientation(image))
    image = image if turn is None else image.transpose(turn)
    if image.mode.startswith("I"):  # 16 bits per pixel
        pixels_16_bit = np.asarray(image).astype(np.int64)
        return (pixels_16_bit >> 8).clip(0, 255).astype(np.uint8)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image).convert("RGB")
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"))
    return np.asarray(image.convert("RGB"))


def _orientation(image: Image.Image) -> Any:
    """Return the EXIF or XMP orientation; None if there is none, or if it cannot be read.

    Only this tag is read. Pillow's ``exif_transpose`` also writes the EXIF block again, which
    fails if any other tag is malformed.
    """
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
        hash(orientation)  # a malformed entry can be a list
    except Exception:  # malformed EXIF is no reason to lose the picture
        return None
    return orientation


def fit(
    pixels: NDArray[Any], height: int, width: int, channels: int, how: str = DEFAULT_FIT
) -> Pixels:
    """Return an image as (height, width, channels): resized, and converted to grey or colour.

    The pixels are uint8, (h, w), (h, w, 1) or (h, w, 3). ``how`` is a name from ``FITS``: what
    happens if the sides have another ratio. With ``VECTORS`` the input is a finished vector,
    (1, width, 1) float32, and is returned as it is.
    """
    if how == VECTORS or pixels.dtype == np.float32:
        if pixels.dtype != np.float32:
            raise UserError("the model takes finished vectors, not images: give embeddings:PATH")
        if how != VECTORS:
            raise UserError("the model takes images, not finished vectors")
        if pixels.shape != (height, width, channels):
            raise UserError(f"the vectors have dimension {pixels.size}; the model takes {width}")
        return pixels
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    is_image = pixels.dtype == np.uint8 and pixels.ndim in (2, 3) and pixels.size > 0
    if not is_image or pixels.shape[2:] not in ((), (3,)):
        raise UserError(
            "an image must be uint8 of shape (height, width), (height, width, 1) or "
            f"(height, width, 3) with at least one pixel, not {pixels.dtype} of shape "
            f"{pixels.shape}"
        )
    if channels == 1 and pixels.ndim == 3:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    if pixels.shape[:2] != (height, width):
        pixels = np.asarray(_RESIZERS[how](Image.fromarray(pixels), width, height))
    if pixels.ndim == 2:
        pixels = np.broadcast_to(pixels[:, :, None], (height, width, channels))
    return pixels


def _stretched(image: Image.Image, width: int, height: int) -> Image.Image:
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _cropped(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize the largest centred part that has the ratio of the result."""
    part_width = min(float(image.width), image.height * width / height)
    part_height = min(float(image.height), image.width * height / width)
    left, top = (image.width - part_width) / 2, (image.height - part_height) / 2
    part = (left, top, left + part_width, top + part_height)
    return image.resize((width, height), Image.Resampling.BILINEAR, box=part)


def _letterboxed(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize the whole image and centre it on black."""
    inner_width, inner_height = width, height
    if image.width * height > width * image.height:
        inner_height = max(round(image.height / image.width * width), 1)
    else:
        inner_width = max(round(image.width / image.height * height), 1)
    result = Image.new(image.mode, (width, height))
    place = (round((width - inner_width) / 2), round((height - inner_height) / 2))
    result.paste(_stretched(image, inner_width, inner_height), place)
    return result


_RESIZERS: dict[str, Callable[[Image.Image, int, int], Image.Image]] = {
    "stretch": _stretched,
    "crop": _cropped,
    "letterbox": _letterboxed,
}


def results_ahead(jobs: Iterable[Callable[[], T]], workers: int) -> Iterator[T]:
    """Yield the results of functions in their order; so many threads call a few of them ahead."""
    if workers == 0:
        for job in jobs:
            yield job()
        return
    with ThreadPoolExecutor(workers) as pool:
        results: deque[Future[T]] = deque()
        try:
            for job in jobs:
                results.append(pool.submit(job))
                if len(results) > workers:
                    yield results.popleft().result()
            while results:
                yield results.popleft().result()
        finally:  # the caller may stop early
            for result in results:
                result.cancel()


def reading_threads() -> int:
    """Return the number of threads that read images."""
    cores = usable_cpus()
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    if processes.isdecimal():  # torchrun sets OMP_NUM_THREADS to 1 on any number of cores
        return max(2, cores // int(processes))
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")  # smaller if processes share the cores
    return max(2, int(omp_threads) if omp_threads.isdecimal() else cores)

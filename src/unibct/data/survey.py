"""A look at a sample of an image set: how large the images are, and whether they have colour."""

import io
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from PIL import Image

from unibct.data.decoding import FORMATS, Pixels, UnreadableImageError, pillow_pixels
from unibct.data.image_set import ImageSet

SAMPLE = 200  # images that are looked at
_GLANCE = (64, 64)  # pixels; colour shows in a small version, which a JPEG decodes to quickly
_COLOUR_DIFFERENCE = 4.0  # mean difference of two channels from which an image has colour
_COLOUR_SHARE = 0.1  # of the sample: a few grey photographs among coloured ones are usual


@dataclass(frozen=True)
class Survey:
    """What a sample of an image set shows."""

    images: int  # in the whole set
    classes: int
    per_class: float  # median number of images of a class
    looked_at: int  # images in the sample that could be read
    height: int  # median rows and columns of an image; 0 if none could be read
    width: int
    colour: bool  # grey images that are stored in colour have none

    @property
    def side(self) -> int:
        """The shorter one of height and width."""
        return min(self.height, self.width)


def survey(images: ImageSet, sample: int = SAMPLE) -> Survey:
    """Look at a sample of at most so many images. The same set gives the same sample.

    Unreadable images are left out here; they are reported when the set is used.
    """
    count = min(sample, len(images))
    rows = np.random.default_rng(0).choice(len(images), count, replace=False)
    glances: list[tuple[int, int, bool]] = []  # height, width, whether it has colour
    for row in np.sort(rows):
        with suppress(UnreadableImageError):
            glances.append(_glance(images, images.ids[int(row)]))
    heights, widths, colours = zip(*glances, strict=True) if glances else ([0], [0], [False])
    sizes = np.bincount(images.labels, minlength=1)
    return Survey(
        images=len(images),
        classes=len(images.class_names),
        per_class=float(np.median(sizes)),
        looked_at=len(glances),
        height=int(np.median(heights)),
        width=int(np.median(widths)),
        colour=sum(colours) > _COLOUR_SHARE * len(colours),
    )


def has_colour(pixels: Pixels) -> bool:
    """Return whether an image has colour, and not only three equal channels."""
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        return False
    channels = pixels.astype(np.int16)
    difference = np.abs(channels - np.roll(channels, 1, axis=2)).mean()
    return bool(difference > _COLOUR_DIFFERENCE)


def _glance(images: ImageSet, image_id: str) -> tuple[int, int, bool]:
    if images.encoded is None:
        pixels = images.read(image_id)
        return pixels.shape[0], pixels.shape[1], has_colour(pixels)
    data = images.encoded(image_id)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            image.draft("RGB" if image.mode in ("RGB", "YCbCr") else image.mode, _GLANCE)
            pixels = pillow_pixels(image)
    except MemoryError:
        raise
    except Exception as error:  # on damaged bytes a decoder can raise almost anything
        raise UnreadableImageError(str(error)) from error
    return height, width, has_colour(pixels)

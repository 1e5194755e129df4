"""The old model beside raw pixels: whether it is strong enough to judge an upgrade by."""

from collections.abc import Callable
from typing import Any

import numpy as np

from unibct.arrays import Floats, Ints, checked_labels, is_array, to_numpy
from unibct.data.decoding import DEFAULT_FIT, Frame, Pixels
from unibct.data.image_set import ImageSet
from unibct.data.loader import unread_pixels
from unibct.embeddings.recall import ModelRecall, model_recall
from unibct.errors import UserError
from unibct.models.embedder import Embedder
from unibct.models.input import InputSpec

_ANY_MODEL = Frame(32, 32, 3, DEFAULT_FIT)  # where it is not known what the model takes
_BATCH = 256
NOT_CHECKED = (
    "whether the old model is too weak to judge an upgrade by was not checked: it was not compared "
    "with raw pixels"
)


def old_model_recall(
    vectors: Floats, labels: Any, images: Any, *, frame: Frame | None = None, seed: int = 0
) -> ModelRecall | None:
    """Compare the old model with raw pixels on a sample of the test images.

    ``vectors`` are its (images, dim) embeddings, ``labels`` (images,) integers, ``images`` an
    ``ImageSet`` or uint8 pixels, ``frame`` the form in which the model takes an image, if that is
    known. ``seed`` chooses the sample: whole classes, at most 2,000 images. The result is None
    without images, also where finished vectors stand for them, or if no class has two.
    """
    if images is None or (isinstance(images, ImageSet) and images.vector_dim is not None):
        return None
    classes = checked_labels(labels, len(vectors))
    if is_array(images):
        read = _checked_pixels(images, len(vectors)).__getitem__
    elif isinstance(images, ImageSet):
        read = _reader(images, frame or _ANY_MODEL, len(vectors))
    else:
        raise UserError("images must be an image set or an array of uint8 pixels")
    return model_recall(vectors, classes, read, seed=seed)


def embedder_frame(embedder: Embedder) -> Frame | None:
    """Return the form in which an embedder takes an image; None if it takes none."""
    spec: InputSpec | None = getattr(embedder, "input", None)
    return None if spec is None else spec.frame


def _reader(images: ImageSet, frame: Frame, count: int) -> Callable[[Ints], Pixels]:
    if len(images) != count:
        raise UserError(f"{images.name} has {len(images)} images for {count} embeddings")
    pixels = unread_pixels(images, frame)
    return lambda rows: np.concatenate(list(pixels.batches(rows, _BATCH)))


def _checked_pixels(images: Any, count: int) -> Pixels:
    pixels = to_numpy(images)
    is_image = pixels.dtype == np.uint8 and pixels.ndim in (3, 4) and 0 not in pixels.shape[1:]
    if not is_image or len(pixels) != count:
        raise UserError(
            f"images must be uint8 of shape ({count}, height, width) or ({count}, height, width, "
            f"channels), not {pixels.dtype} of shape {pixels.shape}"
        )
    return pixels

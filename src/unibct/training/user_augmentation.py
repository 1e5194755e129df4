"""Changes to training images by the user's own function, such as one of albumentations.

The built-in changes are in ``data/augmentation.py``.
"""

import inspect
from functools import cache
from typing import Any

import numpy as np

from unibct.data.decoding import Pixels
from unibct.errors import UserError, first_line
from unibct.python_reference import find_attribute

_PREFIX = "python:"


@cache
def find_augment(name: str) -> Any:
    """Import the function that a recipe names, or explain how to name one."""
    if not name.startswith(_PREFIX):
        raise UserError(f"augment = {name}: write python:MODULE:ATTRIBUTE")
    function = find_attribute(name.removeprefix(_PREFIX))
    if not callable(function) or not _takes_two(function):
        raise UserError(f"augment = {name} is not a function of (pixels, rng)")
    return function


def _takes_two(function: Any) -> bool:
    """Return whether a function can be called with two arguments, as far as that is known."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function in C
        return True
    return True


def augmented(name: str, pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Return changed pixels of the same shape and kind.

    Args:
        name: ``python:MODULE:ATTRIBUTE``, a function of (pixels, rng). It must draw from ``rng``
            only, so that a run can be repeated. The loader's threads call it.
        pixels: (images, height, width, channels) uint8.
        rng: a generator for these images.
    """
    function = find_augment(name)
    try:
        result: Any = np.asarray(function(pixels, rng))
    except Exception as error:  # whatever the user's own code raises
        raise UserError(
            f"augment = {name} failed ({type(error).__name__}: {first_line(error)})"
        ) from error
    if result.shape != pixels.shape or result.dtype != np.uint8:
        raise UserError(
            f"augment = {name} returned {result.dtype} of shape {result.shape}, not uint8 of shape "
            f"{pixels.shape}"
        )
    return result

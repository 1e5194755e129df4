"""A recipe: every number of a training, typed, frozen and checked when it is made.

A TOML file holds some of them, ``--set`` and ``updated`` change single ones, and the rest have
their defaults. ``RECIPES`` in the package are such files.
"""

import difflib
import inspect
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from unibct.data.decoding import Pixels
from unibct.errors import UserError, first_line
from unibct.registry import find_attribute
from unibct.training import RECIPE_FOLDER, SMALL_GREY, shipped_recipes

# Settings that are not used before the end of the warm-up.
AFTER_WARMUP = ("eta", "refresh_epochs", "tau", "lam", "drop")

# Settings of earlier versions, with their defaults. What was trained so can still be read and used.
EARLIER_SETTINGS = {"accumulate": 1, "average": 0.0, "dropout": 0.0, "low_resolution": 0.0}

_PREFIX = "python:"  # of an ``augment`` setting

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _read_size(value: Any) -> Any:
    """Return (height, width) of what a user may write as a size; anything else as it is."""
    if isinstance(value, str):
        parts = value.lower().replace("×", "x").split("x")
        if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
            raise ValueError("write a number, or HEIGHTxWIDTH such as 128x64")
        value = tuple(int(part) for part in parts)
        return value * 2 if len(value) == 1 else value
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


_Side = Annotated[int, Field(ge=1, le=65_535)]
Size = Annotated[tuple[_Side, _Side], BeforeValidator(_read_size)]


def _as_tuple(value: Any) -> Any:
    """Return a single number or name as a tuple of one."""
    return (value,) if isinstance(value, (int, float, str)) else value


_Mean = Annotated[float, Field(ge=0, le=1)]
_Deviation = Annotated[float, Field(gt=0, le=1)]
_Channels = Field(min_length=1, max_length=3)
LayerNames = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Means = Annotated[tuple[_Mean, ...], BeforeValidator(_as_tuple), _Channels]
Deviations = Annotated[tuple[_Deviation, ...], BeforeValidator(_as_tuple), _Channels]


class Recipe(BaseModel):
    """The numbers that a model is trained with. The defaults are the paper's.

    Epochs are counted from 0. The learning rate is multiplied by ``gamma`` at each milestone
    (schedule ``milestones``), or falls to zero along half a cosine (schedule ``cosine``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    architecture: str = "resnet18"
    # The images that the network takes. None: the architecture's own.
    size: Size | None = None  # "128x64" is 128 high and 64 wide, 64 is square
    channels: Literal[1, 3] | None = None  # grey or colour
    fit: Literal["stretch", "crop", "letterbox"] | None = None  # images with another ratio
    mean: Means | None = None  # of pixels from 0 to 1; one number, or one for each channel
    deviation: Deviations | None = None
    # The first weights: a file or folder, or "random". None: the architecture's own, if any.
    weights: str | None = None
    download: bool = False  # whether they may be fetched from a hub
    pooling: Literal["auto", "cls", "mean"] = "auto"  # how another library's network ends
    dim: Annotated[int, Field(ge=1)] | None = None  # None: the old model's, or the network's own
    epochs: Annotated[int, Field(ge=1)] = 35
    # The least number of steps: a small set gets more epochs, see training/plan.py.
    steps: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=2)] = 256
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.1
    backbone_lr: Positive = 1.0  # factor on the rate of all layers before the head
    momentum: Share = 0.9  # of adamw: its first beta
    weight_decay: NotNegative = 1e-4
    schedule: Literal["milestones", "cosine"] = "milestones"
    milestones: tuple[Annotated[int, Field(ge=0)], ...] = (20, 26, 32)
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    lr_warmup_epochs: NotNegative = 0.0  # epochs in which the rate rises linearly from 0
    clip: NotNegative = 0.0  # the largest norm of all gradients together; 0: any
    freeze: LayerNames = ()  # beginnings of the names of layers that are not trained
    shift: Annotated[int, Field(ge=0)] = 0  # move each image by up to this many pixels
    flip: bool = False  # mirror half of the images, drawn again in each epoch
    crop: Share = 0.0  # cut off up to this share of an image's area and stretch the rest
    colour: Share = 0.0  # change brightness, contrast and saturation by up to this share
    augment: str | None = None  # python:MODULE:ATTRIBUTE, a function of the user's own
    scale: Positive = 64.0
    margin: Annotated[float, Field(ge=0, lt=1.6)] = 0.5
    eta: NotNegative = 1.0  # weight of the compatibility loss
    warmup_epochs: Annotated[int, Field(ge=0)] = 10  # first epochs, without that loss
    # Start from the old weights (same architecture only). None: if the method does so.
    warm_start: bool | None = None
    refresh_epochs: tuple[Annotated[int, Field(ge=0)], ...] = (20,)  # besides the warm-up's end
    tau: Annotated[float, Field(ge=1e-30)] = 0.05  # prototypes refuse smaller ones
    lam: Share = 0.9
    drop: Share = 0.1
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of the classes that a step uses
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of the forward pass
    sync_batch_norm: bool = True  # means and variances over all processes
    compile: bool = False  # use torch.compile; measure first, see docs/scaling.md
    # None: 0, or one more than the old model's, so that the two start from different weights
    seed: Annotated[int, Field(ge=0, lt=2**62)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("milestones", "refresh_epochs"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} must rise, not {list(values)}")
        if self.sample_rate < 1 and self.optimizer != "sgd":
            raise ValueError("sample_rate below 1 needs optimizer = sgd")
        return self

    def learning_rate(self, progress: float) -> float:
        """Return the learning rate after ``progress`` epochs, which may be a fraction."""
        rate = self.lr
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * min(progress / self.epochs, 1.0)))
        else:
            rate *= self.gamma ** sum(int(progress) >= epoch for epoch in self.milestones)
        if progress < self.lr_warmup_epochs:
            rate *= progress / self.lr_warmup_epochs
        return rate

    def updated(self, **changes: Any) -> "Recipe":
        """Return the recipe with some values changed, and check it again."""
        return _checked({**self.model_dump(), **changes}, "recipe")


def load_recipe(name: str = SMALL_GREY, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe from a TOML file, or one of the package's by name.

    Args:
        name: a name from ``shipped_recipes``, or the path of a TOML file.
        overrides: settings that replace the file's, each written ``key=value``. Whoever gives
            ``epochs`` wants that number of them: then the file's least number of steps is dropped.
    """
    try:
        values = tomllib.loads(_recipe_text(name))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe {name}: {error}") from error
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UserError(f"setting {override!r}: write it as key=value, such as epochs=20")
        try:
            values[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = value
    named = {override.partition("=")[0].strip() for override in overrides}
    if "epochs" in named and "steps" not in named:
        values.pop("steps", None)
    return _checked(values, f"recipe {name}")


def with_flat_recipe(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the entries of its recipe as ``recipe.KEY``, before the others."""
    recipe: Mapping[str, Any] = description.get("recipe", {})
    return {f"recipe.{key}": value for key, value in recipe.items()} | {
        key: value for key, value in description.items() if key != "recipe"
    }


def nearest_recipe(recipe: Recipe) -> tuple[str, list[str]]:
    """Return the shipped recipe with the fewest other values, and those values as ``key=value``.

    A value that is left out in ``recipe`` cannot be written, so it counts as many.
    """
    values = recipe.model_dump(mode="json")
    candidates: list[tuple[int, int, str, list[str]]] = []
    for name in shipped_recipes():
        shipped = load_recipe(name).model_dump(mode="json")
        differing = {key: value for key, value in values.items() if value != shipped[key]}
        if "epochs" in differing and shipped["steps"] is not None:
            differing["steps"] = values["steps"]
            if values["steps"] is None:  # epochs alone drop the file's steps
                del differing["steps"]
        unwritable = sum(value is None for value in differing.values())
        changes = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in differing.items()
            if value is not None
        ]
        count = len(changes) + unwritable * len(values)
        candidates.append((count, len(name), name, changes))  # of equal ones the shortest name
    _, _, name, changes = min(candidates)
    return name, changes


def _recipe_text(name: str) -> str:
    if name in shipped_recipes():
        return (RECIPE_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"recipe {name!r} is neither a readable TOML file nor one of "
            f"{', '.join(shipped_recipes())}"
        ) from error


def _checked(values: dict[str, Any], source: str) -> Recipe:
    # TOML has lists where the recipe has tuples.
    values = {
        key: tuple(cast(list[Any], value)) if isinstance(value, list) else value
        for key, value in values.items()
    }
    try:
        return Recipe(**values)
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors()]
        raise UserError(f"{source}: {'; '.join(problems)}") from error


def _problem(details: Any) -> str:
    key = ".".join(str(part) for part in details["loc"])
    if details["type"] == "extra_forbidden":
        if key in EARLIER_SETTINGS:
            return f"{key} was a setting of earlier versions"
        close = difflib.get_close_matches(key, Recipe.model_fields, n=1)
        return f"unknown setting {key!r}" + (f", did you mean {close[0]!r}?" if close else "")
    message = details["msg"].removeprefix("Value error, ")
    return f"{key} = {details['input']!r}: {message}" if key else message


# Changes to training images by the user's own function, such as one of albumentations. The
# built-in ones are in ``data/augmentation.py``.


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
    """Return what the function ``python:MODULE:ATTRIBUTE`` of (pixels, rng) makes of pixels.

    They are (images, height, width, channels) uint8 before and after. The function must draw from
    ``rng`` only, so that a run can be repeated. The loader's threads call it.
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

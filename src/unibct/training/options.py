"""What ``train`` is asked for, besides its recipe: each option's name, type, default and help.

They are written here only: the command line makes its flags of these fields, and ``train`` takes
them by name.
"""

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.methods import DEFAULT_METHOD, NO_METHOD

if TYPE_CHECKING:  # help texts need no torch
    from unibct.models.embedder import Embedder
    from unibct.training.recipe import Recipe
    from unibct.training.tracking import Tracker


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """The options that the command line has too."""

    method: str | None = field(
        default=None,
        metadata={
            "help": "how the model is made compatible; see the list of methods  "
            f"[default: {DEFAULT_METHOD} with an old model, else {NO_METHOD}]"
        },
    )
    # To the bit with the same number of processes, otherwise to rounding.
    resume: bool = field(
        default=False, metadata={"help": "continue from the checkpoint in the folder"}
    )
    checkpoint_every: int | None = field(
        default=None,
        metadata={
            "help": "write a checkpoint every so many steps, not only per epoch",
            "metavar": "STEPS",
            "min": 1,
        },
    )
    workers: int | None = field(
        default=None,
        metadata={
            "help": "threads that load images in advance  [default: one per core]",
            "min": 0,
        },
    )
    tensorboard: Path | None = field(
        default=None,
        metadata={
            "help": "write event files for TensorBoard to this folder",
            "metavar": "FOLDER",
        },
    )
    # The model does not learn these classes. The best epoch's model is kept in ``out/best``. A run
    # that is resumed keeps its share.
    validation: float | None = field(
        default=None,
        metadata={
            "help": "share of the classes to set aside and measure recall@1 on after each epoch, "
            "0 for none  [default: 0.1 if that is 10 classes or more]",
            "metavar": "SHARE",
        },
    )
    device: str = field(
        default="auto", metadata={"help": "where to compute: auto, cpu, cuda, cuda:1, mps"}
    )


@dataclass(frozen=True)
class TrainOptions(TrainFlags):
    """Where and on what to train. Only old, method and validation change the result."""

    images: ImageSet = field(metadata={"help": "the training set"})
    recipe: "Recipe | None" = field(
        metadata={"help": "every number of the run; None: the shipped recipe that fits the images"}
    )
    out: str | Path = field(
        metadata={"help": "the model's folder; while it trains, a checkpoint and the metrics"}
    )
    _: KW_ONLY
    # A model, or what ``open_embedder`` opens.
    old: "Embedder | None" = field(
        default=None, metadata={"help": "the old model, whose gallery the new one is to search"}
    )
    # Kept there: old embeddings, and the state at the end of a warm-up.
    cache: Path | None = field(
        default=None, metadata={"help": "folder in which runs share what is the same in them"}
    )
    tracker: "Tracker | None" = field(
        default=None,
        metadata={"help": "anything with log(values, step); the first process calls it"},
    )
    label: str = field(default="training", metadata={"help": "the name of the progress bar"})

    def __post_init__(self) -> None:
        """Refuse names and paths, which the command line takes for what they stand for."""
        opened_by = {
            "images": "open_images",
            "recipe": "training.recipe.load_recipe",
            "old": "open_embedder",
        }
        for name, opener in opened_by.items():
            value: object = getattr(self, name)
            if isinstance(value, (str, Path)):
                raise UserError(
                    f"{name} is the text {str(value)!r}: open it first with "
                    f"unibct.{opener}({str(value)!r})"
                )
        if self.workers is not None and self.workers < 0:
            raise UserError(f"workers must not be negative, not {self.workers}")


_Fields = ParamSpec("_Fields")
_Options = TypeVar("_Options")
_Result = TypeVar("_Result")


def takes_fields_of(
    options: Callable[_Fields, _Options],
) -> Callable[[Callable[[_Options], _Result]], Callable[_Fields, _Result]]:
    """Let a function of an options object be called with the fields of its class.

    Signature and ``Args:`` of the function come from the class.
    """

    def changed(function: Callable[[_Options], _Result]) -> Callable[_Fields, _Result]:
        @wraps(function)
        def called(*arguments: _Fields.args, **named: _Fields.kwargs) -> _Result:
            return function(options(*arguments, **named))

        described: Any = options
        lines = [f"    {one.name}: {one.metadata['help']}" for one in fields(described)]
        called.__doc__ = "\n".join([f"{inspect.getdoc(function)}\n\nArgs:", *lines])
        result = inspect.signature(function).return_annotation
        signature = inspect.signature(options).replace(return_annotation=result)
        vars(called)["__signature__"] = signature
        return called

    return changed

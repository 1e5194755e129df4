"""The compatibility methods: the table of their names, and how a variant of one is written.

The formulas are in ``losses`` and ``prototypes``, what a method is in ``base``. The training loop
calls a method through its base class and knows none by name. An entry names the class of its method
as text, which is imported when the method is made: the command line lists the names without torch.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Self

from unibct.errors import UserError
from unibct.registry import Registry

if TYPE_CHECKING:
    from unibct.methods.base import Method, OldEmbeddings, Settings

# The recipe's settings that the name of a variant may give: those that only compatibility uses.
RECIPE_SETTINGS = ("eta", "warmup_epochs", "warm_start", "tau", "lam", "drop")
_VALUES = {bool: "true or false", int: "a whole number", float: "a number"}


def allow_any_classes(old_classes: Sequence[str], new_classes: Sequence[str]) -> None:
    """Accept all classes. Most methods work with any old training set."""


def require_known_classes(old_classes: Sequence[str], new_classes: Sequence[str]) -> None:
    """Raise an error if the old model was not trained on each of the new classes."""
    unknown = sorted(set(new_classes) - set(old_classes))
    if unknown:
        raise UserError(
            f"bct cannot be used here: the old model does not know {len(unknown)} of the "
            f"{len(new_classes)} new classes, first {unknown[0]!r}; use unibct"
        )


@dataclass(frozen=True)
class MethodEntry:
    """How to make a method, and what it needs."""

    home: str  # where its class is: ``module:attribute``
    description: str  # one line for help texts
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # arguments of the class
    # Further arguments that the name of a variant may give, and their types.
    settings: Mapping[str, type] = field(default_factory=dict[str, type])
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what replaces the recipe's
    needs_old_model: bool = True
    needs_old_embeddings: bool = True  # whether the old model must embed the new training set
    needs_old_classifier: bool = False  # whether it uses the old model's class weights
    # Whether new and old embeddings must have the same dimension. For the other methods, a new
    # model of another dimension gets a projection into the old space.
    needs_same_dim: bool = False
    has_warmup: bool = True  # whether it starts after the recipe's warm-up only, as the paper's do
    # Whether training starts from the old weights where it can, unless the recipe says otherwise.
    warm_starts: bool = False
    # Raises an error for old and new class names that the method cannot handle.
    check_classes: Callable[[Sequence[str], Sequence[str]], None] = allow_any_classes

    def uses_old_classifier(self, warm_start: bool | None) -> bool:
        """Return whether a run may need the old class weights; ``warm_start`` is the recipe's."""
        warm_start = self.recipe.get("warm_start", warm_start)
        return self.needs_old_classifier or (self.warm_starts if warm_start is None else warm_start)

    def make(self, old: "OldEmbeddings", settings: "Settings") -> "Method":
        """Import the method's class and make the method for one training run."""
        return resolve_name(self.home)(old, settings, **self.options)

    def varied(self, name: str, setting: str) -> Self:
        """Return the variant with one more setting, KEY=VALUE, of the variant called ``name``."""
        key, _, text = (part.strip() for part in setting.partition("="))
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        if key in self.settings:
            kind = self.settings[key]
            value = float(value) if kind is float and type(value) is int else value
            if type(value) is not kind:
                raise UserError(f"method {name}: {key} must be {_VALUES[kind]}, not {text!r}")
            return replace(self, options={**self.options, key: value})
        if key not in RECIPE_SETTINGS:
            known = ", ".join([*self.settings, *RECIPE_SETTINGS])
            raise UserError(
                f"method {name}: there is no setting {key!r}; write NAME@KEY=VALUE,KEY=VALUE with "
                f"keys from {known}"
            )
        waits = bool(value) if key == "warmup_epochs" else self.has_warmup
        return replace(self, recipe={**self.recipe, key: value}, has_warmup=waits)


_METHODS = {
    "none": MethodEntry(
        "unibct.methods.base:no_compatibility",
        "plain training without compatibility",
        needs_old_model=False,
        needs_old_embeddings=False,
    ),
    "regress": MethodEntry(
        "unibct.methods.paper:Regress", "pull each image to its own old embedding"
    ),
    "contrast": MethodEntry(
        "unibct.methods.paper:Contrast", "find each image's own old embedding among other classes'"
    ),
    "bct": MethodEntry(
        "unibct.methods.paper:Bct",
        "ArcFace on the old classifier, if it knows all new classes",
        needs_old_embeddings=False,
        needs_old_classifier=True,
        check_classes=require_known_classes,
    ),
    "unibct-centroid": MethodEntry(
        "unibct.methods.paper:Prototypes",
        "ArcFace on the mean old embedding of each class",
        {"kind": "centroid"},
    ),
    "unibct-drop": MethodEntry(
        "unibct.methods.paper:Prototypes",
        "ArcFace on that mean without its farthest embeddings",
        {"kind": "drop"},
    ),
    "unibct": MethodEntry(
        "unibct.methods.paper:Prototypes",
        "ArcFace on structural prototypes that follow the new model",
        {"kind": "structural"},
    ),
    "unibct-plus": MethodEntry(
        "unibct.methods.plus:UnibctPlus",
        "one classifier for new and old embeddings, and contrast",
        settings={"shared": bool, "own": bool, "prototype": bool, "centre": bool, "weight": float},
        has_warmup=False,
        warm_starts=True,
    ),
    "mixbct": MethodEntry(
        "unibct.methods.successors:MixBct",
        "mix old embeddings into the classifier's batches",
        settings={"share": float},
        needs_same_dim=True,
        has_warmup=False,
    ),
    "advbct": MethodEntry(
        "unibct.methods.advbct:advbct",
        "deceive an old/new discriminator; stay near the class mean",
        settings={"released": bool},
        has_warmup=False,
    ),
    "nccl": MethodEntry(
        "unibct.methods.successors:Nccl",
        "supervised contrast with a queue of old embeddings",
        settings={"queue": int},
        has_warmup=False,
    ),
    "ndpp": MethodEntry(
        "unibct.methods.paper:Prototypes",
        "ArcFace on class means that are first moved apart",
        {"kind": "centroid", "apart": True},
        has_warmup=False,
    ),
    "ract": MethodEntry(
        "unibct.methods.paper:Contrast",
        "contrast with the old and new embeddings of other classes",
        {"among_new": True, "tau": 0.01},  # the published temperature
        settings={"tau": float},
        has_warmup=False,
    ),
    "lce": MethodEntry(
        "unibct.methods.successors:Lce",
        "stay within a class's old angles; class weights at its mean",
        has_warmup=False,
    ),
}

METHODS: Registry[MethodEntry] = Registry("method", _METHODS)
DEFAULT_METHOD = "unibct-plus"
NO_METHOD = "none"


def find_method(name: str) -> MethodEntry:
    """Return the method NAME, or its variant NAME@KEY=VALUE,KEY=VALUE.

    A key is a setting of the method itself or one of ``RECIPE_SETTINGS``, which then replaces the
    recipe's: ``unibct-plus@weight=0.5``, ``unibct@warmup_epochs=0``. A method that works from the
    first step waits for a warm-up if it is given one.
    """
    base, at, settings = name.partition("@")
    entry = METHODS.find(base)
    for setting in settings.split(",") if at else ():
        entry = entry.varied(name, setting)
    return entry


def split_methods(text: str) -> list[str]:
    """Return the names in a list with commas; a KEY=VALUE belongs to the variant before it."""
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if names and "@" in names[-1] and "=" in part and "@" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return names

"""The compatibility methods: ``table`` lists them, ``base`` says what a method is, each has a file.

The formulas are in ``losses`` and ``prototypes``. The training loop calls a method through its base
class and knows none of them by name.

Which classes a method accepts, checked by name before anything is trained.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from unibct.errors import UserError

if TYPE_CHECKING:
    from unibct.methods.base import Method, OldKnowledge, Settings


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


# The table of compatibility methods, readable without torch.
#
# An entry names the class of its method as text. The class is imported when the method is made, so
# that the command line can list the names quickly.


@dataclass(frozen=True)
class MethodEntry:
    """How to make a method, and what it needs.

    Attributes:
        home: where its class is, as ``module:name`` within ``unibct.methods``.
        description: one line for help texts.
        options: keyword arguments of the class.
        needs_old_model: whether there must be an old model.
        needs_old_embeddings: whether the old model must embed the new training set.
        needs_old_classifier: whether the method uses the old model's class weights.
        needs_same_dim: whether new and old embeddings must have the same dimension. For the other
            methods, a new model of another dimension gets a projection into the old space.
        has_warmup: whether the method starts only after the recipe's warm-up, as the paper's do.
        warm_starts: whether training starts from the old model's weights where it can, unless the
            recipe says something else.
        check_classes: raises an error for old and new class names that the method cannot handle.
    """

    home: str
    description: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_old_model: bool = True
    needs_old_embeddings: bool = True
    needs_old_classifier: bool = False
    needs_same_dim: bool = False
    has_warmup: bool = True
    warm_starts: bool = False
    check_classes: Callable[[Sequence[str], Sequence[str]], None] = allow_any_classes

    def uses_old_classifier(self, warm_start: bool | None) -> bool:
        """Return whether a run may need the old class weights; ``warm_start`` is the recipe's."""
        return self.needs_old_classifier or (self.warm_starts if warm_start is None else warm_start)

    def make(self, old: "OldKnowledge", settings: "Settings") -> "Method":
        """Import the method's class and make the method for one training run."""
        return resolve_name(f"unibct.methods.{self.home}")(old, settings, **self.options)


METHODS: dict[str, MethodEntry] = {
    "none": MethodEntry(
        "base:no_compatibility",
        "plain training without compatibility",
        needs_old_model=False,
        needs_old_embeddings=False,
    ),
    "regress": MethodEntry("paper:Regress", "pull each image to its own old embedding"),
    "contrast": MethodEntry(
        "paper:Contrast", "find each image's own old embedding among other classes'"
    ),
    "bct": MethodEntry(
        "paper:Bct",
        "ArcFace on the old classifier, if it knows all new classes",
        needs_old_embeddings=False,
        needs_old_classifier=True,
        check_classes=require_known_classes,
    ),
    "unibct-centroid": MethodEntry(
        "paper:Prototypes",
        "ArcFace on the mean old embedding of each class",
        {"kind": "centroid"},
    ),
    "unibct-drop": MethodEntry(
        "paper:Prototypes",
        "ArcFace on that mean without its farthest embeddings",
        {"kind": "drop"},
    ),
    "unibct": MethodEntry(
        "paper:Prototypes",
        "ArcFace on structural prototypes that follow the new model",
        {"kind": "structural"},
    ),
    "unibct-plus": MethodEntry(
        "plus:UnibctPlus",
        "one classifier for new and old embeddings, and contrast",
        has_warmup=False,
        warm_starts=True,
    ),
    "mixbct": MethodEntry(
        "successors:MixBct",
        "mix old embeddings into the classifier's batches",
        needs_same_dim=True,
        has_warmup=False,
    ),
    "advbct": MethodEntry(
        "advbct:AdvBct",
        "deceive an old/new discriminator; stay near the class mean",
        has_warmup=False,
    ),
    "advbct-released": MethodEntry(
        "advbct:ReleasedAdvBct",
        "advbct with the constants of its authors' program",
        has_warmup=False,
    ),
    "nccl": MethodEntry(
        "successors:Nccl", "supervised contrast with a queue of old embeddings", has_warmup=False
    ),
    "ndpp": MethodEntry(
        "paper:Prototypes",
        "ArcFace on class means that are first moved apart",
        {"kind": "centroid", "apart": True},
        has_warmup=False,
    ),
    "ract": MethodEntry(
        "successors:Ract",
        "contrast with the old and new embeddings of other classes",
        has_warmup=False,
    ),
    "lce": MethodEntry(
        "successors:Lce",
        "stay within a class's old angles; class weights at its mean",
        has_warmup=False,
    ),
}

DEFAULT_METHOD = "unibct-plus"
NO_METHOD = "none"


def _plus_variant(
    description: str, *, has_warmup: bool = False, warm_starts: bool = True, **options: Any
) -> MethodEntry:
    home = "plus:UnibctPlus"
    return MethodEntry(home, description, options, has_warmup=has_warmup, warm_starts=warm_starts)


def _with_other_start(name: str, entry: MethodEntry) -> tuple[str, MethodEntry]:
    """Return a method's variant that starts from the first step instead of later, or later."""
    suffix, how = ("no-warmup", "without") if entry.has_warmup else ("warmup", "after")
    description = f"{name} {how} a warm-up"
    variant = replace(entry, description=description, has_warmup=not entry.has_warmup)
    return f"{name}-{suffix}", variant


# Every other method without its warm-up if it has one, and with a warm-up if it has none.
OTHER_START: dict[str, MethodEntry] = dict(
    _with_other_start(name, entry)
    for name, entry in METHODS.items()
    if name not in (NO_METHOD, DEFAULT_METHOD)
)

# Variants of unibct-plus with one part removed, added or changed, and those with another start.
ABLATIONS: dict[str, MethodEntry] = {
    "plus-no-shared": _plus_variant("unibct-plus without the shared classifier", shared=False),
    "plus-no-own": _plus_variant("unibct-plus without the contrast", own=False),
    "plus-prototype": _plus_variant("unibct-plus with the loss on centroids", prototype=True),
    "plus-uncentred": _plus_variant("unibct-plus without the old mean", centre=False),
    "plus-half": _plus_variant("unibct-plus with half the weight", weight=0.5),
    "plus-double": _plus_variant("unibct-plus with twice the weight", weight=2.0),
    "plus-no-loss": MethodEntry(
        "base:no_compatibility",
        "plain training from the old weights",
        needs_old_embeddings=False,
        has_warmup=False,
        warm_starts=True,
    ),
    "plus-cold": _plus_variant("unibct-plus from random weights", warm_starts=False),
    "plus-warmup": _plus_variant("unibct-plus after a warm-up", has_warmup=True),
    **OTHER_START,
}


def find_method(name: str) -> MethodEntry:
    """Return the method called ``name``, or raise an error that lists the names."""
    entry = METHODS.get(name) or ABLATIONS.get(name)
    if entry is None:
        raise UserError(
            f"unknown method {name!r}{similar_method(name)}; choose one of {', '.join(METHODS)}"
        )
    return entry


def similar_method(name: str, others: Iterable[str] = ()) -> str:
    """Return what an unknown name may mean, to go on with in an error; empty if nothing is near.

    Args:
        name: neither a method nor a variant.
        others: further names that would be accepted.
    """
    after_warmup = not name.endswith("-no-warmup")
    base = name.removesuffix("-warmup").removesuffix("-no")
    if name == f"{DEFAULT_METHOD}-warmup":
        return ", did you mean 'plus-warmup'?"
    is_variant = base != name and base in METHODS and METHODS[base].needs_old_model
    if is_variant and METHODS[base].has_warmup == after_warmup:
        how = "after a warm-up" if after_warmup else "from the first step"
        return f": {base!r} itself starts {how}"
    close = difflib.get_close_matches(name, (*METHODS, *ABLATIONS, *others), n=1)
    return f", did you mean {close[0]!r}?" if close else ""

"""The table of compatibility methods: what L_comp is, each one entry.

A method is built once from what the old model knows of the new training set; the training loop
calls ``refresh`` at the refresh epochs and ``loss`` in each step, and names no method.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from unibct.errors import UserError
from unibct.methods.advbct import AdvBct
from unibct.methods.base import Method, OldKnowledge, Settings
from unibct.methods.mixbct import MixBct
from unibct.methods.nccl import Nccl
from unibct.methods.paper import Bct, Contrast, Prototypes, Regress, require_known_classes
from unibct.methods.plus import UnibctPlus


def _any_classes(old_classes: Sequence[str], new_classes: Sequence[str]) -> None:
    """Most methods work whatever the old model was trained on."""


@dataclass(frozen=True)
class MethodEntry:
    """How a method is made, and what it needs.

    Attributes:
        make: builds it from what the old model knows.
        needs_old_model: whether there must be an old model.
        needs_old_embeddings: whether the new training set is embedded by the old model.
        has_warmup: whether it waits for the end of the recipe's warm-up.
        check_classes: refuses old and new class names that it cannot work with.
    """

    make: Callable[[OldKnowledge, Settings], Method]
    needs_old_model: bool = True
    needs_old_embeddings: bool = True
    has_warmup: bool = True
    check_classes: Callable[[Sequence[str], Sequence[str]], None] = _any_classes


METHODS: dict[str, MethodEntry] = {
    "none": MethodEntry(lambda old, settings: Method(), False, False),
    "regress": MethodEntry(Regress),
    "contrast": MethodEntry(Contrast),
    "bct": MethodEntry(Bct, needs_old_embeddings=False, check_classes=require_known_classes),
    "unibct-centroid": MethodEntry(partial(Prototypes, kind="centroid")),
    "unibct-drop": MethodEntry(partial(Prototypes, kind="drop")),
    "unibct": MethodEntry(partial(Prototypes, kind="structural")),
    "unibct-plus": MethodEntry(UnibctPlus, has_warmup=False),
    "mixbct": MethodEntry(MixBct),
    "advbct": MethodEntry(AdvBct),
    "nccl": MethodEntry(Nccl),
    "ndpp": MethodEntry(partial(Prototypes, kind="centroid", apart=True)),
}

# unibct-plus with a part taken out, added or changed: for its ablation.
ABLATIONS: dict[str, MethodEntry] = {
    "plus-no-shared": MethodEntry(partial(UnibctPlus, shared=False), has_warmup=False),
    "plus-no-own": MethodEntry(partial(UnibctPlus, own=False), has_warmup=False),
    "plus-prototype": MethodEntry(partial(UnibctPlus, prototype=True), has_warmup=False),
    "plus-half": MethodEntry(partial(UnibctPlus, weight=0.5), has_warmup=False),
    "plus-double": MethodEntry(partial(UnibctPlus, weight=2.0), has_warmup=False),
    "plus-warmup": MethodEntry(UnibctPlus),
}

DEFAULT_METHOD = "unibct-plus"
NO_METHOD = "none"


def find_method(name: str) -> MethodEntry:
    """The method called ``name``, or an error that lists the names there are."""
    entry = METHODS.get(name) or ABLATIONS.get(name)
    if entry is None:
        raise UserError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return entry

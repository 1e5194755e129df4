"""Which methods a benchmark compares, by the name of a group. Readable without torch."""

from dataclasses import dataclass

from unibct.maps import MAPS
from unibct.methods import DEFAULT_METHOD, METHODS, OTHER_START, find_method

PAPER = "paper"
PAPER_METHODS = ("none", "regress", "contrast", "bct", "unibct-centroid", "unibct-drop", "unibct")
DEFAULT_METHODS = (*PAPER_METHODS, DEFAULT_METHOD)
ALL_METHODS = (*METHODS, *MAPS)
CHAIN_METHODS = ("unibct", DEFAULT_METHOD)


@dataclass(frozen=True)
class MethodGroup:
    """Methods that can be named together.

    Attributes:
        methods: names from ``METHODS``, ``ABLATIONS`` and ``MAPS``.
        meaning: a few words for help texts.
    """

    methods: tuple[str, ...]
    meaning: str


def _starting(*, after_warmup: bool) -> tuple[str, ...]:
    """Return every method but the default, or its variant, that has a warm-up or has none."""
    names = (*METHODS, *OTHER_START)
    return tuple(
        name
        for name in names
        if find_method(name).needs_old_model
        and name != DEFAULT_METHOD
        and find_method(name).has_warmup == after_warmup
    )


GROUPS: dict[str, MethodGroup] = {
    "all": MethodGroup(ALL_METHODS, "all of these"),
    PAPER: MethodGroup(PAPER_METHODS, "those of the paper"),
    "warmup": MethodGroup(
        _starting(after_warmup=True), "each after a warm-up, such as mixbct-warmup"
    ),
    "no-warmup": MethodGroup(
        _starting(after_warmup=False), "each from the first step, such as regress-no-warmup"
    ),
}


def describe_groups() -> str:
    """Return the groups with their meanings, for help texts."""
    return ", ".join(f"{name} ({group.meaning})" for name, group in GROUPS.items())

"""Which compatibility methods can train with an old model and a new training set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unibct.errors import UserError
from unibct.methods.table import DEFAULT_METHOD, METHODS, NO_METHOD, MethodEntry


@dataclass(frozen=True)
class MethodAdvice:
    """Whether a method can be used.

    Attributes:
        name: from ``METHODS``.
        description: what it does, in a line.
        obstacle: why it cannot be used; None if it can.
    """

    name: str
    description: str
    obstacle: str | None

    @property
    def applies(self) -> bool:
        """Whether the method can be used."""
        return self.obstacle is None

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "name": self.name,
            "applies": self.applies,
            "obstacle": self.obstacle,
            "default": self.name == DEFAULT_METHOD,
        }


def method_advice(
    old_classes: Sequence[str],
    new_classes: Sequence[str],
    *,
    has_classifier: bool,
    dims: tuple[int, int] | None = None,
) -> tuple[MethodAdvice, ...]:
    """Return each compatibility method, and why those that cannot be used cannot.

    Args:
        old_classes: what tells each class of the old model from all others.
        new_classes: the same of the new training set.
        has_classifier: whether the old model has its class weights.
        dims: the dimensions of the new and the old model; by default they are equal.
    """

    def obstacle(entry: MethodEntry) -> str | None:
        if entry.needs_same_dim and dims is not None and dims[0] != dims[1]:
            return f"it mixes new and old embeddings, of {dims[0]} and {dims[1]} dimensions"
        return _obstacle(entry, old_classes, new_classes, has_classifier)

    return tuple(
        MethodAdvice(name, entry.description, obstacle(entry))
        for name, entry in METHODS.items()
        if name != NO_METHOD
    )


def _obstacle(
    entry: MethodEntry, old: Sequence[str], new: Sequence[str], has_classifier: bool
) -> str | None:
    if entry.needs_old_classifier and not has_classifier:
        return "it needs the old classifier, and the old model has none"
    try:
        entry.check_classes(old, new)
    except UserError as error:
        return str(error)
    return None

"""Which classes a method accepts, checked by name before anything is trained."""

from collections.abc import Sequence

from unibct.errors import UserError


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

"""What was chosen on test classes: such a test says little about others.

Every choice is compared with the test set in the same way: that of a model's weights, its best
epoch and its score scale, that of blended queries, and a kept score map.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unibct.data.choices import SCORE_MAP_FITTED, SCORE_SCALE_MEASURED, Choice
from unibct.data.training_classes import UNKNOWN_SOURCE, TrainingClasses
from unibct.errors import UserError
from unibct.evaluation.score_map import ScoreMap


@dataclass(frozen=True)
class SeenChoice:
    """A choice, and on how many of the test classes it was made.

    Attributes:
        choice: what was chosen.
        count: how many test classes it was made on; None if that is not known.
        classes: how many test classes there are; None if that is not known.
        same_images: whether it was made on the test images themselves.
    """

    choice: Choice
    count: int | None
    classes: int | None
    same_images: bool

    @property
    def is_of_the_test(self) -> bool:
        """Whether it was made on the test images, or on most of the test classes."""
        most = self.count is not None and self.classes is not None and 2 * self.count > self.classes
        return self.same_images or most

    @property
    def note(self) -> str:
        """The count in words."""
        if self.same_images:
            where = f" ({self.choice.data})" if self.choice.data else ""
            return f"{self.choice.what} on the test images themselves{where}"
        if self.count is None:
            return (
                f"whether {self.choice.what} on test classes is unknown: they are not recorded, or "
                "not named alike"
            )
        counted = f"{self.choice.what} on {self.count or 'none'} of the {self.classes} test classes"
        return f"{counted}: there the numbers say little about others" if self.count else counted

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "what": self.choice.what,
            "data": self.choice.data,
            "seen_classes": self.count,
            "same_images": self.same_images,
        }


def choices_of(
    models: Mapping[str, TrainingClasses],
    *,
    alpha: Choice | None = None,
    score_map: ScoreMap | None = None,
    uses_scale: bool = False,
) -> list[Choice]:
    """Return every choice that a test relies on.

    Args:
        models: what each model has learnt from, by its role: ``old``, ``new``, …
        alpha: how the share of blended queries was chosen; None if it was given.
        score_map: the map that was given.
        uses_scale: whether the new model's score scale is used; that of others never is.
    """
    choices: list[Choice] = []
    for role, learnt in models.items():
        used = learnt if uses_scale and role == "new" else learnt.without(SCORE_SCALE_MEASURED)
        choices += [choice.of_model(role) for choice in used.choices]
    if alpha is not None:
        choices.append(alpha)
    if score_map is not None:
        choices.append(score_map.fitted_on or Choice(SCORE_MAP_FITTED))
    return sorted(choices, key=lambda choice: choice.what)


def compared_choices(
    choices: Iterable[Choice], test: Choice, *, allowed: bool
) -> tuple[SeenChoice, ...]:
    """Compare choices with a test set, and refuse what was made on it.

    Args:
        choices: what the test relies on.
        test: the test set, in the form of a choice on it.
        allowed: by the user, to go on.
    """
    compared = tuple(_compared(choice, test) for choice in choices)
    refused = [one.note for one in compared if one.is_of_the_test]
    if refused and not allowed:
        raise UserError(
            f"{'; '.join(refused)}: the numbers would say little about others. Choose on classes "
            "that are not tested, test on others, or go on with --seen-classes (seen_classes=True)"
        )
    return compared


def _compared(choice: Choice, test: Choice) -> SeenChoice:
    """Count the test classes that a choice was made on."""
    same_images = bool(choice.images & test.images)
    if choice.classes is None or test.classes is None:
        return SeenChoice(choice, None, None, same_images)
    comparable = choice.class_source == test.class_source != UNKNOWN_SOURCE
    count = len(choice.classes & test.classes) if comparable else None
    return SeenChoice(choice, count, len(test.classes), same_images)

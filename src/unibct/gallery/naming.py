"""Names from a gallery: the label of the first row that a query finds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unibct.errors import UserError
from unibct.gallery.gallery import Answer


@dataclass(frozen=True)
class Names:
    """What queries with known labels were called.

    Attributes:
        right: queries that got their own label.
        wrong: queries that got another label.
        lost: queries that found nothing, such as no row above the threshold.
    """

    right: int
    wrong: int
    lost: int

    @property
    def queries(self) -> int:
        """How many queries were asked."""
        return self.right + self.wrong + self.lost

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


def count_names(answers: Iterable[Answer]) -> Names:
    """Count right, wrong and lost names.

    Args:
        answers: of a search whose queries have labels; ``far`` or ``threshold`` of the search
            decide whether a row is similar enough to give its name.
    """
    counts = {"right": 0, "wrong": 0, "lost": 0}
    for answer in answers:
        if answer.label is None:
            raise UserError(f"the query {answer.query!r} has no label to compare names with")
        if not answer.hits:
            counts["lost"] += 1
        else:
            counts["right" if answer.hits[0].label == answer.label else "wrong"] += 1
    return Names(**counts)

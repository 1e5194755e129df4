"""Whose query searches the rows of older models. The names are readable without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unibct.errors import UserError
from unibct.evaluation.blending import require_alpha
from unibct.gallery.rows import Where, checked_filter

NEW_QUERY, TWO_QUERIES, BLENDED_QUERY = "new", "two", "blend"
ENCODERS = {
    NEW_QUERY: "that of the searching model",
    TWO_QUERIES: "that of their own model",
    BLENDED_QUERY: "both",
}


def describe_encoders() -> str:
    """Return the names with their meanings, for help texts."""
    return ", ".join(f"{name} ({meaning})" for name, meaning in ENCODERS.items())


# What a search asks for, in one object that is checked when it is made.


@dataclass(frozen=True)
class SearchRequest:
    """What is searched for."""

    k: int = 10  # how many rows per query
    where: Where = field(default_factory=dict[str, Any])  # a filter on the metadata
    approximate: bool = False  # use the index, if there is one
    threshold: float | None = None  # leave out rows with a lower score
    # leave out rows below the threshold for this false accept rate, for each kind of rows
    far: float | None = None
    # give scores on the scale of the old model, for clients with a fixed threshold
    old_scores: bool = False
    encoders: str = NEW_QUERY  # whose query searches older rows, a name from `ENCODERS`
    # share of the searching model in a blend. By default that of the certificate, and half where
    # there is none
    alpha: float | None = None
    with_superseded: bool = False  # search rows that have been replaced too; to try a rollback

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.k < 1:
            raise UserError(f"k is the number of rows per query, at least 1, not {self.k}")
        if self.encoders not in ENCODERS:
            raise UserError(f"unknown encoders {self.encoders!r}; choose {', '.join(ENCODERS)}")
        if self.alpha is not None:
            require_alpha(self.alpha)
            if self.encoders != BLENDED_QUERY:
                raise UserError(f"alpha has no effect without the encoders {BLENDED_QUERY!r}")
        if self.threshold is not None and math.isnan(self.threshold):
            raise UserError("the threshold is not a number")
        if self.threshold is not None and self.far is not None:
            raise UserError("give a threshold or a false accept rate (far), not both")
        checked_filter(self.where)


def one_request(request: SearchRequest | None, settings: Mapping[str, Any]) -> SearchRequest:
    """Return a request, or the one with these attributes; refuse both, as one is passed over."""
    if request is None:
        return SearchRequest(**settings)
    if settings:
        raise UserError(
            f"give a request, or its attributes by name, not both: {', '.join(settings)}"
        )
    return request

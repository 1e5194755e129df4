"""Known queries: images whose embeddings by both models are known, so that a map can be tried.

A map that is applied the wrong way round gives as many rows, of the right length, and finds
nothing. So before mapped rows are written, known queries must find their mates among them.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, lowered, normalized
from unibct.errors import UserError

BEST_SHARE = 0.05  # a mate counts as found among this share of the rows, at least one row
_MOST_QUERIES = 1000  # a trial needs no more, and each is compared with all rows
_LEAST_GAIN = 0.1  # of the found share over chance, for a map that is worth keeping


@dataclass(frozen=True)
class FoundMates:
    """How many known queries find a mate.

    Attributes:
        share: of the queries whose best mate is among the best rows, see ``BEST_SHARE``.
        chance: that share if the rows were in any order.
        queries: how many queries have a mate.
    """

    share: float
    chance: float
    queries: int

    @property
    def is_useful(self) -> bool:
        """Whether clearly more is found than by chance."""
        return self.share >= self.chance + _LEAST_GAIN

    def require(self, expected: float, what: str) -> None:
        """Refuse if less is found than half-way between chance and what is expected."""
        needed = (self.chance + expected) / 2
        if self.share < needed:
            raise UserError(
                f"{what}: only {self.share:.0%} of {self.queries} known queries find their mates "
                f"among the best {BEST_SHARE:.0%} of rows, instead of {expected:.0%} when the map "
                f"was fitted ({self.chance:.0%} is chance); are these embeddings by another model?"
            )


def found_mates(
    queries: Floats,
    query_keys: Sequence[Hashable],
    rows: Floats,
    row_keys: Sequence[Hashable],
) -> FoundMates | None:
    """Search queries among rows of the same space; None if no query has a mate.

    Args:
        queries: (queries, dim).
        query_keys: what a query and its mates have in common, an id or a class.
        rows: (rows, dim).
        row_keys: the same of the rows.
    """
    number_of = {key: number for number, key in enumerate(dict.fromkeys(row_keys))}
    row_numbers = np.array([number_of[key] for key in row_keys], dtype=np.int64)
    known = [place for place, key in enumerate(query_keys) if key in number_of]
    if not known:
        return None
    if len(known) > _MOST_QUERIES:
        drawn = np.random.default_rng(0).choice(len(known), _MOST_QUERIES, replace=False)
        known = [known[int(place)] for place in np.sort(drawn)]
    query_numbers = np.array([number_of[query_keys[place]] for place in known], dtype=np.int64)
    best = max(1, int(BEST_SHARE * len(rows)))
    mates = np.bincount(row_numbers)[query_numbers]
    ranks = _mate_ranks(normalized(queries[known]), query_numbers, normalized(rows), row_numbers)
    chance = 1 - (1 - mates / len(rows)) ** best
    return FoundMates(float((ranks < best).mean()), float(chance.mean()), len(known))


def _mate_ranks(
    queries: Floats, query_numbers: NDArray[np.int64], rows: Floats, row_numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return (queries,) how many rows of other keys score at least as high as the best mate."""
    ranks = np.empty(len(queries), dtype=np.int64)
    for place, (query, number) in enumerate(zip(queries, query_numbers, strict=True)):
        scores = rows @ query
        is_mate = row_numbers == number
        ranks[place] = (scores[~is_mate] >= lowered(scores[is_mate]).max()).sum()
    return ranks

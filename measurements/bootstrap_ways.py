"""The two ways to find the thresholds of a bootstrapped TAR, side by side at several FARs.

    python measurements/bootstrap_ways.py        some two minutes

Prints the time of the highest impostors alone over the time of all sorted ones: below 1 the first
way is faster. `unibct.evaluation.bootstrap` takes the first up to a FAR of 0.004. Both must give
the same thresholds; the script stops with an error if they do not.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from unibct.evaluation import bootstrap
from unibct.evaluation.search_test import ScoredPairs, scored_test

REPEATS = 2000
WAYS = (
    bootstrap._thresholds_among_highest,  # pyright: ignore[reportPrivateUsage]
    bootstrap._thresholds_among_all,  # pyright: ignore[reportPrivateUsage]
)


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call takes, and what it gives."""
    begin = time.perf_counter()
    value = function()
    return time.perf_counter() - begin, value


def random_pairs(classes: int, queries: int) -> ScoredPairs:
    """Return the pairs of a search test with normal scores, genuine ones three higher."""
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, classes, queries))
    scores = rng.normal(size=(queries, classes)).astype(np.float32)
    scores[np.arange(queries), labels] += 3
    return scored_test(scores, labels).pairs


def main() -> None:
    """Print a line for each size and FAR."""
    print("classes   impostor pairs      FAR   highest / all")
    for classes, queries in ((60, 300), (318, 5700), (1000, 10_000)):
        pairs = random_pairs(classes, queries)
        shares = np.full(classes, 1 / classes)
        draws = np.random.default_rng(1).multinomial(classes, shares, size=REPEATS)
        for far in (1e-4, 1e-3, 4e-3, 1e-2, 2e-2):
            (few, first), (many, second) = (
                seconds(partial(way, pairs, draws, far)) for way in WAYS
            )
            assert np.array_equal(first, second)
            print(f"{classes:7} {len(pairs.impostor):16,} {far:8g} {few / many:15.2f}")


if __name__ == "__main__":
    main()

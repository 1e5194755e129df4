"""The two ways to find the thresholds of a bootstrapped TAR, side by side at several FARs.

    python measurements/bootstrap_ways.py        about two minutes

One way searches among the highest impostors only, the other among all of them, sorted. The script
prints the time of the first over the time of the second: below 1, the first is faster.
`unibct.evaluation.bootstrap` uses the first up to a FAR of 0.004. Both must give the same
thresholds; if they do not, the script stops with an error.
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
    """Return how long a call takes, and its result."""
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
            (time_highest, highest), (time_all, all_sorted) = (
                seconds(partial(way, pairs, draws, far)) for way in WAYS
            )
            assert np.array_equal(highest, all_sorted)
            ratio = time_highest / time_all
            print(f"{classes:7} {len(pairs.impostor):16,} {far:8g} {ratio:15.2f}")


if __name__ == "__main__":
    main()

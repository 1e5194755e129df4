"""The same tests in a gallery whose rows are single images, not templates.

A template pools the images of a class, which hides what happens to each of them. Rows of a running
gallery are single images: for such a gallery their verdict decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.evaluation.blending import blended_search
from unibct.evaluation.bootstrap import REPEATS
from unibct.evaluation.criterion import Criterion, Verdict, compare_tests, joint_verdict
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.search_test import (
    BLEND,
    CROSS,
    NEW_SELF,
    OLD_SELF,
    ImageSearch,
    SearchTest,
    image_test,
)
from unibct.evaluation.templates import GallerySplit

MOST_PAIRS = 50_000_000  # queries × rows of a direction, above which queries are drawn
_FEWEST_QUERIES = 1000


@dataclass(frozen=True)
class SingleImages:
    """What the tests find in a gallery of single images."""

    searches: dict[str, ImageSearch]  # by direction, all of the same queries and rows
    tests: dict[str, SearchTest]  # the same, searched
    values: dict[str, dict[str, float]]  # test -> metric -> value
    compared: tuple[Criterion, ...]  # M(cross) − M(old self) of each metric that has an interval

    @property
    def verdict(self) -> Verdict:
        """The joint verdict of the metrics on which it depends."""
        return joint_verdict([c.verdict for c in self.compared if c.decides])

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "verdict": self.verdict,
            "tests": self.values,
            "criteria": [c.as_json() for c in self.compared if c.decides],
            "further_metrics": [c.as_json() for c in self.compared if not c.decides],
        }


def single_images(
    tests: Mapping[str, SearchTest],
    split: GallerySplit,
    *,
    far: float,
    alpha: float,
    seed: int = 0,
    repeats: int = REPEATS,
) -> SingleImages:
    """Search the queries of finished tests, which keep their embeddings, among single images.

    ``alpha`` is the share of the new query in blended queries; ``seed`` draws queries of large
    tests, and the bootstrap samples.
    """
    searches: dict[str, ImageSearch] = {}
    for direction in (OLD_SELF, CROSS, NEW_SELF):
        images = tests[direction].images
        assert images is not None, "every test of an image set keeps its images"
        searches[direction] = images
    queries, rows = len(split.query), len(split.gallery)
    most = max(_FEWEST_QUERIES, MOST_PAIRS // rows)
    if queries > most:  # all rows stay
        drawn = np.sort(np.random.default_rng([seed, 23]).choice(queries, most, replace=False))
        everything: Any = np.arange(rows)
        searches = {name: images.part(drawn, everything) for name, images in searches.items()}
    searches[BLEND] = blended_search(searches[OLD_SELF], searches[CROSS], alpha)
    searched = {direction: image_test(search) for direction, search in searches.items()}
    return SingleImages(
        searches,
        searched,
        {name: measured_metrics(test, [far]) for name, test in searched.items()},
        compare_tests(searched[OLD_SELF], searched[CROSS], far=far, seed=seed, repeats=repeats),
    )

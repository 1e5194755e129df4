"""Verification on pair sets (LFW, CFP-FP, AgeDB-30): 10-fold accuracy, self test and cross test.

A pair has no query and no gallery side, so the cross test is made both ways: the first image from
the new model and the second from the old one, and the reverse.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unibct.arrays import checked_embeddings, normalized, require_same_dim
from unibct.data.loader import read_pixels
from unibct.data.readers.pair_file import PairSet
from unibct.distributed.device import pick_device
from unibct.embeddings.extraction import raw_embeddings
from unibct.errors import UserError
from unibct.evaluation.evaluate import (
    BOOTSTRAP_REPEATS,
    Criterion,
    Verdict,
    joint_verdict,
    sampled_criterion,
)
from unibct.evaluation.metrics import Floats, FoldAccuracy, fold_accuracy
from unibct.models.folder import load_model
from unibct.progress import Progress, Silent

METRIC = "accuracy"


@dataclass(frozen=True)
class PairEvaluation:
    """The accuracy of each test, and the criterion (with both ways of the cross test averaged)."""

    tests: dict[str, FoldAccuracy]
    criteria: tuple[Criterion, ...]
    note: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Of the one metric there is."""
        return joint_verdict([criterion.verdict for criterion in self.criteria])

    def metrics(self, test: str) -> dict[str, float]:
        """The mean accuracy, and its deviation over the folds."""
        folds = self.tests[test].folds
        return {METRIC: self.tests[test].mean, "± over folds": float(folds.std())}

    def as_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        return {
            "verdict": self.verdict,
            "criteria": [criterion.as_json() for criterion in self.criteria],
            "tests": {
                name: {METRIC: test.mean, "folds": test.folds.tolist()}
                for name, test in self.tests.items()
            },
            "pairs": len(next(iter(self.tests.values())).correct),
        }


def evaluate_pairs(
    old: Any, new: Any, same: Any, *, folds: int = 10, seed: int = 0
) -> PairEvaluation:
    """Self tests, the cross test both ways, and the verdict with a bootstrap over pairs.

    Args:
        old: (2 · pairs, dim) the old model's embeddings, the two of a pair one after the other.
        new: (2 · pairs, dim) the new model's.
        same: (pairs,) whether the two show the same class.
        folds: consecutive parts, each with the threshold that is best on the others.
        seed: of the bootstrap.
    """
    old, new = (normalized(checked_embeddings(v, n)) for v, n in ((old, "old"), (new, "new")))
    require_same_dim(new, "new", old, "old")
    same = np.asarray(same, dtype=np.bool_)
    for vectors, name in ((old, "old"), (new, "new")):
        if len(vectors) != 2 * len(same):
            raise UserError(f"{name} has {len(vectors)} embeddings for {len(same)} pairs")

    def accuracy(first: Floats, second: Floats) -> FoldAccuracy:
        return fold_accuracy(np.einsum("ij,ij->i", first[::2], second[1::2]), same, folds=folds)

    tests = {
        "old→old": accuracy(old, old),
        "new→old": accuracy(new, old),
        "old→new": accuracy(old, new),
        "new→new": accuracy(new, new),
    }
    cross = (tests["new→old"].correct + tests["old→new"].correct.astype(np.float64)) / 2
    gain = cross - tests["old→old"].correct
    rng = np.random.default_rng(seed)
    draws = np.array(
        [gain[rng.integers(0, len(gain), len(gain))].mean() for _ in range(BOOTSTRAP_REPEATS)]
    )
    mean = (tests["new→old"].mean + tests["old→new"].mean) / 2
    return PairEvaluation(tests, (sampled_criterion(METRIC, tests["old→old"].mean, mean, draws),))


def compare_on_pairs(
    pairs: PairSet,
    query: Path,
    gallery: Path,
    *,
    device: str = "auto",
    progress: Progress | None = None,
) -> PairEvaluation:
    """Embed both views of every image of a pair set with two models, and evaluate them.

    Args:
        pairs: what ``read_pair_file`` gives.
        query: the new model's folder.
        gallery: the old model's.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: told of each image.
    """
    found: dict[Path, Any] = {}
    for path in dict.fromkeys((gallery, query)):
        model = load_model(path, device=pick_device(device))
        pixels = read_pixels(pairs.images, *model.input.size, progress=progress)
        with (progress or Silent()).task("embedding", len(pairs.images)) as advance:
            found[path] = raw_embeddings(model, pixels, advance=advance)
    return evaluate_pairs(found[gallery], found[query], pairs.same)

"""Pair sets (LFW, CFP-FP, AgeDB-30): 10-fold accuracy in self test and cross test.

A pair has no query side and no gallery side, so the cross test runs in both directions: the first
image from the new model and the second from the old one, and the reverse.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unibct import progress
from unibct.arrays import Floats, checked_embeddings, normalized, require_same_dim
from unibct.data.loader import read_pixels
from unibct.data.readers.pair_file import read_pair_file
from unibct.embedders import open_image_embedder
from unibct.embeddings.extraction import raw_embeddings
from unibct.errors import UserError
from unibct.evaluation.bootstrap import REPEATS
from unibct.evaluation.criterion import sampled_criterion
from unibct.evaluation.evaluation import Evaluation, known_fingerprints
from unibct.evaluation.options import EvaluationOptions
from unibct.evaluation.protocols import is_same
from unibct.evaluation.search_test import CROSS, NEW_SELF, OLD_SELF, REVERSED_CROSS
from unibct.evaluation.seen_classes import SeenClasses
from unibct.evaluation.verification import FoldAccuracy, checked_same, fold_accuracy
from unibct.models.embedder import ImageEmbedder

METRIC = "accuracy"
_SEEN = SeenClasses(None, None, "a pair set names no classes")


@dataclass(frozen=True, kw_only=True)
class PairEvaluation(Evaluation):
    """The accuracy of each test; the criterion averages both directions of the cross test."""

    tests: dict[str, FoldAccuracy]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        common = super().as_json()
        names = ("verdict", "note", "fingerprints", "seen_classes", "criteria")
        return {name: common[name] for name in names} | {
            "tests": {
                name: {METRIC: test.mean, "folds": test.folds.tolist()}
                for name, test in self.tests.items()
            },
            "pairs": len(next(iter(self.tests.values())).correct),
        }


def evaluate_pair_set(
    data: str,
    *,
    old: str | Path | ImageEmbedder,
    new: str | Path | ImageEmbedder,
    options: EvaluationOptions,
    device: str = "auto",
) -> PairEvaluation:
    """Embed every image of a pair set and its mirror image with two models, and evaluate them."""
    pairs = read_pair_file(Path(data))

    def embedded(given: str | Path | ImageEmbedder) -> tuple[ImageEmbedder, Floats]:
        model = open_image_embedder(given, device=device, why="a pair set is embedded in two views")
        pixels = read_pixels(pairs.images, model.input.frame)
        with progress.task("embedding", len(pairs.images)) as advance:
            return model, raw_embeddings(model, pixels, advance=advance)

    old_model, old_vectors = embedded(old)
    new_model, new_vectors = (old_model, old_vectors) if is_same(old, new) else embedded(new)
    return evaluate_pairs(
        pairs.same,
        old=old_vectors,
        new=new_vectors,
        seed=options.seed,
        fingerprints=known_fingerprints(old=old_model, new=new_model),
    )


def evaluate_pairs(
    same: Any,
    *,
    old: Any,
    new: Any,
    folds: int = 10,
    seed: int = 0,
    fingerprints: dict[str, str] | None = None,
) -> PairEvaluation:
    """Run the self tests and the cross test in both directions, with a bootstrap over folds.

    ``same`` is (pairs,): whether the two images show the same class. ``old`` and ``new`` are
    (2 · pairs, dim) embeddings, in which the two of a pair follow each other. The folds are
    consecutive parts, each with the threshold that is best on the others; fewer than ten carry no
    verdict. ``seed`` chooses the bootstrap samples.
    """
    models = {
        name: normalized(checked_embeddings(vectors, name))
        for name, vectors in (("old", old), ("new", new))
    }
    require_same_dim(models["new"], "new", models["old"], "old")
    same = checked_same(same)
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    for name, vectors in models.items():
        if len(vectors) != 2 * len(same):
            raise UserError(f"{name} has {len(vectors)} embeddings for {len(same)} pairs")
    tests: dict[str, FoldAccuracy] = {}
    for direction in (OLD_SELF, CROSS, REVERSED_CROSS, NEW_SELF):
        first, second = models[direction.query], models[direction.gallery]
        scores = np.einsum("ij,ij->i", first[::2], second[1::2])
        tests[direction] = fold_accuracy(scores, same, folds=folds)
    cross_mean = (tests[CROSS].mean + tests[REVERSED_CROSS].mean) / 2
    gain = cross_mean - tests[OLD_SELF].mean
    interval = sampled_criterion(
        METRIC,
        tests[OLD_SELF].mean,
        cross_mean,
        gain + _sampled_deviations(tests, seed),
        classes=folds,
    )
    return PairEvaluation(
        values={
            name: {METRIC: test.mean, "± over folds": float(test.folds.std())}
            for name, test in tests.items()
        },
        compared=(interval,),
        seen=_SEEN,
        note=_SEEN.note,
        fingerprints=fingerprints or {},
        tests=tests,
    )


def _sampled_deviations(tests: dict[str, FoldAccuracy], seed: int) -> Floats:
    """Return (repeats,): how far the gain of drawn folds is from the mean of all repeats.

    Folds are drawn because the pairs of a fold share their subjects, and no subject is in two
    folds.
    """
    folds = len(tests[OLD_SELF].folds)
    draws = np.random.default_rng(seed).multinomial(folds, np.full(folds, 1 / folds), REPEATS)
    draws = draws[(draws > 0).sum(axis=1) > 1]  # a threshold comes from the other folds
    cross = (tests[CROSS].sampled(draws) + tests[REVERSED_CROSS].sampled(draws)) / 2
    gains = cross - tests[OLD_SELF].sampled(draws)
    return gains - gains.mean()

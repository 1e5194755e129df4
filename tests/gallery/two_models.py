"""Two models' embeddings of the same images, for tests of mixed galleries."""

from datetime import UTC, datetime

from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.evaluation import Evaluated, EvaluatedData, EvaluatedModel, UpgradeEvaluation
from unibct.evaluation.mixed_gallery import TwoKinds
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import GalleryMode, split_gallery
from unibct.evaluation.upgrade import evaluate_embeddings

DATE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVALUATED = Evaluated(
    EvaluatedModel("0123456789abcdef" * 2, 16, "models/old", "d1"),
    EvaluatedModel("fedcba9876543210" * 2, 16, "models/new", "d2"),
    EvaluatedData("noise", "d3", 480, 40),
)


def two_kinds(classes: int, images: int, seed: int = 0) -> TwoKinds:
    """A gallery of a noisy old and a better new model."""
    old, labels = noisy_classes(classes, images, noise=1.5, seed=2 * seed)
    new, _ = noisy_classes(classes, images, noise=0.8, seed=2 * seed + 1)
    split = split_gallery(labels, seed=seed)
    sides = [search_test(new, rows, split).images for rows in (old, new)]
    assert sides[0] is not None
    assert sides[1] is not None
    return TwoKinds(*sides)


def evaluation_of(
    old_noise: float = 1.5,
    new_noise: float = 0.6,
    mode: GalleryMode = "templates",
    alpha: float = 0.5,
    evaluated: Evaluated | None = EVALUATED,
) -> UpgradeEvaluation:
    """An evaluation of two models on forty classes of twelve images."""
    old, labels = noisy_classes(40, 12, noise=old_noise, seed=1)
    new, _ = noisy_classes(40, 12, noise=new_noise, seed=2)
    return evaluate_embeddings(
        labels, old=old, new=new, repeats=200, gallery_mode=mode, alpha=alpha, evaluated=evaluated
    )

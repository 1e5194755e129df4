"""Whether a new model may replace an old one: self tests, cross test and verdict.

A seeded quarter of each class's images (at least one) is pooled into the gallery's template of
that class, the rest are queries. Every query meets every template: that is the 1:1 test and the
1:N test. In a self test both sides come from one model; in the cross test the queries come from
the new model and the templates from the old one.
"""

from dataclasses import dataclass
from typing import Any

from unibct.arrays import checked_embeddings
from unibct.evaluation.bootstrap import REPEATS
from unibct.evaluation.criterion import Criterion, Verdict, compare_tests, joint_verdict
from unibct.evaluation.directions import CROSS, FREE_CROSS, FREE_SELF, NEW_SELF, OLD_SELF, sides
from unibct.evaluation.gallery_split import GallerySplit, split_gallery
from unibct.evaluation.metrics.table import measured_metrics
from unibct.evaluation.metrics.verification import ThresholdRule
from unibct.evaluation.resolution import HEADLINE_FAR, carried_fars, far_note, headline_far
from unibct.evaluation.search_test import SearchTest, search_test


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What every evaluation protocol reports.

    Attributes:
        values: test -> metric -> value, as tables show them.
        compared: M(cross) − M(old self) of each metric that has an interval.
        note: what a reader must know about the numbers, if anything.
    """

    values: dict[str, dict[str, float]]
    compared: tuple[Criterion, ...]
    note: str | None = None

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criterion of each metric on which the verdict depends."""
        return tuple(criterion for criterion in self.compared if criterion.decides)

    @property
    def verdict(self) -> Verdict:
        """Compatible only if each criterion is; not compatible as soon as one is not."""
        return joint_verdict([criterion.verdict for criterion in self.criteria])

    def metrics(self, test: str) -> dict[str, float]:
        """Return the metrics of one test, in the tables' order."""
        return self.values[test]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "verdict": self.verdict,
            "note": self.note,
            "criteria": [criterion.as_json() for criterion in self.criteria],
            "further_metrics": [c.as_json() for c in self.compared if not c.decides],
            "tests": self.values,
        }


_NEAREST_NOTE = (
    "the TARs of the tests are at the ROC corner nearest to the rate, as the field's scripts "
    "report them; the difference and the verdict use the strict threshold"
)


def joined_notes(*notes: str | None, rule: ThresholdRule) -> str | None:
    """Join what a reader must know, and add what the threshold rule means if it is not strict."""
    texts = [note for note in (*notes, _NEAREST_NOTE if rule == "nearest" else None) if note]
    return "; ".join(texts) or None


@dataclass(frozen=True, kw_only=True)
class UpgradeEvaluation(Evaluation):
    """What ``evaluate_upgrade`` finds; the tests are kept for curves and pictures.

    Attributes:
        tests: by the name of their direction, such as ``new→old``.
        far: false accept rate of the headline TAR.
        split: which images are in the gallery.
        rule: how the thresholds of the reported TARs are set.
    """

    tests: dict[str, SearchTest]
    far: float
    split: GallerySplit
    rule: ThresholdRule = "strict"

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        fars = carried_fars(self.split.classes)
        return super().as_json() | {
            "far": self.far,
            "tests": {
                name: self.values[name]
                | {"tar_at_far": {f"{far:g}": test.tar(far, rule=self.rule) for far in fars}}
                for name, test in self.tests.items()
            },
            "queries": len(self.split.query),
            "templates": self.split.classes,
            "images_in_templates": len(self.split.gallery),
        }


def evaluate_upgrade(
    old: Any,
    new: Any,
    labels: Any,
    *,
    free: Any = None,
    far: float = HEADLINE_FAR,
    rule: ThresholdRule = "strict",
    seed: int = 0,
    repeats: int = REPEATS,
) -> UpgradeEvaluation:
    """Make the old self, the cross and the new self test of the same images, with a verdict.

    Args:
        old: (images, dim) the old model's embeddings.
        new: (images, dim) the new model's embeddings.
        labels: (images,) integers 0…C-1.
        free: (images, dim′) embeddings of a new model that was trained without compatibility: its
            self test is the upper bound, and its queries in the old gallery show what
            compatibility is for.
        far: false accept rate of the headline TAR; a larger one is taken where there are too few
            classes to measure it.
        rule: how the thresholds of the reported TARs are set, see ``tar_at_far``; the criterion
            always uses the strict rule.
        seed: chooses the gallery's images and the bootstrap samples.
        repeats: bootstrap samples.
    """
    models = {"old": checked_embeddings(old, "old"), "new": new}
    if free is not None:
        models["free"] = checked_embeddings(free, "free")
    directions = [OLD_SELF, CROSS, NEW_SELF]
    if free is not None:
        same_dim = models["free"].shape[1] == models["old"].shape[1]
        directions += [FREE_SELF, FREE_CROSS] if same_dim else [FREE_SELF]
    split = split_gallery(labels, seed=seed)
    tests: dict[str, SearchTest] = {}
    for name in directions:
        query, gallery = (models[side] for side in sides(name))
        tests[name] = search_test(query, gallery, split)
    used_far = headline_far(split.classes, far)
    return UpgradeEvaluation(
        values={
            name: measured_metrics(test, [used_far], rule=rule) for name, test in tests.items()
        },
        compared=compare_tests(
            tests[OLD_SELF], tests[CROSS], far=used_far, seed=seed, repeats=repeats
        ),
        note=joined_notes(far_note(used_far, far, split.classes), rule=rule),
        tests=tests,
        far=used_far,
        split=split,
        rule=rule,
    )

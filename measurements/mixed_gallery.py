"""Rows of two models in one gallery: how should one search rank them?

    python measurements/mixed_gallery.py                           glyphs, some 20 minutes
    python measurements/mixed_gallery.py --train T --choose V --report R --name photos --set …

An old model and, for each method and seed, a compatible new one are trained on one scenario. The
gallery's rows are single images, embedded again by the new model in random order, at 22 points from
none to all. At each point every way to search ranks all rows; the mean over the points and the
deepest dip below the old self test (old queries, old rows) are printed, with the difference to raw
scores and its 95 % interval over classes and seeds.

Calibrations are fitted, and the best of them is chosen, on the classes of ``--choose``; nothing is
fitted or chosen on those of ``--report``. Folders of a run that was stopped are used again. The
results are in docs/mixed-galleries.md.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.data.scenarios import split
from unibct.embeddings.extraction import embed
from unibct.evaluation.blending import blended
from unibct.evaluation.bootstrap import REPEATS, ClassDraws, sampled_mean
from unibct.evaluation.criterion import estimate
from unibct.evaluation.mixed_gallery import (
    CUTS,
    TwoKinds,
    choose_calibration,
    ranking_quality,
)
from unibct.evaluation.score_map import KINDS, RAW, ScoreMap, fit_score_map
from unibct.evaluation.search_test import ImageSearch, search_test
from unibct.evaluation.templates import GallerySplit, split_gallery
from unibct.models.model import Model
from unibct.training.plan import upgrade_recipes
from unibct.training.recipe import load_recipe
from unibct.training.train import train

METRICS = ("top-1", "mAP")
QUERIES = {  # the name of a query for old rows -> α of its blend
    "new query": 1.0,
    "old query (two encoders)": 0.0,
    "blend, α = 0.5": 0.5,
    "blend, α = 0.75": 0.75,
}
RRF, ALTERNATING = "reciprocal rank fusion", "two searches, alternating"
CHOSEN = "the chosen one"
BASELINE = ("new query", RAW)
Mask = NDArray[np.bool_]
Merge = Callable[[Floats, Floats, Mask], Floats]


@dataclass
class Sides:
    """One test set: embeddings of its images by both models, and its gallery."""

    old: Floats
    new: Floats
    split: GallerySplit

    def search(self, queries: Floats, rows: Floats) -> ImageSearch:
        """Return the search of these queries among these rows."""
        images = search_test(queries, rows, self.split).images
        assert images is not None
        return images

    def kinds(self, on_old_rows: str) -> TwoKinds:
        """Return both kinds of rows, with a kind of query for old rows."""
        queries = blended(old=self.old, new=self.new, alpha=QUERIES[on_old_rows])
        return TwoKinds(self.search(queries, self.old), self.search(self.new, self.new))


@dataclass
class Curve:
    """Values of each query at each point of the backfill."""

    points: list[tuple[Floats, Floats]] = field(default_factory=list[tuple[Floats, Floats]])

    def mean(self, metric: int) -> Floats:
        """Return (queries,): the mean over the points."""
        return np.mean([point[metric] for point in self.points], axis=0)

    def values(self, metric: int) -> Floats:
        """Return (points,): the mean over queries."""
        return np.array([point[metric].mean() for point in self.points])


def trained(options: argparse.Namespace, seed: int) -> tuple[Model, dict[str, Model]]:
    """Train the old model and a new one by each method, or take them from an earlier run."""
    images = open_images(options.train)
    sets = split(images.labels, options.scenario)
    recipe = load_recipe(options.recipe, options.set)
    old_recipe, new_recipe = upgrade_recipes(recipe, options.scenario, seed)
    root = Path(options.work) / f"{options.name}-{options.scenario}-{seed}"
    old = train(images.select(sets.old), old_recipe, root / "old", resume=True)
    new_images = images.select(sets.new)
    new = {
        method: train(new_images, new_recipe, root / method, old=old, method=method, resume=True)
        for method in options.methods
    }
    return old, new


def sides_of(images: ImageSet, old: Model, new: Model, seed: int, most: int) -> Sides:
    """Embed a test set, and draw queries if there are more than ``most``."""
    chosen = split_gallery(images.labels, seed=seed)
    queries = chosen.query
    if len(queries) > most:
        drawn = np.random.default_rng([seed, 31]).choice(queries, most, replace=False)
        queries = np.sort(drawn)
    before, after = (np.asarray(embed(model, images).vectors) for model in (old, new))
    return Sides(before, after, GallerySplit(chosen.labels, chosen.gallery, queries))


def by_score(calibration: ScoreMap) -> Merge:
    """Return what merges by calibrated scores."""
    return lambda old, new, remade: np.where(remade, new, calibration(old))


def by_rank(*, new_first: bool) -> Merge:
    """Return what merges by the rank of each row in the search of its own kind.

    The two searches have no row in common, so that reciprocal rank fusion orders rows by their
    rank: the first of both kinds tie, then the second, and so on. Ties go to the new row, or to
    the higher raw score.
    """

    def merge(old: Floats, new: Floats, remade: Mask) -> Floats:
        scores = np.where(remade, new, old)
        ranks = np.empty(scores.shape)
        for kind in (remade, ~remade):
            columns = np.flatnonzero(kind)
            if len(columns):
                order = np.argsort(-scores[:, columns], axis=1, kind="stable")
                np.put_along_axis(ranks, columns[order], np.arange(len(columns))[None], axis=1)
        tie = np.where(remade, 0.5, 0.0) if new_first else 0.4 * scores
        return tie - ranks

    return merge


def curve_of(kinds: TwoKinds, merge: Merge, order: Ints) -> Curve:
    """Search the gallery while the new model embeds its rows again, in the given order."""
    curve = Curve()
    old, new = (
        side.query[: len(side.query)] @ side.gallery.T for side in (kinds.cross, kinds.new_self)
    )
    labels, row_labels = kinds.cross.query_labels, kinds.cross.gallery_labels
    remade = np.zeros(kinds.rows, dtype=bool)
    for cut in range(CUTS):
        remade[order[: cut * len(order) // (CUTS - 1)]] = True
        curve.points.append(ranking_quality(merge(old, new, remade), labels, row_labels))
    return curve


def curves_of(choose: Sides, report: Sides, seed: int) -> Iterator[tuple[tuple[str, str], Curve]]:
    """Yield the curve of every way to search; the first name is the query for old rows."""
    order = np.random.default_rng([seed, 5]).permutation(len(report.split.gallery))
    for name in QUERIES:
        fitted_on, kinds = choose.kinds(name), report.kinds(name)
        pairs = fitted_on.pairs()
        for kind in KINDS:
            calibration = fit_score_map(*pairs, kind)
            yield (name, kind), curve_of(kinds, by_score(calibration), order)
        if name == BASELINE[0]:
            yield (name, RRF), curve_of(kinds, by_rank(new_first=False), order)
            yield (name, ALTERNATING), curve_of(kinds, by_rank(new_first=True), order)


@dataclass
class Outcome:
    """What one seed of one method gives.

    Attributes:
        curves: by query for old rows and way to merge.
        old_self: the old self test, as a curve of one point.
        labels: (queries,) classes.
        choice: the calibration that was chosen on other classes, for the new query.
    """

    curves: dict[tuple[str, str], Curve]
    old_self: Curve
    labels: Ints
    choice: str


def measured(choose: Sides, report: Sides, seed: int) -> Outcome:
    """Measure every way to search."""
    old_self = report.search(report.old, report.old)
    scores = old_self.query[: len(old_self.query)] @ old_self.gallery.T
    point = ranking_quality(scores, old_self.query_labels, old_self.gallery_labels)
    choice = choose_calibration(choose.kinds(BASELINE[0]), seed=seed).calibration.kind
    curves = dict(curves_of(choose, report, seed))
    curves = {(BASELINE[0], CHOSEN): curves[BASELINE[0], choice]} | curves
    return Outcome(curves, Curve([point]), old_self.query_labels, choice)


def gain(outcomes: list[Outcome], way: tuple[str, str], metric: int) -> str:
    """Return the mean's difference to raw scores of new queries, with its interval."""
    differences = [
        outcome.curves[way].mean(metric) - outcome.curves[BASELINE].mean(metric)
        for outcome in outcomes
    ]
    classes = max(int(outcome.labels.max()) for outcome in outcomes) + 1
    rng = np.random.default_rng(1)
    draws = ClassDraws(rng.multinomial(classes, np.full(classes, 1 / classes), size=REPEATS))
    samples = [
        sampled_mean(values, outcome.labels, draws)
        for values, outcome in zip(differences, outcomes, strict=True)
    ]
    means = np.array([values.mean() for values in differences])
    estimated = estimate(means, np.stack(samples), classes=classes)
    mean, low, high = (100 * value for value in (estimated.mean, estimated.low, estimated.high))
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def line(outcomes: list[Outcome], way: tuple[str, str]) -> str:
    """Return a row of the table."""
    cells = list(way)
    for metric in range(len(METRICS)):
        values = [outcome.curves[way].values(metric) for outcome in outcomes]
        dips = [
            curve.min() - outcome.old_self.values(metric)[0]
            for curve, outcome in zip(values, outcomes, strict=True)
        ]
        half = np.mean([curve[CUTS // 2] for curve in values])
        cells += [f"{100 * half:.2f}", f"{100 * np.mean(values):.2f}"]
        cells += ["—" if way == BASELINE else gain(outcomes, way, metric)]
        cells += [f"{100 * np.mean(dips):+.2f}"]
    return f"| {' | '.join(cells)} |"


def print_table(name: str, method: str, outcomes: list[Outcome]) -> None:
    """Print the ways to search by one method's new model."""
    ends = [
        [np.mean([o.curves[BASELINE].values(metric)[place] for o in outcomes]) for place in (0, -1)]
        for metric in range(len(METRICS))
    ]
    olds = [np.mean([o.old_self.values(metric)[0] for o in outcomes]) for metric in (0, 1)]
    texts = [
        f"{metric} {100 * old:.2f} old self test, {100 * end[0]:.2f} new queries in old rows, "
        f"{100 * end[1]:.2f} after a backfill"
        for metric, old, end in zip(METRICS, olds, ends, strict=True)
    ]
    print(f"\n**{name}, `{method}`**: {'; '.join(texts)}.")
    print(f"Chosen on other classes: {', '.join(o.choice for o in outcomes)} (one per seed).\n")
    heads = ["query for old rows", "merged by"]
    for metric in METRICS:
        heads += [f"{metric} at half", "mean", "− raw", "deepest dip"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for way in outcomes[0].curves:
        print(line(outcomes, way), flush=True)


def main() -> None:
    """Print a table for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", default="glyphs:train")
    parser.add_argument("--choose", default="glyphs:val", help="classes that calibrations are for")
    parser.add_argument("--report", default="glyphs:test", help="classes of the curves")
    parser.add_argument("--name", default="glyphs", help="for the folders in --work")
    parser.add_argument("--recipe", default="glyphs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--scenario", default="open-class")
    parser.add_argument("--methods", nargs="+", default=["unibct", "unibct-plus"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--queries", type=int, default=2000, help="drawn if there are more")
    parser.add_argument("--work", default="runs/mixed-gallery")
    options = parser.parse_args()
    images = [open_images(name) for name in (options.choose, options.report)]
    outcomes: dict[str, list[Outcome]] = {method: [] for method in options.methods}
    for seed in options.seeds:
        old, new = trained(options, seed)
        for method, model in new.items():
            choose, report = (sides_of(i, old, model, seed, options.queries) for i in images)
            outcomes[method].append(measured(choose, report, seed))
    for method, seed_outcomes in outcomes.items():
        print_table(f"{options.name}, {options.scenario}", method, seed_outcomes)


if __name__ == "__main__":
    main()

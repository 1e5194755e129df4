"""How often a verdict is wrong: few classes, few seeds, all deciding metrics together.

    unibct benchmark --scenarios open-class,identical-data --seeds 0,1,2,3,4 --chain none \
        --methods unibct,unibct-plus,unibct@warmup_epochs=0 --out runs/verdicts     half an hour
    python measurements/verdict_errors.py runs/verdicts                       half an hour on a core
    python measurements/verdict_errors.py runs/verdicts --moved

The population is real: for every test class and seed of one cell, by how much more queries the new
model accepts (TAR), finds first (top-1) and among five (top-5), with all three kept together, so
that they are correlated and spread as they are. Old and new are exchanged for every other class, so
both models are equally good. With ``--moved`` they are not exchanged: the mean is subtracted, so
that the effects are as skewed as they are; this is harsher than two real models, because no class
has exactly the same result with both.

A trial draws test classes from it with replacement, and seeds: what a class does differently in one
seed is drawn from the real ones (three), class by class, and each seed has luck of its own, normal,
with correlation 0.5 between metrics (0.0 to 0.9 in our results). ``share`` is the luck's part of
the variance of a single seed's mean. Thresholds are those of the whole population.

For one and two seeds the truth is that of these seeds, because no more is claimed; from three on it
is that of all seeds. The columns are percent of the trials: intervals of a metric that hold the
truth; verdicts *compatible* and *not compatible* although the models are equally good (nominal:
at most 2.5 each); the same by the earlier rule, which claimed all seeds from two on; and verdicts
*within noise* although the new model is better, or worse, by 3 points in all metrics. Results are
in docs/decisions/0021-intervals.md. Finished rows are kept in the folder, and the same command
goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from unibct.arrays import Floats
from unibct.benchmark.jobs import cell_folder, old_folder
from unibct.benchmark.workspace import MODEL
from unibct.data.readers import open_images
from unibct.embeddings.extraction import embed
from unibct.evaluation.criterion import FEWEST_SEEDS, Estimate, estimate, joint_verdict
from unibct.evaluation.search_test import SearchTest, search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.verification import headline_far, strict_threshold
from unibct.models.model_folder import load_model

CLASSES = (10, 12, 20, 30, 60, 100, 300)
SHARES = (0.0, 0.3, 0.6, 0.9)
SEEDS = (1, 2, 3, 4, 5)
LUCK_CORRELATION = 0.5
REPEATS = 600
REAL_DIFFERENCE = 0.03
METRICS = 3
HEADS = (
    "classes",
    "share",
    "seeds",
    "holds the truth",
    "false compatible",
    "false not compatible",
    "earlier: holds",
    "earlier: false compatible",
    "earlier: false not compatible",
    "+3 points missed",
    "−3 points missed",
)


def main() -> None:
    """Print a row for each number of classes, share and number of seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of a benchmark")
    parser.add_argument("--test", default="glyphs:test")
    parser.add_argument("--scenario", default="open-class")
    parser.add_argument("--method", default="unibct-plus")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--moved", action="store_true", help="skewed effects")
    options = parser.parse_args()
    name = f"{options.scenario}-{options.method}"
    population = _population(options, options.folder / f"verdict-errors-{name}.npz")
    name += "-moved" if options.moved else ""
    done = options.folder / f"verdict-errors-{name}-{options.trials}.json"
    rows: dict[str, list[float]] = json.loads(done.read_text()) if done.exists() else {}
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}")
    for classes in CLASSES:
        for share in SHARES:
            columns: dict[int, list[float]] = {}
            if f"{classes} {share} {SEEDS[-1]}" not in rows:
                columns = errors(population, classes, share, options.trials)
            for seeds in SEEDS:
                row = rows.setdefault(f"{classes} {share} {seeds}", columns.get(seeds, []))
                cells = [f"{classes}", f"{share:g}", f"{seeds}", *(f"{x:.1f}" for x in row)]
                print(f"| {' | '.join(cells)} |", flush=True)
            done.write_text(json.dumps(rows))


def errors(
    population: tuple[Floats, Floats], classes: int, share: float, trials: int
) -> dict[int, list[float]]:
    """Return the columns of the table, by the number of seeds."""
    rng = np.random.default_rng([classes, int(100 * share)])
    outcomes: dict[int, list[list[float]]] = {seeds: [] for seeds in SEEDS}
    for _ in range(trials):
        values, samples, luck = trial(population, classes, share, rng)
        for seeds, rows in outcomes.items():
            truths = luck[:seeds].mean(axis=0) if seeds < FEWEST_SEEDS else np.zeros(METRICS)
            intervals = [
                estimate(values[:seeds, m], samples[:seeds, m], classes=classes)
                for m in range(METRICS)
            ]
            before = [
                earlier_interval(values[:seeds, m], samples[:seeds, m], rng) for m in range(METRICS)
            ]
            of_seeds = luck[:1].mean(axis=0) if seeds == 1 else np.zeros(METRICS)
            rows.append([*_outcome(intervals, truths), *_earlier_outcome(before, of_seeds)])
            for real in (REAL_DIFFERENCE, -REAL_DIFFERENCE):
                missed = _verdict(intervals, truths - real) == "within noise"
                rows[-1].append(float(missed))
    return {seeds: list(100 * np.mean(rows, axis=0)) for seeds, rows in outcomes.items()}


def trial(
    population: tuple[Floats, Floats], classes: int, share: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Return values (seeds, metrics), samples (seeds, metrics, repeats) and luck of one trial."""
    effects, counts = population
    real, seeds = len(effects), SEEDS[-1]
    common = effects.mean(axis=0)
    of_seed = (effects - common) * np.sqrt(real / (real - 1))
    drawn = rng.integers(len(counts), size=classes)
    which = rng.integers(real, size=(seeds, classes))
    sums = common[:, drawn][None] + np.moveaxis(of_seed[which, :, drawn], 2, 1)
    weights = counts[drawn]
    one_seed = effects - effects.sum(axis=2, keepdims=True) / counts.sum() * counts
    over_classes = np.mean(np.var(one_seed, axis=2) / np.mean(counts) ** 2, axis=0) / classes
    luck_deviation = np.sqrt(over_classes * share / (1 - share))
    correlated = np.full((METRICS, METRICS), LUCK_CORRELATION)
    np.fill_diagonal(correlated, 1)
    luck = rng.normal(size=(seeds, METRICS)) @ np.linalg.cholesky(correlated).T * luck_deviation
    draws = rng.multinomial(classes, np.full(classes, 1 / classes), size=REPEATS).astype(float)
    samples = sums @ draws.T / (draws @ weights) + luck[:, :, None]
    return sums.sum(axis=2) / weights.sum() + luck, samples, luck


def earlier_interval(
    values: Floats, samples: Floats, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the percentiles of drawn classes and drawn seeds, as unibct had them before."""
    seeds, repeats = samples.shape
    drawn = over_classes = samples.mean(axis=0)
    if seeds > 1:
        index = rng.integers(seeds, size=(seeds, repeats))
        over_both = np.take_along_axis(samples, index, axis=0).mean(axis=0)
        drawn = over_classes + np.sqrt(seeds / (seeds - 1)) * (over_both - over_classes)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _verdict(intervals: list[Estimate], truths: Floats) -> str:
    """Return the verdict if these truths were zero."""
    moved = [
        Estimate(e.mean - t, e.low - t, e.high - t, e.ceiling - t, e.seeds, e.classes)
        for e, t in zip(intervals, truths, strict=True)
    ]
    return joint_verdict([one.verdict for one in moved])


def _outcome(intervals: list[Estimate], truths: Floats) -> list[float]:
    verdict = _verdict(intervals, truths)
    holds = [one.low <= truth <= one.high for one, truth in zip(intervals, truths, strict=True)]
    return [float(np.mean(holds)), verdict == "compatible", verdict == "not compatible"]


def _earlier_outcome(intervals: list[tuple[float, float]], truths: Floats) -> list[float]:
    low, high = (np.array(ends) for ends in zip(*intervals, strict=True))
    holds = float(np.mean((low <= truths) & (truths <= high)))
    below = bool((high < truths).any())
    return [holds, bool((low > truths).all()) and not below, below]


def _population(options: Any, path: Path) -> tuple[Floats, Floats]:
    """Return (seeds, metrics, classes) summed effects with mean zero, and queries per class."""
    if not path.exists():
        images = open_images(options.test)
        split = split_gallery(images.labels)
        far = headline_far(split.compared_classes)
        each: list[Floats] = []
        counts = np.zeros(0)
        for seed in options.seeds:
            folders = (
                old_folder(options.scenario, seed),
                cell_folder(options.scenario, options.method, seed),
            )
            old, new = (
                np.asarray(embed(load_model(options.folder / one / MODEL), images).vectors)
                for one in folders
            )
            before, after = search_test(old, old, split), search_test(new, old, split)
            each.append(_sums(after, far) - _sums(before, far))
            counts = np.bincount(before.query_classes, minlength=before.classes)
        np.savez(path, effects=np.stack(each), counts=counts)
    with np.load(path) as stored:
        effects: Floats = stored["effects"].astype(np.float64)
        counts = stored["counts"].astype(np.float64)
    if options.moved:
        return effects - effects.sum(axis=2, keepdims=True) / counts.sum() * counts, counts
    return np.concatenate([effects, -effects], axis=2), np.concatenate([counts, counts])


def _sums(test: SearchTest, far: float) -> Floats:
    """Return (metrics, classes): how many queries of each class are accepted, first, among five."""
    threshold = strict_threshold(test.impostor, far)
    hits = (
        (test.pairs.genuine_classes, test.genuine > threshold),
        (test.query_classes, test.ranks < 1),
        (test.query_classes, test.ranks < 5),
    )
    sums = [np.bincount(which, weights=hit, minlength=test.classes) for which, hit in hits]
    return np.stack(sums).astype(np.float64)


if __name__ == "__main__":
    main()

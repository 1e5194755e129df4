"""The tables of a benchmark's report.

``all_tables`` has them in the order of the report. Most have a row for each method and a column
for each scenario (``by_method``). A table that needs results which are not there is None.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

import numpy as np

from unibct.benchmark import VERSIONS
from unibct.benchmark.cells import SEEN
from unibct.benchmark.jobs import version_folder
from unibct.benchmark.results import Measured, Results
from unibct.evaluation.criterion import (
    CONFIDENCE,
    FEWEST_SEEDS,
    NOT_COMPATIBLE_RULE,
    Estimate,
    Verdict,
    few_classes_note,
    joint_verdict,
    seeds_note,
    these_seeds,
)
from unibct.evaluation.metrics import TOP_1, find_metric
from unibct.maps import MAPS
from unibct.methods import DEFAULT_METHOD, NO_METHOD
from unibct.progress import clock
from unibct.report.cell_tables import (
    blended_table,
    mixed_table,
    old_threshold_table,
    weights_table,
)
from unibct.report.plain_table import (
    NO_VALUE,
    Cell,
    PlainTable,
    difference_cell,
    percent_cell,
    verdict_cell,
    verdict_kind,
)

BASELINE = "unibct"
# Every method is compared with each of these. The second one, if it was run, is at work from the
# first step, as the default method is.
_BASELINES = (BASELINE, f"{BASELINE}@warmup_epochs=0", DEFAULT_METHOD)
_SIGNS = {"compatible": "✓", "not compatible": "✗", "within noise": "≈"}


def all_tables(results: Results) -> list[PlainTable]:
    """Return every table of the report, in its order."""
    metrics = top_1_first(results.deciding_metrics)
    tables = [
        verdict_table(results),
        *(gain_table(results, metric) for metric in metrics),
        price_table(results),
        scenario_table(results),
        *paper_tables(results),
        flip_table(results),
        old_threshold_table(results),
        blended_table(results),
        weights_table(results),
        mixed_table(results),
        *baseline_tables(results),
        *(criterion_table(results, scenario) for scenario in results.scenarios),
        *chain_tables(results),
    ]
    if len(results.seeds) < FEWEST_SEEDS:
        over = seeds_note(len(results.seeds))
        tables = [t if t is None else replace(t, note=f"{t.note} {over}") for t in tables]
    return [table for table in (*tables, cost_table(results)) if table is not None]


def by_method(
    results: Results,
    title: str,
    note: str,
    methods: Sequence[str],
    cell: Callable[[str, str], Cell],
) -> PlainTable | None:
    """Return a table with a row for each of these methods and a column for each scenario.

    ``cell`` makes the cell of a scenario and a method from finished results.
    """
    if not results.scenarios:
        return None
    rows = tuple(
        (
            Cell(method),
            *(
                cell(scenario, method) if results.has_cell(scenario, method) else NO_VALUE
                for scenario in results.scenarios
            ),
        )
        for method in methods
    )
    return PlainTable(title, note, ("method", *results.scenarios), rows)


def top_1_first(metrics: Sequence[str]) -> list[str]:
    """Return metrics in their order, but top-1 before the others."""
    return sorted(metrics, key=lambda metric: metric != TOP_1)


# The verdicts, and what a reader should know of all tables.


def verdict_table(results: Results) -> PlainTable | None:
    """Return the verdict on each method in each scenario."""
    # The word is what a reader acts on, so it says itself what it does not claim.
    seeds = len(results.seeds)
    about = "" if seeds >= FEWEST_SEEDS else f" for {these_seeds(seeds)}"

    def cell(scenario: str, method: str) -> Cell:
        verdicts: list[Verdict] = [
            results.gain(scenario, method, metric).estimate.verdict
            for metric in results.deciding_metrics
        ]
        verdict = joint_verdict(verdicts)
        signs = " ".join(_SIGNS[one] for one in verdicts)
        return Cell(verdict + about, signs, verdict_kind(verdict))

    note = (
        "Compatible means: the cross test is above the old self test in every metric that decides "
        f"({', '.join(results.deciding_metrics)}; one sign each), and the "
        f"{100 * CONFIDENCE:.0f} % interval of each difference is above zero (✓). "
        f"{NOT_COMPATIBLE_RULE}: ✗ is such a difference, ≈ is neither."
    )
    note = " ".join(filter(None, (note, few_note(results), weak_note(results))))
    return by_method(results, "Verdicts", note, results.methods, cell)


def few_note(results: Results) -> str | None:
    """Return that the test classes are too few for a verdict, if they are."""
    note = few_classes_note(results.query_classes)
    return None if note is None else f"{note[0].upper()}{note[1:]}."


def weak_note(results: Results) -> str | None:
    """Return in which scenarios the old model is too weak to judge an upgrade by, if in any."""
    if not results.weak_old_models:
        return None
    places = [
        f"{scenario} (seed {', '.join(map(str, seeds))})"
        for scenario, seeds in results.weak_old_models.items()
    ]
    return (
        f"Too weak to judge an upgrade by, because hardly better than raw pixels: the old model of "
        f"{'; '.join(places)}."
    )


def seen_note(results: Results) -> str | None:
    """Return why a model may have been trained on test classes, if one may."""
    counts = [result[SEEN] for result in results.by_job.values()]
    return next((count["note"] for count in counts if count["count"] != 0), None)


def left_out_note(results: Results) -> str | None:
    """Return which seeds and how many jobs are left out so that seeds can be compared, if any."""
    sentences = [
        f"Seed {seed} is left out: it lacks {count} {'jobs' if count > 1 else 'job'}."
        for seed, count in results.missing_jobs.items()
    ]
    count = results.unshared_jobs
    if count:
        jobs = f"{count} finished jobs are" if count > 1 else "1 finished job is"
        sentences.append(f"{jobs} left out: not every seed has the same.")
    return " ".join(sentences) or None


# The two differences: the criterion's is cross − old self, the price is new self − free self.


def gain_table(results: Results, metric: str = TOP_1) -> PlainTable | None:
    """Return cross − old self of each method in each scenario."""
    note = (
        "By how much new queries find more in the old gallery than old queries do, with the "
        "interval of the difference."
    )
    return by_method(
        results,
        f"Cross − old self, points of {metric}",
        note,
        results.methods,
        lambda scenario, method: difference_cell(results.gain(scenario, method, metric).estimate),
    )


def price_table(results: Results) -> PlainTable | None:
    """Return what each method's self test loses or gains against the free model's, in top-1.

    Maps are left out, because they do not change the new model. There is no table without a free
    model.
    """
    methods = [m for m in results.methods if m not in (NO_METHOD, *MAPS)]
    free_tests = [results.free_self(scenario, TOP_1) for scenario in results.scenarios]
    if not methods or all(test is None for test in free_tests):
        return None
    note = (
        "What compatibility costs (−) or gives (+): the new model's self test compared with the "
        "free model's."
    )
    return by_method(
        results,
        f"New self − free self, points of {TOP_1}",
        note,
        methods,
        lambda scenario, method: _price_cell(results, scenario, method, TOP_1),
    )


def criterion_table(results: Results, scenario: str) -> PlainTable:
    """Return cross − old self of each method in a scenario, and the price of compatibility."""
    rows: list[tuple[Cell, ...]] = []
    for method in results.finished_methods(scenario):
        gains = {
            metric: results.gain(scenario, method, metric).estimate for metric in results.metrics
        }
        verdict = joint_verdict([gains[metric].verdict for metric in results.deciding_metrics])
        rows.append(
            (
                Cell(method),
                *(difference_cell(difference) for difference in gains.values()),
                verdict_cell(verdict),
                *(_price_cell(results, scenario, method, metric) for metric in results.metrics),
            )
        )
    heads = (
        "method",
        *(f"{metric}: cross − old self" for metric in results.metrics),
        "verdict",
        *(f"{metric}: new self − free self" for metric in results.metrics),
    )
    further = [metric for metric in results.metrics if metric not in results.deciding_metrics]
    note = (
        "Differences in points, each with its interval. Left of the verdict: the criterion. Right "
        "of it: what the compatible model's self test loses (−) or gains (+) compared with the "
        "free model."
        + (f" The verdict does not depend on {', '.join(further)}." if further else "")
    )
    return PlainTable(f"{scenario}: the criterion and its price", note, heads, tuple(rows))


def _price_cell(results: Results, scenario: str, method: str, metric: str) -> Cell:
    """Return new self − free self; no value if the free model was not trained."""
    free = results.free_self(scenario, metric)
    if free is None:
        return NO_VALUE
    price = results.new_self(scenario, method, metric) - free
    return difference_cell(price.estimate, coloured=False)


def baseline_tables(results: Results) -> list[PlainTable | None]:
    """Return the difference of each method to a baseline: cross test, then self test.

    The cross test has a table for each deciding metric. The self test has one, without the maps,
    which leave the free model as it is. A table is left out if every pair of it was in another.
    """
    metrics = top_1_first(results.deciding_metrics)
    methods = [method for method in results.methods if method != NO_METHOD]
    trained = [method for method in methods if method not in MAPS]
    baselines = [baseline for baseline in _BASELINES if baseline in methods]
    tables: list[PlainTable | None] = []
    for number, baseline in enumerate(baselines):
        shown = {baseline, *baselines[:number]}
        if set(methods) - shown:
            others = [method for method in methods if method != baseline]
            tables += [_against(results, baseline, others, metric) for metric in metrics]
        if set(trained) - shown:
            others = [method for method in trained if method != baseline]
            tables.append(_against(results, baseline, others, TOP_1, self_test=True))
    return tables


def _against(
    results: Results, baseline: str, others: Sequence[str], metric: str, *, self_test: bool = False
) -> PlainTable | None:
    """Return the difference of some methods to a baseline, in the cross test or the self test."""
    measure = results.new_self if self_test else results.cross

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, baseline):
            return NO_VALUE
        value, compared = (measure(scenario, name, metric) for name in (method, baseline))
        return difference_cell((value - compared).estimate)

    title = f"Against {baseline}, {'self test, ' if self_test else ''}{metric}"
    note = (
        f"{'Self' if self_test else 'Cross'} test, points of {metric} above (+) or below (−) "
        f"{baseline}, on the same classes and seeds."
    )
    return by_method(results, title, note, others, cell)


# The tables that follow the paper's, with its figures for IJB-C beside ours.

# The methods that the paper's Table 3 and Table 4 compare, with what is shown below their names.
PROTOTYPE_METHODS = {
    "unibct-centroid": "plain mean",
    "unibct-drop": "mean without the farthest",
    "unibct": "structural refinement",
    "unibct-plus": "no prototype",
}
OTHER_LOSSES = {
    "regress": "AML",
    "bct": "BCT",
    "unibct-centroid": "L*",
    "unibct": "UniBCT",
    "unibct-plus": "",
}


def paper_figure(scenario: str, method: str, test: str, metric: str) -> str | None:
    """Return the paper's figure in percent from its Table 2, or None if it has none.

    The method may be ``old``, the old model; the test is ``cross`` or ``self``. The paper's TAR is
    at the false accept rate 1e-4; it is returned for a TAR at any rate.
    """
    name = metric.split("@")[0]
    column = f"{test}_{'tar_1e-4' if name == 'TAR' else name.replace('-', '')}"
    return _figures().get((scenario, method), {}).get(column) or None


@cache
def _figures() -> dict[tuple[str, str], dict[str, str]]:
    """Return (scenario, method) -> column -> figure."""
    text = (resources.files("unibct.report") / "paper_results.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(row["scenario"], row["method"]): row for row in rows}


def scenario_table(results: Results) -> PlainTable | None:
    """Return the paper's Table 2: cross and self test of every method in every scenario."""
    # Cross and self test of the 1:1 metrics come first, then all cross and all self tests of 1:N.
    kinds = dict.fromkeys(find_metric(metric).kind for metric in results.metrics)
    columns = [
        (test, metric)
        for kind in kinds
        for test in ("cross", "self")
        for metric in results.metrics
        if find_metric(metric).kind == kind
    ]
    measures = {"cross": results.cross, "self": results.new_self}
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        old = [
            _old_self_cell(results, scenario, metric) if test == "self" else NO_VALUE
            for test, metric in columns
        ]
        rows.append((Cell(scenario, kind="head"), Cell("old", "the old model"), *old))
        for method in results.finished_methods(scenario):
            cells = [
                percent_cell(
                    measures[test](scenario, method, metric).estimate,
                    paper=paper_figure(scenario, method, test, metric),
                )
                for test, metric in columns
            ]
            about = "the paper's upper bound of the self test" if method == NO_METHOD else ""
            rows.append((Cell(""), Cell(method, about), *cells))
    note = (
        "Percent, means over the seeds with their intervals. Paper: its figure on IJB-C, trained "
        "on MS1Mv3, with TAR@1e-4, from one run. Compare the relations between rows, not the "
        "values: the images, the network and the false accept rate differ."
    )
    heads = ("scenario", "method", *(f"{test} {metric}" for test, metric in columns))
    title = "All scenarios (the paper's Table 2)"
    return PlainTable(title, note, heads, tuple(rows)) if rows else None


def paper_tables(results: Results) -> list[PlainTable]:
    """Return the paper's Table 3, kinds of prototypes, and Table 4, other losses.

    They are the cross tests of some methods in extended-data; fewer than two make no table.
    """
    scenario = "extended-data"
    tables: list[PlainTable] = []
    for title, meanings in (
        ("Prototypes (the paper's Table 3)", PROTOTYPE_METHODS),
        ("Other losses (the paper's Table 4)", OTHER_LOSSES),
    ):
        methods = results.finished_methods(scenario) if scenario in results.scenarios else []
        finished = [method for method in meanings if method in methods]
        if len(finished) < 2:
            continue
        heads: list[str] = ["method"]
        old: list[Cell] = [Cell("old", "self test")]
        for metric in results.metrics:
            heads += [metric, f"{metric}: cross − old self"]
            old += [_old_self_cell(results, scenario, metric), NO_VALUE]
        rows: list[tuple[Cell, ...]] = [tuple(old)]
        for method in finished:
            cells: list[Cell] = [Cell(method, meanings[method])]
            for metric in results.metrics:
                cross = results.cross(scenario, method, metric).estimate
                paper = paper_figure(scenario, method, "cross", metric)
                difference = results.gain(scenario, method, metric).estimate
                cells += [percent_cell(cross, paper=paper), difference_cell(difference)]
            rows.append(tuple(cells))
        note = "Cross test in extended-data, in percent; differences in points."
        tables.append(PlainTable(title, note, tuple(heads), tuple(rows)))
    return tables


def _old_self_cell(results: Results, scenario: str, metric: str) -> Cell:
    paper = paper_figure(scenario, "old", "self", metric)
    return percent_cell(results.old_self(scenario, metric).estimate, paper=paper)


def flip_table(results: Results) -> PlainTable | None:
    """Return how many queries each method's upgrade turns from right to wrong."""

    def cell(scenario: str, method: str) -> Cell:
        negative, positive, relative = (
            results.cross(scenario, method, rate).estimate
            for rate in ("nfr", "pfr", "relative_nfr")
        )
        shown, gained = percent_cell(negative), percent_cell(positive)
        return Cell(
            shown.text,
            f"{shown.small}; positive {gained.text} ({gained.small}); relative "
            f"{relative.mean:.2f} ({max(relative.low, 0.0):.2f} to {relative.high:.2f})",
        )

    note = (
        "Percent of the queries that find their class first with the old model and not with the "
        "new one, in the same old gallery. Small: the interval, the positive flips (the reverse), "
        "and the relative rate: 1 if the errors now have nothing to do with the old ones."
    )
    return by_method(results, "Negative flips", note, results.methods, cell)


def cost_table(results: Results) -> PlainTable | None:
    """Return the training images per second of each method, compared with plain training."""

    def cell(scenario: str, method: str) -> Cell:
        plain, cost = results.cost(scenario, NO_METHOD), results.cost(scenario, method)
        if cost is None:
            return NO_VALUE
        small = f"{clock(cost['seconds'])} per training"
        if plain is not None:
            ratio = plain["images_per_second"] / cost["images_per_second"]
            small = f"{ratio:.2f} × the time of none; {small}"
        return Cell(f"{cost['images_per_second']:,.0f}", small)

    trained = [method for method in results.methods if method not in MAPS]
    note = (
        "Training images per second of one process, for the fastest seed, while other jobs ran "
        "on the same machine: a rough measure. measurements/step_cost.py compares the methods "
        "side by side."
    )
    return by_method(results, "Cost", note, trained, cell)


# Upgrade chains.


def chain_tables(results: Results) -> list[PlainTable]:
    """Return the tables of each upgrade chain that is finished."""
    methods = [m for m in results.grid.chain_methods if results.has_chain(m)]
    return [make(results, m) for m in methods for make in (chain_table, chain_gain_table)]


def chain_table(results: Results, method: str) -> PlainTable:
    """Return all pairs of versions: a row for each query model, a column for each gallery."""
    rows: list[tuple[Cell, ...]] = []
    for query in VERSIONS:
        cells = [Cell(f"v{query} queries")]
        for gallery in VERSIONS:
            measured = results.between_versions(method, query, gallery, TOP_1)
            kind = ""
            if query > gallery:
                self_test = results.between_versions(method, gallery, gallery, TOP_1)
                kind = verdict_kind((measured - self_test).estimate.verdict)
            cells.append(percent_cell(measured.estimate, kind=kind))
        rows.append(tuple(cells))
    average, wins = chain_averages(results, method)
    note = (
        f"Percent {TOP_1}. Below the diagonal, later queries search an earlier gallery; the "
        "colour is the criterion's. Average over the diagonal and below: "
        f"{100 * average.mean:.2f} ({100 * average.low:.2f} to {100 * average.high:.2f}). Pairs "
        f"below the diagonal that beat their gallery's self test, over all seeds: {wins}."
    )
    weak = results.weak_seeds([version_folder(method, seed, 1) for seed in results.seeds])
    if weak:
        note += (
            " v1 is too weak to judge an upgrade by, because hardly better than raw pixels: seed "
            f"{', '.join(map(str, weak))}."
        )
    heads = ("", *(f"v{gallery} gallery" for gallery in VERSIONS))
    return PlainTable(f"Upgrade chain, {method}", note, heads, tuple(rows))


def chain_gain_table(results: Results, method: str) -> PlainTable:
    """Return how each pair of versions differs from the older one's self test, by metric."""
    metrics = top_1_first(results.deciding_metrics)
    rows: list[tuple[Cell, ...]] = []
    for query, gallery in sorted(
        ((q, g) for q in VERSIONS for g in VERSIONS if q != g), key=lambda pair: pair[0] < pair[1]
    ):
        older = min(query, gallery)
        cells = [Cell(f"v{query}→v{gallery} − v{older}→v{older}")]
        for metric in metrics:
            pair = results.between_versions(method, query, gallery, metric)
            self_test = results.between_versions(method, older, older, metric)
            cells.append(difference_cell((pair - self_test).estimate))
        rows.append(tuple(cells))
    note = (
        "Points above (+) or below (−) the older version's self test: first later queries in an "
        "earlier gallery, then old clients in a later one."
    )
    title = f"Upgrade chain, {method}: gains"
    return PlainTable(title, note, ("query → gallery", *metrics), tuple(rows))


def chain_averages(results: Results, method: str) -> tuple[Estimate, str]:
    """Return the mean top-1 of a chain, and how many of its upgrades gain.

    The mean is over all pairs whose queries are not older than the gallery. The count, such as
    ``5 of 6``, is over the pairs with newer queries, of all seeds.
    """
    pairs = [(query, gallery) for query in VERSIONS for gallery in VERSIONS if query >= gallery]
    measured = [results.between_versions(method, *pair, TOP_1) for pair in pairs]
    mean = Measured(
        np.mean([m.values for m in measured], axis=0),
        np.mean([m.samples for m in measured], axis=0),
        measured[0].classes,
    )
    wins = [
        (m - results.between_versions(method, gallery, gallery, TOP_1)).values > 0
        for m, (query, gallery) in zip(measured, pairs, strict=True)
        if query > gallery
    ]
    return mean.estimate, f"{int(np.sum(wins))} of {int(np.size(wins))}"

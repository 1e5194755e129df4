"""The tables of a benchmark's report.

``all_tables`` has them in the order of the report. A table that needs results which the benchmark
does not have is None.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from unibct.benchmark.cells import SEEN
from unibct.benchmark.jobs import version_folder
from unibct.benchmark.results import (
    Measured,
    Results,
    compared_methods,
    finished_methods,
    gain,
    weak_seeds,
)
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
from unibct.evaluation.metrics import TOP_1
from unibct.maps import MAPS
from unibct.methods import DEFAULT_METHOD, NO_METHOD
from unibct.progress import clock
from unibct.report.gallery_tables import (
    blended_table,
    mixed_table,
    old_threshold_table,
    weights_table,
)
from unibct.report.paper import other_losses_table, prototype_table, scenario_table
from unibct.report.plain_table import (
    NO_VALUE,
    Cell,
    PlainTable,
    difference_cell,
    methods_by_scenarios,
    percent_cell,
    top_1_first,
    verdict_kind,
)

_SIGNS = {"compatible": "✓", "not compatible": "✗", "within noise": "≈"}


def all_tables(results: Results) -> list[PlainTable]:
    """Return every table of the report, in its order."""
    makers: list[Callable[[Results], PlainTable | None]] = [
        scenario_table,
        prototype_table,
        other_losses_table,
        flip_table,
        old_threshold_table,
        blended_table,
        weights_table,
        mixed_table,
    ]
    verdicts = verdict_table(results)
    tables = [*([] if verdicts is None else [verdicts]), *gain_tables(results)]
    tables += [table for make in makers if (table := make(results)) is not None]
    tables += baseline_tables(results)
    tables += [criterion_table(results, scenario) for scenario in results.scenarios]
    tables += chain_tables(results)
    if len(results.seeds) < FEWEST_SEEDS:
        over = seeds_note(len(results.seeds))
        tables = [replace(table, note=f"{table.note} {over}") for table in tables]
    cost = cost_table(results)
    return tables if cost is None else [*tables, cost]


def verdict_table(results: Results) -> PlainTable | None:
    """Return the verdict on each method in each scenario."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        verdicts: list[Verdict] = [
            gain(results, scenario, method, metric).estimate.verdict
            for metric in results.deciding_metrics
        ]
        verdict = joint_verdict(verdicts)
        signs = " ".join(_SIGNS[one] for one in verdicts)
        return Cell(verdict + about, signs, verdict_kind(verdict))

    # The word is what a reader acts on, so it says itself what it does not claim.
    seeds = len(results.seeds)
    about = "" if seeds >= FEWEST_SEEDS else f" for {these_seeds(seeds)}"
    note = (
        "Compatible means: the cross test is above the old self test in every metric that decides "
        f"({', '.join(results.deciding_metrics)}; one sign each), and the "
        f"{100 * CONFIDENCE:.0f} % interval of each difference is above zero (✓). "
        f"{NOT_COMPATIBLE_RULE}: ✗ is such a difference, ≈ is neither."
    )
    note = " ".join(filter(None, (note, few_note(results), weak_note(results))))
    return methods_by_scenarios(results, "Verdicts", note, compared_methods(results), cell)


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


_NOT_COUNTED = {
    "count": None,
    "note": "whether a model was trained on test classes was not counted",
}


def seen_note(results: Results) -> str | None:
    """Return why a model may have been trained on test classes, if one may."""
    counts = [result.get(SEEN, _NOT_COUNTED) for result in results.by_job.values()]
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
    count = results.outdated_jobs
    if count:
        jobs = f"{count} finished jobs are" if count > 1 else "1 finished job is"
        sentences.append(
            f"{jobs} left out, measured with other validation images: --measure-again without "
            "--only measures all again."
        )
    return " ".join(sentences) or None


def flip_table(results: Results) -> PlainTable | None:
    """Return how many queries each method's upgrade turns from right to wrong."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        rates = [results.flips(scenario, method, rate) for rate in ("nfr", "pfr", "relative_nfr")]
        negative, positive, relative = (None if r is None else r.estimate for r in rates)
        if negative is None or positive is None or relative is None:
            return NO_VALUE
        shown, gained = percent_cell(negative), percent_cell(positive)
        others = (
            f"positive {gained.text} ({gained.small}); relative {relative.mean:.2f} "
            f"({max(relative.low, 0.0):.2f} to {relative.high:.2f})"
        )
        return Cell(shown.text, f"{shown.small}; {others}" if shown.small else others)

    note = (
        "Percent of the queries that find their class first with the old model and not with the "
        "new one, in the same old gallery. Small: the interval, the positive flips (the reverse), "
        "and the relative rate: 1 if the errors now have nothing to do with the old ones."
    )
    table = methods_by_scenarios(results, "Negative flips", note, compared_methods(results), cell)
    no_value = table is None or all(cell == NO_VALUE for row in table.rows for cell in row[1:])
    return None if no_value else table


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

    trained = [method for method in compared_methods(results) if method not in MAPS]
    note = (
        "Training images per second of one process, for the fastest seed, while other jobs ran "
        "on the same machine: a rough measure. measurements/step_cost.py compares the methods "
        "side by side."
    )
    return methods_by_scenarios(results, "Cost", note, trained, cell)


# The tables of a benchmark that compare every method with one of them.

BASELINE = "unibct"
# The second one, which earlier results call by the third name, is at work from the first step, as
# the default method is.
_BASELINES = (BASELINE, f"{BASELINE}@warmup_epochs=0", f"{BASELINE}-no-warmup", DEFAULT_METHOD)


def baseline_tables(results: Results) -> list[PlainTable]:
    """Return the difference of each method to a baseline: cross test, then self test.

    The cross test has a table for each deciding metric. The self test has one, without the maps,
    which leave the free model as it is. A table is left out if every pair of it was in another.
    """
    metrics = top_1_first(results.deciding_metrics)
    methods = [method for method in compared_methods(results) if method != NO_METHOD]
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
    return [table for table in tables if table is not None]


def _against(
    results: Results, baseline: str, others: Sequence[str], metric: str, *, self_test: bool = False
) -> PlainTable | None:
    """Return the difference of some methods to a baseline, in the cross test or the self test."""
    measure = results.new_self if self_test else results.cross

    def cell(scenario: str, method: str) -> Cell:
        if not (results.has_cell(scenario, method) and results.has_cell(scenario, baseline)):
            return NO_VALUE
        value, compared = (measure(scenario, name, metric) for name in (method, baseline))
        return difference_cell((value - compared).estimate)

    title = f"Against {baseline}, {'self test, ' if self_test else ''}{metric}"
    note = (
        f"{'Self' if self_test else 'Cross'} test, points of {metric} above (+) or below (−) "
        f"{baseline}, on the same classes and seeds."
    )
    return methods_by_scenarios(results, title, note, others, cell)


# The tables of a benchmark's two differences: the criterion's, and the price of compatibility.
#
# The criterion is about cross − old self. The price is new self − free self.


def gain_tables(results: Results) -> list[PlainTable]:
    """Return cross − old self in each deciding metric, and new self − free self in top-1."""
    tables = [gain_table(results, metric) for metric in top_1_first(results.deciding_metrics)]
    return [table for table in (*tables, price_table(results)) if table is not None]


def gain_table(results: Results, metric: str = TOP_1) -> PlainTable | None:
    """Return the gain of each method in each scenario."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        return difference_cell(gain(results, scenario, method, metric).estimate)

    title = f"Cross − old self, points of {metric}"
    note = (
        "By how much new queries find more in the old gallery than old queries do, with the "
        "interval of the difference."
    )
    return methods_by_scenarios(results, title, note, compared_methods(results), cell)


def price_table(results: Results) -> PlainTable | None:
    """Return what each method's self test loses or gains against the free model's, in top-1.

    Maps are left out, because they do not change the new model. There is no table without a free
    model.
    """
    methods = [m for m in compared_methods(results) if m not in (NO_METHOD, *MAPS)]
    free_tests = [results.free_self(scenario, TOP_1) for scenario in results.scenarios]
    if not methods or all(test is None for test in free_tests):
        return None

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        return _price_cell(results, scenario, method, TOP_1)

    note = (
        "What compatibility costs (−) or gives (+): the new model's self test compared with the "
        "free model's."
    )
    title = f"New self − free self, points of {TOP_1}"
    return methods_by_scenarios(results, title, note, methods, cell)


def criterion_table(results: Results, scenario: str) -> PlainTable:
    """Return cross − old self of each method in a scenario, and the price of compatibility."""
    rows: list[tuple[Cell, ...]] = []
    for method in finished_methods(results, scenario):
        gains = {
            metric: gain(results, scenario, method, metric).estimate for metric in results.metrics
        }
        verdict = joint_verdict([gains[metric].verdict for metric in results.deciding_metrics])
        rows.append(
            (
                Cell(method),
                *(difference_cell(difference) for difference in gains.values()),
                Cell(verdict, kind=verdict_kind(verdict)),
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


# The tables of a benchmark's upgrade chains.


def chain_tables(results: Results) -> list[PlainTable]:
    """Return the tables of each upgrade chain that is finished."""
    methods = [m for m in results.grid.chain_methods if results.has_chain(m)]
    return [make(results, m) for m in methods for make in (chain_table, chain_gain_table)]


def chain_table(results: Results, method: str) -> PlainTable:
    """Return all pairs of versions: a row for each query model, a column for each gallery."""
    versions = range(1, results.grid.versions + 1)
    rows: list[tuple[Cell, ...]] = []
    for query in versions:
        cells = [Cell(f"v{query} queries")]
        for gallery in versions:
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
    weak = weak_seeds(results, [version_folder(method, seed, 1) for seed in results.seeds])
    if weak:
        note += (
            " v1 is too weak to judge an upgrade by, because hardly better than raw pixels: seed "
            f"{', '.join(map(str, weak))}."
        )
    heads = ("", *(f"v{gallery} gallery" for gallery in versions))
    return PlainTable(f"Upgrade chain, {method}", note, heads, tuple(rows))


def chain_gain_table(results: Results, method: str) -> PlainTable:
    """Return how each pair of versions differs from the older one's self test, by metric."""
    versions = range(1, results.grid.versions + 1)
    metrics = top_1_first(results.deciding_metrics)
    rows: list[tuple[Cell, ...]] = []
    for query, gallery in sorted(
        ((q, g) for q in versions for g in versions if q != g), key=lambda pair: pair[0] < pair[1]
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
    versions = range(1, results.grid.versions + 1)
    pairs = [(query, gallery) for query in versions for gallery in versions if query >= gallery]
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

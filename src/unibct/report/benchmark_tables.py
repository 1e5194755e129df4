"""The tables of a benchmark's report.

``all_tables`` has them in the order of the report. A table that needs results which the benchmark
does not have is None.
"""

from collections.abc import Callable, Sequence

import numpy as np

from unibct.benchmark.results import Measured, Results, compared_methods
from unibct.evaluation.criterion import (
    CONFIDENCE,
    Estimate,
    Verdict,
    few_classes_note,
    joint_verdict,
)
from unibct.evaluation.metrics.table import TOP_1, find_metric
from unibct.maps.table import MAPS
from unibct.methods.table import DEFAULT_METHOD, NO_METHOD
from unibct.progress import clock
from unibct.report.blended_table import blended_table, weights_table
from unibct.report.mixed_table import mixed_table
from unibct.report.old_threshold_table import old_threshold_table
from unibct.report.paper_figures import paper_figure
from unibct.report.plain_table import (
    NO_VALUE,
    Cell,
    PlainTable,
    difference_cell,
    percent_cell,
    verdict_kind,
)

BASELINE = "unibct"
# The second one, if it was run, is at work from the first step, as the default method is.
_BASELINES = (BASELINE, f"{BASELINE}-no-warmup", DEFAULT_METHOD)
# The methods that the paper's Table 3 and Table 4 compare, in extended-data.
PROTOTYPE_METHODS = ("unibct-centroid", "unibct-drop", "unibct", "unibct-plus")
OTHER_LOSSES = ("regress", "bct", "unibct-centroid", "unibct", "unibct-plus")
_SIGNS = {"compatible": "✓", "not compatible": "✗", "within noise": "≈"}


def all_tables(results: Results) -> list[PlainTable]:
    """Return every table of the report, in its order."""
    makers: list[Callable[[Results], PlainTable | None]] = [
        verdict_table,
        gain_table,
        scenario_table,
        prototype_table,
        other_losses_table,
        flip_table,
        old_threshold_table,
        blended_table,
        weights_table,
        mixed_table,
    ]
    tables = [table for make in makers if (table := make(results)) is not None]
    tables += baseline_tables(results)
    tables += [criterion_table(results, scenario) for scenario in results.scenarios]
    tables += chain_tables(results)
    cost = cost_table(results)
    return tables if cost is None else [*tables, cost]


def verdict_table(results: Results) -> PlainTable | None:
    """Return the verdict on each method in each scenario."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        verdicts: list[Verdict] = [
            _gain(results, scenario, method, metric).verdict for metric in results.deciding_metrics
        ]
        verdict = joint_verdict(verdicts)
        signs = " ".join(_SIGNS[one] for one in verdicts)
        return Cell(verdict, signs, verdict_kind(verdict))

    note = (
        "Compatible means: the cross test is above the old self test in every metric that decides "
        f"({', '.join(results.deciding_metrics)}; one sign each), and the "
        f"{100 * CONFIDENCE:.0f} % interval of each difference is above zero. "
        "Not compatible (✗): an interval is below zero. Within noise (≈): an interval contains "
        "zero."
    )
    note = " ".join(filter(None, (note, few_note(results), weak_note(results))))
    return _methods_by_scenarios(results, "Verdicts", note, compared_methods(results), cell)


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


def gain_table(results: Results) -> PlainTable | None:
    """Return the gain in top-1 of each method in each scenario."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        return difference_cell(_gain(results, scenario, method, TOP_1))

    title = f"Cross − old self, points of {TOP_1}"
    note = (
        "By how much new queries find more in the old gallery than old queries do, with the "
        "interval of the difference."
    )
    return _methods_by_scenarios(results, title, note, compared_methods(results), cell)


def baseline_tables(results: Results) -> list[PlainTable]:
    """Return the difference of each method to a baseline: cross test, then self test.

    The cross test has a table for each deciding metric. The self test has one, without the maps,
    which leave the free model as it is. A table is left out if every pair of it was in another.
    """
    metrics = sorted(results.deciding_metrics, key=lambda metric: metric != TOP_1)
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
    return _methods_by_scenarios(results, title, note, others, cell)


def flip_table(results: Results) -> PlainTable | None:
    """Return how many queries each method's upgrade turns from right to wrong."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        rates = [results.flips(scenario, method, rate) for rate in ("nfr", "pfr", "relative_nfr")]
        negative, positive, relative = (None if r is None else r.estimate for r in rates)
        if negative is None or positive is None or relative is None:
            return NO_VALUE
        shown = percent_cell(negative)
        others = (
            f"positive {100 * positive.mean:.2f} ({100 * positive.low:.2f} to "
            f"{100 * positive.high:.2f}); relative {relative.mean:.2f} ({relative.low:.2f} to "
            f"{relative.high:.2f})"
        )
        return Cell(shown.text, f"{shown.small}; {others}" if shown.small else others)

    note = (
        "Percent of the queries that find their class first with the old model and not with the "
        "new one, in the same old gallery. Small: the interval, the positive flips (the reverse), "
        "and the relative rate: 1 if the errors now have nothing to do with the old ones."
    )
    table = _methods_by_scenarios(results, "Negative flips", note, compared_methods(results), cell)
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
    return _methods_by_scenarios(results, "Cost", note, trained, cell)


def _methods_by_scenarios(
    results: Results,
    title: str,
    note: str,
    methods: Sequence[str],
    cell: Callable[[str, str], Cell],
) -> PlainTable | None:
    """Return a table with a row for each method and a column for each scenario.

    Args:
        results: of the benchmark.
        title: of the table.
        note: of the table.
        methods: its rows.
        cell: returns the cell of a scenario and a method.
    """
    if not results.scenarios:
        return None
    rows = tuple(
        (Cell(method), *(cell(scenario, method) for scenario in results.scenarios))
        for method in methods
    )
    return PlainTable(title, note, ("method", *results.scenarios), rows)


def criterion_table(results: Results, scenario: str) -> PlainTable:
    """Return cross − old self of each method in a scenario, and the price of compatibility."""
    rows: list[tuple[Cell, ...]] = []
    for method in _finished_methods(results, scenario):
        gains = {metric: _gain(results, scenario, method, metric) for metric in results.metrics}
        verdict = joint_verdict([gains[metric].verdict for metric in results.deciding_metrics])
        rows.append(
            (
                Cell(method),
                *(difference_cell(gain) for gain in gains.values()),
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


def scenario_table(results: Results) -> PlainTable | None:
    """Return the paper's Table 2: cross and self test of every method in every scenario."""
    if not results.scenarios:
        return None
    columns = _paper_columns(results)
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        old = [
            _old_self_cell(results, scenario, metric) if test == "self" else NO_VALUE
            for test, metric in columns
        ]
        rows.append((Cell(scenario, kind="head"), Cell("old", "the old model"), *old))
        measures = {"cross": results.cross, "self": results.new_self}
        for method in _finished_methods(results, scenario):
            cells = [
                percent_cell(
                    measures[test](scenario, method, metric).estimate,
                    paper=paper_figure(scenario, method, test, metric),
                )
                for test, metric in columns
            ]
            name = Cell(method, "upper bound of the self test" if method == NO_METHOD else "")
            rows.append((Cell(""), name, *cells))
    note = (
        "Percent, means over the seeds with their intervals. Paper: its figure on IJB-C, trained "
        "on MS1Mv3, with TAR@1e-4, from one run. Compare the relations between rows, not the "
        "values: the images, the network and the false accept rate differ."
    )
    heads = ("scenario", "method", *(f"{test} {metric}" for test, metric in columns))
    return PlainTable("All scenarios (the paper's Table 2)", note, heads, tuple(rows))


def _paper_columns(results: Results) -> list[tuple[str, str]]:
    """Return test and metric of each column, ordered as in the paper's Table 2.

    Cross and self test of the 1:1 metrics come first, then all cross and all self tests of 1:N.
    """
    kinds = dict.fromkeys(find_metric(metric).kind for metric in results.metrics)
    return [
        (test, metric)
        for kind in kinds
        for test in ("cross", "self")
        for metric in results.metrics
        if find_metric(metric).kind == kind
    ]


def prototype_table(results: Results) -> PlainTable | None:
    """Return the paper's Table 3: kinds of prototypes, in extended-data."""
    meanings = {
        "unibct-centroid": "plain mean",
        "unibct-drop": "mean without the farthest",
        "unibct": "structural refinement",
        "unibct-plus": "no prototype",
    }
    return _comparison(results, "Prototypes (the paper's Table 3)", PROTOTYPE_METHODS, meanings)


def other_losses_table(results: Results) -> PlainTable | None:
    """Return the paper's Table 4: other losses, in extended-data."""
    meanings = {"regress": "AML", "bct": "BCT", "unibct-centroid": "L*", "unibct": "UniBCT"}
    return _comparison(results, "Other losses (the paper's Table 4)", OTHER_LOSSES, meanings)


def _comparison(
    results: Results, title: str, methods: Sequence[str], meanings: dict[str, str]
) -> PlainTable | None:
    """Return the cross tests of some methods in extended-data, with the paper's figures.

    Args:
        results: of the benchmark.
        title: of the table.
        methods: its rows, if they are finished; fewer than two make no table.
        meanings: what is shown below the name of a method.
    """
    scenario = "extended-data"
    finished = [m for m in methods if m in results.grid.methods and results.has_cell(scenario, m)]
    if scenario not in results.scenarios or len(finished) < 2:
        return None
    heads: list[str] = ["method"]
    old: list[Cell] = [Cell("old", "self test")]
    for metric in results.metrics:
        heads += [metric, f"{metric}: cross − old self"]
        old += [_old_self_cell(results, scenario, metric), NO_VALUE]
    rows: list[tuple[Cell, ...]] = [tuple(old)]
    for method in finished:
        cells: list[Cell] = [Cell(method, meanings.get(method, ""))]
        for metric in results.metrics:
            cross = results.cross(scenario, method, metric).estimate
            paper = paper_figure(scenario, method, "cross", metric)
            gain = _gain(results, scenario, method, metric)
            cells += [percent_cell(cross, paper=paper), difference_cell(gain)]
        rows.append(tuple(cells))
    note = "Cross test in extended-data, in percent; differences in points."
    return PlainTable(title, note, tuple(heads), tuple(rows))


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
    heads = ("", *(f"v{gallery} gallery" for gallery in versions))
    return PlainTable(f"Upgrade chain, {method}", note, heads, tuple(rows))


def chain_gain_table(results: Results, method: str) -> PlainTable:
    """Return how each pair of versions differs from the older one's self test, by metric."""
    versions = range(1, results.grid.versions + 1)
    metrics = sorted(results.deciding_metrics, key=lambda metric: metric != TOP_1)
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
        measured[0].few_classes,
    )
    wins = [
        (m - results.between_versions(method, gallery, gallery, TOP_1)).values > 0
        for m, (query, gallery) in zip(measured, pairs, strict=True)
        if query > gallery
    ]
    return mean.estimate, f"{int(np.sum(wins))} of {int(np.size(wins))}"


def _finished_methods(results: Results, scenario: str) -> list[str]:
    return [method for method in results.grid.methods if results.has_cell(scenario, method)]


def _gain(results: Results, scenario: str, method: str, metric: str) -> Estimate:
    """Return cross − old self."""
    return (results.cross(scenario, method, metric) - results.old_self(scenario, metric)).estimate


def _old_self_cell(results: Results, scenario: str, metric: str) -> Cell:
    paper = paper_figure(scenario, "old", "self", metric)
    return percent_cell(results.old_self(scenario, metric).estimate, paper=paper)

"""The tables of a benchmark's upgrade chains."""

import numpy as np

from unibct.benchmark.jobs import version_folder
from unibct.benchmark.results import Measured, Results, weak_seeds
from unibct.evaluation.criterion import Estimate
from unibct.evaluation.metrics.table import TOP_1
from unibct.report.plain_table import Cell, PlainTable, difference_cell, percent_cell, verdict_kind
from unibct.report.scenario_columns import top_1_first


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

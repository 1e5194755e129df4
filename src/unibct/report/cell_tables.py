"""The tables of what a benchmark's cell measures besides its tests.

They are about blended queries and weights, mixed galleries and the thresholds of the old system,
and have a row for each cell (``by_cell``).
"""

from collections.abc import Callable, Sequence

import numpy as np

from unibct.benchmark.cells import (
    AT_OLD_THRESHOLD,
    BELOW_LINE,
    BELOW_START,
    BETWEEN_CROSS,
    BETWEEN_SELF,
    FAR,
    HALF_NFR,
    HALF_TOP_1,
    MEAN,
    MERGINGS,
    MIXED,
    TAR,
    half_tar,
    mixed_name,
    threshold_name,
)
from unibct.benchmark.results import Measured, Results
from unibct.evaluation.metrics import TOP_1, find_metric
from unibct.evaluation.old_threshold import AS_IT_IS, MAPPED, OLD
from unibct.evaluation.score_map import RAW, SCALED
from unibct.evaluation.search_test import BLEND, CROSS, OLD_SELF
from unibct.evaluation.verification import rate_name, tar_name
from unibct.report.plain_table import NO_VALUE, Cell, PlainTable, difference_cell, percent_cell


def by_cell(
    results: Results,
    title: str,
    note: str,
    heads: Sequence[str],
    rows_of: Callable[[str, str], Sequence[Sequence[Cell]]],
) -> PlainTable | None:
    """Return a table with the rows of each finished cell, or None if there are none.

    ``rows_of`` makes the rows of a scenario and a method, each after the name of the method, which
    stands in the first one.
    """
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        head = Cell(scenario, kind="head")
        for method in results.finished_methods(scenario):
            name = Cell(method)
            for cells in rows_of(scenario, method):
                rows.append((head, name, *cells))
                head = name = Cell("")
    return PlainTable(title, note, ("scenario", "method", *heads), tuple(rows)) if rows else None


def blended_table(results: Results) -> PlainTable | None:
    """Return what blends of old and new queries gain in the old gallery, over old and new ones."""

    def rows_of(scenario: str, method: str) -> list[list[Cell]]:
        cells = [_alphas(results, scenario, method, BLEND)]
        for metric in _headline_metrics(results):
            blended = results.in_cell(scenario, method, BLEND, metric)
            assert blended is not None
            old_self = results.old_self(scenario, metric)
            cross = results.cross(scenario, method, metric)
            cells += [difference_cell((blended - other).estimate) for other in (old_self, cross)]
        return [cells]

    note = (
        "The old gallery is searched with normalise((1 − α)·old query + α·new query): two encoders "
        f"for each query, no training. {BLEND} − {OLD_SELF} is what the upgrade gains by blending, "
        f"{BLEND} − {CROSS} what the second encoder adds; in points, on the same classes and "
        f"seeds. {_chosen(results)}"
    )
    heads = ["share of the new query"]
    for metric in _headline_metrics(results):
        heads += [f"{metric}: blended − old self", f"{metric}: blended − cross"]
    return by_cell(results, "Blended queries", note, heads, rows_of)


def weights_table(results: Results) -> PlainTable | None:
    """Return what a network between the old and the new one finds.

    Only methods that start from the old weights have one.
    """

    def rows_of(scenario: str, method: str) -> list[list[Cell]]:
        cells: list[Cell] = []
        for metric in _headline_metrics(results):
            cross, self_test = (
                results.in_cell(scenario, method, test, metric)
                for test in (BETWEEN_CROSS, BETWEEN_SELF)
            )
            if cross is None or self_test is None:
                return []
            differences = (
                cross - results.old_self(scenario, metric),
                cross - results.cross(scenario, method, metric),
                self_test - results.new_self(scenario, method, metric),
            )
            cells += [difference_cell(difference.estimate) for difference in differences]
        return [[_alphas(results, scenario, method, BETWEEN_CROSS), *cells]]

    note = (
        "One network with the weights (1 − α)·old + α·new, for models that started from the old "
        "weights: one encoder, no training. Its queries in the old gallery, less old queries and "
        "less new ones; and its own self test less the new model's, the price after a backfill; in "
        f"points, on the same classes and seeds. {_chosen(results)}"
    )
    heads = ["share of the new weights"]
    for metric in _headline_metrics(results):
        heads += [f"{metric}: blended − old self", f"{metric}: blended − cross"]
        heads.append(f"{metric}: blended self − new self")
    return by_cell(results, "Blended weights", note, heads, rows_of)


def _headline_metrics(results: Results) -> list[str]:
    return [m for m in results.deciding_metrics if m == TOP_1 or find_metric(m).at_far]


def _chosen(results: Results) -> str:
    """Say where α comes from."""
    if results.chosen_on is None:
        return "Here α is the midpoint: no validation classes were given."
    return (
        f"Here each cell chose α on the validation classes of {results.chosen_on} (several "
        "values: one per seed)."
    )


def _alphas(results: Results, scenario: str, method: str, test: str) -> Cell:
    """Return the share of each seed; once if all have the same."""
    alphas = [cell["tests"][test]["alpha"] for cell in results.cells(scenario, method)]
    shown = alphas[:1] if len(set(alphas)) == 1 else alphas
    return Cell("α = " + ", ".join(f"{alpha:g}" for alpha in shown))


def mixed_table(results: Results) -> PlainTable | None:
    """Return how each method searches while the gallery is backfilled, by each way of merging."""
    far = float(next(iter(results.by_job.values()))["far"])

    def rows_of(scenario: str, method: str) -> list[list[Cell]]:
        return [_mixed_cells(results, scenario, method, merging, far) for merging in MERGINGS]

    chosen = f"Each cell chose its merging on the validation classes of {results.chosen_on}."
    if results.chosen_on is None:
        chosen = "Without validation classes nothing is chosen: raw scores are merged."
    note = (
        "New queries while the rows (class templates) are embedded again in random order, "
        "from the cross test (0 %) to the new self test (100 %), in steps of 5 %. Scores of old "
        "and of new rows are merged as they are (raw), or after impostors of both kinds got the "
        "same mean and deviation (standardised). Mean: top-1 over the curve, in percent. Dips: the "
        "deepest point below the start, and below the straight line to the end, in points; a seed "
        "without a dip counts as 0 without an interval of its own, so where dips are rare the "
        "interval is too narrow. Half: "
        "with half of the rows embedded again; negative flips are those against old queries in the "
        f"old gallery. {chosen}"
    )
    heads = (
        "merged by",
        "mean",
        "mean − raw",
        "dip below the start",
        "dip below the line",
        "half: top-1",
        f"half: {tar_name(far)}",
        "half: negative flips, %",
    )
    return by_cell(results, "Mixed galleries", note, heads, rows_of)


def _mixed_cells(
    results: Results, scenario: str, method: str, merging: str, far: float
) -> list[Cell]:
    """Return what one way of merging scores gives, and in how many seeds it was chosen."""

    def measured(value: str, kind: str = merging) -> Measured:
        over_seeds = results.in_cell(scenario, method, mixed_name(kind), value)
        assert over_seeds is not None
        return over_seeds

    cells = [cell[MIXED] for cell in results.cells(scenario, method)]
    count = sum(cell["chosen_on"] is not None and cell["chosen"] == merging for cell in cells)
    chosen = "chosen" if count == len(cells) else f"chosen in {count} of {len(cells)} seeds"
    mean = measured(MEAN)
    return [
        Cell(merging, chosen if count else ""),
        percent_cell(mean.estimate),
        NO_VALUE if merging == RAW else difference_cell((mean - measured(MEAN, RAW)).estimate),
        *(difference_cell(measured(d).estimate, coloured=False) for d in (BELOW_START, BELOW_LINE)),
        *(percent_cell(measured(v).estimate) for v in (HALF_TOP_1, half_tar(far), HALF_NFR)),
    ]


def old_threshold_table(results: Results) -> PlainTable | None:
    """Return what new queries do where nobody sets the old system's threshold again."""

    def rows_of(scenario: str, method: str) -> list[list[Cell]]:
        def measured(way: str, value: str) -> Measured | None:
            return results.in_cell(scenario, method, threshold_name(way), value)

        old, scaled = measured(OLD, TAR), measured(SCALED, TAR)
        less_old = NO_VALUE
        if old is not None and scaled is not None:
            less_old = difference_cell((scaled - old).estimate)
        return [
            [
                _percent(old),
                _percent(measured(AS_IT_IS, TAR)),
                _rate(measured(AS_IT_IS, FAR)),
                NO_VALUE if scaled is None else _scale(results, scenario, method),
                _percent(scaled),
                less_old,
                _rate(measured(SCALED, FAR)),
                _percent(measured(MAPPED, TAR)),
                _rate(measured(MAPPED, FAR)),
                _percent(results.in_cell(scenario, method, CROSS, "nfr")),
            ]
        ]

    far = float(next(iter(results.by_job.values()))["far"])
    measured_on = "validation images" if results.grid.validation else "training images"
    note = (
        f"The old model's threshold for FAR {rate_name(far)} stays as it is. TAR and FAR in "
        "percent there: of old queries; of new queries as they are; of new scores times the new "
        f"model's score scale, which was measured on {measured_on} (and TAR less that of old "
        "queries, in points); of new scores after a score map that was fitted on other "
        "test classes. The score scale is the mean of the seeds, and their range. — means that "
        "the model of a seed has no score scale, or that no map could be fitted. Negative flips, "
        "in percent of all queries, are those of top-1, which no scale changes."
    )
    heads = (
        "old: TAR",
        "new: TAR",
        "new: FAR",
        "score scale",
        "scaled: TAR",
        "scaled − old: TAR",
        "scaled: FAR",
        "mapped: TAR",
        "mapped: FAR",
        "negative flips, %",
    )
    return by_cell(results, "At the old thresholds", note, heads, rows_of)


def _percent(measured: Measured | None) -> Cell:
    return NO_VALUE if measured is None else percent_cell(measured.estimate)


def _rate(measured: Measured | None) -> Cell:
    """Return a false accept rate, which needs more digits than other shares."""
    if measured is None:
        return NO_VALUE
    mean = measured.estimate
    small = f"{100 * max(mean.low, 0.0):.4f} to {100 * min(mean.high, 1.0):.4f}"
    return Cell(f"{100 * mean.mean:.4f}", small)


def _scale(results: Results, scenario: str, method: str) -> Cell:
    """Return the mean of the seeds' score scales, and their range."""
    cells = results.cells(scenario, method)
    scales = np.array([cell[AT_OLD_THRESHOLD]["score_scale"] for cell in cells])
    small = f"{scales.min():.3f} to {scales.max():.3f}" if len(scales) > 1 else ""
    return Cell(f"{scales.mean():.3f}", small)

"""The tables of blended queries and blended weights in a benchmark's report."""

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
)
from unibct.benchmark.results import (
    Measured,
    Results,
    at_old_threshold,
    in_mixed_gallery,
    with_blended_weights,
)
from unibct.evaluation.metrics import TOP_1, find_metric
from unibct.evaluation.old_threshold import AS_IT_IS, MAPPED, OLD
from unibct.evaluation.score_map import RAW, SCALED
from unibct.evaluation.search_test import BLEND, CROSS, OLD_SELF
from unibct.evaluation.verification import rate_name, tar_name
from unibct.report.plain_table import (
    NO_VALUE,
    Cell,
    PlainTable,
    difference_cell,
    percent_cell,
)


def blended_table(results: Results) -> PlainTable | None:
    """Return what blends of old and new queries gain in the old gallery, over old and new ones.

    Results of an earlier version have no blended queries.
    """
    rows = _rows(results, _query_cells)
    if not rows:
        return None
    note = (
        "The old gallery is searched with normalise((1 − α)·old query + α·new query): two encoders "
        f"for each query, no training. {BLEND} − {OLD_SELF} is what the upgrade gains by blending, "
        f"{BLEND} − {CROSS} what the second encoder adds; in points, on the same classes and "
        f"seeds. {_chosen(results)}"
    )
    heads = ["scenario", "method", "share of the new query"]
    for metric in _metrics(results):
        heads += [f"{metric}: blended − old self", f"{metric}: blended − cross"]
    return PlainTable("Blended queries", note, tuple(heads), rows)


def weights_table(results: Results) -> PlainTable | None:
    """Return what a network between the old and the new one finds.

    Only methods that start from the old weights have one; results of an earlier version have none.
    """
    rows = _rows(results, _weight_cells)
    if not rows:
        return None
    note = (
        "One network with the weights (1 − α)·old + α·new, for models that started from the old "
        "weights: one encoder, no training. Its queries in the old gallery, less old queries and "
        "less new ones; and its own self test less the new model's, the price after a backfill; in "
        f"points, on the same classes and seeds. {_chosen(results)}"
    )
    heads = ["scenario", "method", "share of the new weights"]
    for metric in _metrics(results):
        heads += [f"{metric}: blended − old self", f"{metric}: blended − cross"]
        heads.append(f"{metric}: blended self − new self")
    return PlainTable("Blended weights", note, tuple(heads), rows)


def _metrics(results: Results) -> list[str]:
    return [m for m in results.deciding_metrics if m == TOP_1 or find_metric(m).at_far]


def _chosen(results: Results) -> str:
    """Say where α comes from."""
    if results.chosen_on is None:
        return "Here α is the midpoint: no validation classes were given."
    return (
        f"Here each cell chose α on the validation classes of {results.chosen_on} (several "
        "values: one per seed)."
    )


def _rows(
    results: Results, make_cells: Callable[[Results, str, str], list[Cell]]
) -> tuple[tuple[Cell, ...], ...]:
    """Return a row for each cell that has something to show."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        head = Cell(scenario, kind="head")
        for method in results.grid.methods:
            if results.has_cell(scenario, method):
                cells = make_cells(results, scenario, method)
                if cells:
                    rows.append((head, Cell(method), *cells))
                    head = Cell("")
    return tuple(rows)


def _query_cells(results: Results, scenario: str, method: str) -> list[Cell]:
    """Return α and the differences of one row; none if they were not measured."""
    cells: list[Cell] = []
    for metric in _metrics(results):
        blended = results.blended(scenario, method, metric)
        if blended is None:
            return []
        old_self, cross = (
            results.old_self(scenario, metric),
            results.cross(scenario, method, metric),
        )
        cells += [difference_cell((blended - other).estimate) for other in (old_self, cross)]
    return [_alphas(results, scenario, method, BLEND), *cells]


def _weight_cells(results: Results, scenario: str, method: str) -> list[Cell]:
    """Return α and the differences of one row; none if they were not measured."""
    cells: list[Cell] = []
    for metric in _metrics(results):
        cross, self_test = (
            with_blended_weights(results, scenario, method, test, metric)
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
    return [_alphas(results, scenario, method, BETWEEN_CROSS), *cells]


def _alphas(results: Results, scenario: str, method: str, test: str) -> Cell:
    """Return the share of each seed; once if all have the same."""
    alphas: Sequence[float] = [
        cell["tests"][test]["alpha"] for cell in results.cells(scenario, method)
    ]
    shown = alphas[:1] if len(set(alphas)) == 1 else alphas
    return Cell("α = " + ", ".join(f"{alpha:g}" for alpha in shown))


# The table of mixed galleries in a benchmark's report.


def mixed_table(results: Results) -> PlainTable | None:
    """Return how each method searches while the gallery is backfilled, by each way of merging.

    Results of an earlier version have no mixed galleries.
    """
    rows: list[tuple[Cell, ...]] = []
    far = float(next(iter(results.by_job.values()))["far"])
    for scenario in results.scenarios:
        head = Cell(scenario, kind="head")
        for method in results.grid.methods:
            if not results.has_cell(scenario, method):
                continue
            for merging in MERGINGS:
                cells = _cells(results, scenario, method, merging, far)
                if cells:
                    name = Cell(method if merging == RAW else "")
                    rows.append((head, name, *cells))
                    head = Cell("")
    if not rows:
        return None
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
        "scenario",
        "method",
        "merged by",
        "mean",
        "mean − raw",
        "dip below the start",
        "dip below the line",
        "half: top-1",
        f"half: {tar_name(far)}",
        "half: negative flips, %",
    )
    return PlainTable("Mixed galleries", note, heads, tuple(rows))


def _cells(results: Results, scenario: str, method: str, merging: str, far: float) -> list[Cell]:
    """Return the cells of one row after the method's name; none if it was not measured."""

    def measured(value: str, kind: str = merging) -> Measured | None:
        return in_mixed_gallery(results, scenario, method, kind, value)

    def cell(value: str, *, dip: bool = False) -> Cell:
        result = measured(value)
        if result is None:
            return NO_VALUE
        if dip:
            return difference_cell(result.estimate, coloured=False)
        return percent_cell(result.estimate)

    mean, raw_mean = measured(MEAN), measured(MEAN, RAW)
    if mean is None or raw_mean is None:
        return []
    against_raw = NO_VALUE
    if merging != RAW:
        against_raw = difference_cell((mean - raw_mean).estimate)
    return [
        Cell(merging, _mixed_table_chosen(results, scenario, method, merging)),
        cell(MEAN),
        against_raw,
        cell(BELOW_START, dip=True),
        cell(BELOW_LINE, dip=True),
        cell(HALF_TOP_1),
        cell(half_tar(far)),
        cell(HALF_NFR),
    ]


def _mixed_table_chosen(results: Results, scenario: str, method: str, merging: str) -> str:
    """Return in how many seeds a merging was chosen, if there was a choice."""
    cells = [cell[MIXED] for cell in results.cells(scenario, method)]
    count = sum(cell["chosen_on"] is not None and cell["chosen"] == merging for cell in cells)
    if not count:
        return ""
    return "chosen" if count == len(cells) else f"chosen in {count} of {len(cells)} seeds"


# The table of a benchmark's report on the thresholds of the old system.


def old_threshold_table(results: Results) -> PlainTable | None:
    """Return what new queries do where nobody sets the old system's threshold again.

    Results of an earlier version have no such values.
    """
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        head = Cell(scenario, kind="head")
        for method in results.grid.methods:
            if not results.has_cell(scenario, method):
                continue
            cells = _old_threshold_table_cells(results, scenario, method)
            if cells:
                rows.append((head, Cell(method), *cells))
                head = Cell("")
    if not rows:
        return None
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
        "scenario",
        "method",
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
    return PlainTable("At the old thresholds", note, heads, tuple(rows))


def _old_threshold_table_cells(results: Results, scenario: str, method: str) -> list[Cell]:
    """Return the cells of one row after the method's name; none if it was not measured."""

    def measured(way: str, value: str) -> Measured | None:
        return at_old_threshold(results, scenario, method, way, value)

    old, scaled = measured(OLD, TAR), measured(SCALED, TAR)
    if old is None:
        return []
    return [
        _percent(old),
        _percent(measured(AS_IT_IS, TAR)),
        _rate(measured(AS_IT_IS, FAR)),
        _scale(results, scenario, method) if scaled is not None else NO_VALUE,
        _percent(scaled),
        NO_VALUE if scaled is None else difference_cell((scaled - old).estimate),
        _rate(measured(SCALED, FAR)),
        _percent(measured(MAPPED, TAR)),
        _rate(measured(MAPPED, FAR)),
        _percent(results.flips(scenario, method, "nfr")),
    ]


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

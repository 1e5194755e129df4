"""The table of a benchmark's report on the thresholds of the old system."""

import numpy as np

from unibct.benchmark.cell_values import at_old_threshold
from unibct.benchmark.results import Measured, Results
from unibct.benchmark.threshold_tests import AT_OLD_THRESHOLD, FAR, TAR
from unibct.evaluation.old_threshold import AS_IT_IS, MAPPED, OLD, SCALED
from unibct.evaluation.resolution import rate_name
from unibct.report.plain_table import NO_VALUE, Cell, PlainTable, difference_cell, percent_cell


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
            cells = _cells(results, scenario, method)
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


def _cells(results: Results, scenario: str, method: str) -> list[Cell]:
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

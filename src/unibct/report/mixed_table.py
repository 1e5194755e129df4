"""The table of mixed galleries in a benchmark's report."""

from unibct.benchmark.cell_values import in_mixed_gallery
from unibct.benchmark.mixed_galleries import (
    BELOW_LINE,
    BELOW_START,
    HALF_NFR,
    HALF_TOP_1,
    MEAN,
    MIXED,
    half_tar,
)
from unibct.benchmark.results import Measured, Results
from unibct.evaluation.resolution import tar_name
from unibct.gallery.calibration import RAW
from unibct.gallery.mixed_curve import MERGINGS
from unibct.report.plain_table import NO_VALUE, Cell, PlainTable, difference_cell, percent_cell


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
        Cell(merging, _chosen(results, scenario, method, merging)),
        cell(MEAN),
        against_raw,
        cell(BELOW_START, dip=True),
        cell(BELOW_LINE, dip=True),
        cell(HALF_TOP_1),
        cell(half_tar(far)),
        cell(HALF_NFR),
    ]


def _chosen(results: Results, scenario: str, method: str, merging: str) -> str:
    """Return in how many seeds a merging was chosen, if there was a choice."""
    cells = [cell[MIXED] for cell in results.cells(scenario, method)]
    count = sum(cell["chosen_on"] is not None and cell["chosen"] == merging for cell in cells)
    if not count:
        return ""
    return "chosen" if count == len(cells) else f"chosen in {count} of {len(cells)} seeds"

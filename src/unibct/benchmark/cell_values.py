"""What a cell measures besides its searches: old thresholds, mixed galleries, blended weights."""

from collections.abc import Sequence

from unibct.benchmark.jobs import cell_folder
from unibct.benchmark.mixed_galleries import MIXED, mixed_name
from unibct.benchmark.results import Measured, Results
from unibct.benchmark.threshold_tests import AT_OLD_THRESHOLD, threshold_name


def at_old_threshold(
    results: Results, scenario: str, method: str, way: str, value: str
) -> Measured | None:
    """Return TAR or FAR of a cell at the old threshold, or None if it was not measured.

    Args:
        results: of the finished jobs.
        scenario: a scenario with a finished cell of the method.
        method: of the cell.
        way: whose scores are compared with the threshold, see ``old_thresholds``.
        value: ``TAR`` or ``FAR``.
    """
    cells = results.cells(scenario, method)
    by_cell = [cell.get(AT_OLD_THRESHOLD, {}).get("ways", {}).get(way) for cell in cells]
    return _over_cells(results, scenario, method, threshold_name(way), value, by_cell)


def in_mixed_gallery(
    results: Results, scenario: str, method: str, merging: str, value: str
) -> Measured | None:
    """Return what was measured of a cell's mixed galleries, or None if it was not.

    Args:
        results: of the finished jobs.
        scenario: a scenario with a finished cell of the method.
        method: of the cell.
        merging: how scores of old and new rows are merged.
        value: a name from ``mixed_galleries``.
    """
    cells = results.cells(scenario, method)
    entries = [cell.get(MIXED, {}).get("mergings", {}).get(merging, {}) for cell in cells]
    by_cell = [entry.get("values") for entry in entries]
    return _over_cells(results, scenario, method, mixed_name(merging), value, by_cell)


def _over_cells(
    results: Results,
    scenario: str,
    method: str,
    test: str,
    value: str,
    by_cell: Sequence[dict[str, float] | None],
) -> Measured | None:
    """Return a value over the seeds, from what each seed's cell has; None if one has nothing."""
    values = [entry[value] for entry in by_cell if entry is not None]
    if len(values) < len(by_cell):
        return None
    folders = [cell_folder(scenario, method, seed) for seed in results.seeds]
    samples = [results.samples(folder, test, value) for folder in folders]
    return results.measured(values, samples)


def with_blended_weights(
    results: Results, scenario: str, method: str, test: str, metric: str
) -> Measured | None:
    """Return a metric of blended weights, or None if not every seed's cell has them.

    Args:
        results: of the finished jobs.
        scenario: a scenario with a finished cell of the method.
        method: of the cell.
        test: ``BETWEEN_CROSS`` or ``BETWEEN_SELF``.
        metric: its title.
    """
    cells = results.cells(scenario, method)
    by_cell = [cell["tests"].get(test, {}).get("metrics") for cell in cells]
    return _over_cells(results, scenario, method, test, metric, by_cell)

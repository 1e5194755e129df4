"""results.csv: a row for each value, tidy, for spreadsheets and data frames."""

import csv
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from unibct.benchmark.jobs import cell_folder, chain_test, free_folder, old_folder, version_folder
from unibct.benchmark.mixed_galleries import MIXED, mixed_name
from unibct.benchmark.results import Results
from unibct.benchmark.threshold_tests import AT_OLD_THRESHOLD, SCORE_SCALE, threshold_name
from unibct.evaluation.directions import OLD_SELF
from unibct.evaluation.old_threshold import SCALED
from unibct.evaluation.resolution import tar_name

CHAIN = "chain"  # in the place of a scenario
OLD, FREE = "old", "free"  # in the place of a method


class Row(NamedTuple):
    """One value.

    Attributes:
        data: the test images, or the images whose classes are partly held out for tests.
        scenario: or ``chain``.
        method: or ``old``, the old model, and ``free``, the new model without compatibility.
        seed: of the cell.
        test: such as ``new→old``, ``v3→v1``, ``mixed raw`` or ``scaled at old threshold``.
        metric: such as ``top-1``.
        value: as a share, such as 0.5.
        low: the lower end of its interval over classes; empty if there is none.
        high: the upper end.
    """

    data: str
    scenario: str
    method: str
    seed: int
    test: str
    metric: str
    value: str
    low: str = ""
    high: str = ""


def as_csv(results: Results) -> str:
    """Return the text of results.csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(tidy_rows(results))
    return text.getvalue()


def tidy_rows(results: Results) -> Iterator[Row]:
    """Yield every value of the finished jobs.

    Scenarios share old and free models; each scenario has the rows of those that it uses.
    """
    grid = results.grid
    for seed in results.seeds:
        for scenario in results.scenarios:
            for name, folder in (
                (OLD, old_folder(scenario, seed)),
                (FREE, free_folder(scenario, seed)),
            ):
                yield from _job_rows(results, folder, scenario, name, seed)
            for method in grid.methods:
                folder = cell_folder(scenario, method, seed)
                yield from _job_rows(results, folder, scenario, method, seed)
        for method in grid.chain_methods:
            for version in range(1, grid.versions + 1):
                folder = version_folder(method, seed, version)
                yield from _job_rows(results, folder, CHAIN, method, seed)


def _job_rows(
    results: Results, folder: str, scenario: str, method: str, seed: int
) -> Iterator[Row]:
    """Yield the values of one job; none if it is not finished."""
    result = results.by_job.get(folder)
    if result is None:
        return
    data = results.grid.test or results.grid.data
    for name, values in _values_by_test(result).items():
        # The first version of a chain is the old model of the data scenarios.
        test = chain_test(1, 1) if scenario == CHAIN and name == OLD_SELF else name
        for metric, value in values.items():
            ends = _interval(results, folder, name, metric, value)
            yield Row(data, scenario, method, seed, test, metric, f"{value:.6f}", *ends)


def _values_by_test(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return test -> metric -> value of one job."""
    values: dict[str, dict[str, float]] = {}
    for name, test in result["tests"].items():
        values[name] = {tar_name(float(far)): tar for far, tar in test["tar_at_far"].items()}
        values[name] |= test["metrics"] | test.get("flips", {})
        if "alpha" in test:
            values[name]["alpha"] = test["alpha"]
    fixed: dict[str, Any] = result.get(AT_OLD_THRESHOLD, {"ways": {}})
    for way, shares in fixed["ways"].items():
        values[threshold_name(way)] = dict(shares)
        if way == SCALED:
            values[threshold_name(way)][SCORE_SCALE] = fixed["score_scale"]
    for merging, measured in result.get(MIXED, {"mergings": {}})["mergings"].items():
        chosen = float(merging == result[MIXED]["chosen"])
        values[mixed_name(merging)] = measured["values"] | {"chosen": chosen}
    return values


def _interval(results: Results, folder: str, test: str, metric: str, value: float) -> list[str]:
    """Return the ends of the interval of a value over classes, if the samples have it."""
    samples = results.find_samples(folder, test, metric)
    if samples is None:
        return []
    measured = results.measured([value], [samples])
    return [f"{measured.estimate.low:.6f}", f"{measured.estimate.high:.6f}"]

"""The results of a benchmark's finished jobs: values, bootstrap samples and estimates."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from unibct.arrays import Floats
from unibct.benchmark import VERSIONS
from unibct.benchmark.cells import (
    AT_OLD_THRESHOLD,
    MIXED,
    SCORE_SCALE,
    mixed_name,
    sample_name,
    threshold_name,
)
from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import (
    Job,
    cell_folder,
    chain_test,
    free_folder,
    old_folder,
    version_folder,
)
from unibct.benchmark.workspace import SAMPLES_FILE, is_finished, read_result
from unibct.errors import UserError
from unibct.evaluation.criterion import Estimate, estimate
from unibct.evaluation.metrics import find_metric
from unibct.evaluation.score_map import SCALED
from unibct.evaluation.search_test import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.evaluation.verification import tar_name
from unibct.methods import NO_METHOD


@dataclass(frozen=True)
class Measured:
    """One metric of one test, or a difference of two, over the seeds."""

    values: Floats  # (seeds,) the metric of each seed
    samples: Floats  # (seeds, repeats) its bootstrap values; every seed draws the same classes
    classes: int  # how many are drawn

    def __sub__(self, other: "Measured") -> "Measured":
        classes = min(self.classes, other.classes)
        return Measured(self.values - other.values, self.samples - other.samples, classes)

    @property
    def estimate(self) -> Estimate:
        """The mean over the seeds, with its interval."""
        return estimate(self.values, self.samples, classes=self.classes)


@dataclass(frozen=True)
class Results:
    """The results of the finished jobs, for the seeds that have the same jobs finished."""

    grid: Grid  # what is compared, with these seeds only
    out: Path  # the benchmark's folder
    by_job: dict[str, dict[str, Any]]  # what each finished job wrote, by the job's folder
    missing_jobs: dict[int, int]  # how many jobs each other seed lacks; such seeds are left out
    unshared_jobs: int = 0  # finished jobs that are left out because not all of the seeds have them

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are compared."""
        return self.grid.seeds

    @cached_property
    def metrics(self) -> list[str]:
        """The titles of the metrics with an interval, in their table's order."""
        first = next(iter(self.by_job.values()))
        (metrics, *_) = (test["metrics"] for test in first["tests"].values())
        return [metric for metric in metrics if find_metric(metric).sample is not None]

    @cached_property
    def deciding_metrics(self) -> list[str]:
        """The metrics on which the verdict depends."""
        return [metric for metric in self.metrics if find_metric(metric).decides]

    @cached_property
    def query_classes(self) -> int:
        """How many test classes have queries."""
        return min(result["query_classes"] for result in self.by_job.values())

    @cached_property
    def scenarios(self) -> list[str]:
        """The scenarios that have at least one finished cell."""
        return [scenario for scenario in self.grid.scenarios if self.finished_methods(scenario)]

    @cached_property
    def methods(self) -> list[str]:
        """The methods that have a finished cell in some scenario, in the grid's order."""
        finished = {method for s in self.scenarios for method in self.finished_methods(s)}
        return [method for method in self.grid.methods if method in finished]

    def finished_methods(self, scenario: str) -> list[str]:
        """Return the methods that have a finished cell in a scenario, in the grid's order."""
        return [method for method in self.grid.methods if self.has_cell(scenario, method)]

    def has_cell(self, scenario: str, method: str) -> bool:
        """Return whether a method in a scenario is finished for every seed."""
        return self.by_job.keys() >= set(self._cells(scenario, method))

    def has_chain(self, method: str) -> bool:
        """Return whether every version of a method's chain is finished for every seed."""
        return all(
            version_folder(method, seed, version) in self.by_job
            for seed in self.seeds
            for version in VERSIONS
        )

    def cells(self, scenario: str, method: str) -> list[dict[str, Any]]:
        """Return what each seed's cell wrote to its result file."""
        return [self.by_job[folder] for folder in self._cells(scenario, method)]

    def in_cell(self, scenario: str, method: str, test: str, metric: str) -> Measured | None:
        """Return a value of a cell as results.csv names it; None if not every seed has one."""
        return self._over_seeds(self._cells(scenario, method), test, metric)

    def cross(self, scenario: str, method: str, metric: str) -> Measured:
        """Return a metric or a flip rate of the cross test: new queries in the old gallery."""
        return _known(self.in_cell(scenario, method, CROSS, metric))

    def new_self(self, scenario: str, method: str, metric: str) -> Measured:
        """Return a metric of the new model's self test."""
        return _known(self.in_cell(scenario, method, NEW_SELF, metric))

    def old_self(self, scenario: str, metric: str) -> Measured:
        """Return a metric of the old model's self test."""
        folders = [old_folder(scenario, seed) for seed in self.seeds]
        return _known(self._over_seeds(folders, OLD_SELF, metric))

    def free_self(self, scenario: str, metric: str) -> Measured | None:
        """Return a metric of the free model's self test, or None if it was not trained."""
        folders = [free_folder(scenario, seed) for seed in self.seeds]
        if not self.by_job.keys() >= set(folders):
            return None
        return self._over_seeds(folders, NEW_SELF, metric)

    def gain(self, scenario: str, method: str, metric: str) -> Measured:
        """Return cross − old self of a cell."""
        return self.cross(scenario, method, metric) - self.old_self(scenario, metric)

    def between_versions(self, method: str, query: int, gallery: int, metric: str) -> Measured:
        """Return a metric of the test between two versions of an upgrade chain."""
        later = max(query, gallery)
        test = OLD_SELF if later == 1 else chain_test(query, gallery)
        folders = [version_folder(method, seed, later) for seed in self.seeds]
        return _known(self._over_seeds(folders, test, metric))

    @cached_property
    def chosen_on(self) -> str | None:
        """The validation images on which cells have chosen, if there are any."""
        blends = (result["tests"].get(BLEND, {}) for result in self.by_job.values())
        names = (test["chosen_on"]["data"] for test in blends if test.get("chosen_on") is not None)
        return next(names, None)

    def cost(self, scenario: str, method: str) -> dict[str, float] | None:
        """Return images per second and seconds of a training run, of the fastest seed."""
        folders = self._cells(scenario, method)
        if method == NO_METHOD:
            folders = [free_folder(scenario, seed) for seed in self.seeds]
        costs = [cost for f in folders if (cost := self.by_job.get(f, {}).get("cost"))]
        return max(costs, key=lambda cost: cost["images_per_second"], default=None)

    @cached_property
    def weak_old_models(self) -> dict[str, list[int]]:
        """The scenarios whose old model is hardly better than raw pixels, with the seeds."""
        weak = {
            scenario: self.weak_seeds([old_folder(scenario, seed) for seed in self.seeds])
            for scenario in self.scenarios
        }
        return {scenario: seeds for scenario, seeds in weak.items() if seeds}

    def weak_seeds(self, folders: Sequence[str]) -> list[int]:
        """Return the seeds whose old model, in one of these folders, hardly beats raw pixels."""
        strengths = [self.by_job[folder]["old_model"] for folder in folders]
        pairs = zip(self.seeds, strengths, strict=True)
        return [seed for seed, strength in pairs if strength is not None and strength["too_weak"]]

    def _cells(self, scenario: str, method: str) -> list[str]:
        """Return the folders of a method's cells in a scenario, one per seed."""
        return [cell_folder(scenario, method, seed) for seed in self.seeds]

    def _over_seeds(self, folders: Sequence[str], test: str, metric: str) -> Measured | None:
        """Return a value over the seeds, from their jobs' folders; None if one does not have it."""
        values = [values_by_test(self.by_job[f]).get(test, {}).get(metric) for f in folders]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return self.measured(known, [self.samples(folder, test, metric) for folder in folders])

    def measured(self, values: Sequence[float], samples: Sequence[Floats]) -> Measured:
        """Return a metric over the seeds, from each seed's value and (repeats,) samples."""
        stacked = np.stack(samples).astype(np.float64)
        return Measured(np.array(values), stacked, self.query_classes)

    @cached_property
    def _samples_by_job(self) -> dict[str, dict[str, Floats]]:
        """The sample files that have been read, by job folder and name."""
        return {}

    def samples(self, folder: str, test: str, metric: str) -> Floats:
        """Return the (repeats,) bootstrap values of a metric in the samples file of a job."""
        samples = self.find_samples(folder, test, metric)
        if samples is None:
            path = self.out / folder / SAMPLES_FILE
            raise UserError(
                f"{path} has no samples of {sample_name(test, metric)}; remove {path.parent} and "
                "run the benchmark again"
            )
        return samples

    def find_samples(self, folder: str, test: str, metric: str) -> Floats | None:
        """Return the bootstrap values of a metric, or None if it has none."""
        path = self.out / folder / SAMPLES_FILE
        try:
            if folder not in self._samples_by_job:
                self._samples_by_job[folder] = safetensors.numpy.load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(
                f"{path} cannot be read ({error}); remove {path.parent} and run the benchmark again"
            ) from error
        return self._samples_by_job[folder].get(sample_name(test, metric))


def _known(measured: Measured | None) -> Measured:
    """Return a value that every seed has: the tests that each job of its kind runs."""
    assert measured is not None
    return measured


def values_by_test(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return test -> metric -> value of one job, with the names of results.csv."""
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


_MODELS = "models/"  # jobs whose models others share; cells and chains are results


def read_results(grid: Grid, jobs: Sequence[Job], out: Path) -> Results:
    """Return the results of the finished jobs.

    Seeds are comparable only if the same jobs are finished for each of them. So the results have
    the seeds and the jobs with which the most remains, and leave the others out.
    """
    # Seed -> name of a job without its seed -> folder of the job.
    finished: dict[int, dict[str, str]] = {seed: {} for seed in grid.seeds}
    for job in jobs:  # each job comes after those that it needs
        of_seed = finished[job.seed]
        if is_finished(out, job) and set(job.needs) <= set(of_seed.values()):
            of_seed[job.folder.replace(f"seed{job.seed}", "")] = job.folder
    shared = shared_jobs([frozenset(of_seed) for of_seed in finished.values()])
    seeds = tuple(seed for seed in grid.seeds if shared <= set(finished[seed]))
    by_job = {
        folder: read_result(out, folder)
        for seed in seeds
        for name, folder in finished[seed].items()
        if name in shared
    }
    missing_jobs = {
        seed: len(shared - set(of_seed)) for seed, of_seed in finished.items() if seed not in seeds
    }
    unshared = sum(len(finished[seed]) - len(shared) for seed in seeds)
    chosen = replace(grid, seeds=seeds)
    results = Results(chosen, out, by_job, missing_jobs, unshared)
    if not results.scenarios and not any(map(results.has_chain, grid.chain_methods)):
        raise UserError(
            f"{out} holds no finished result of this benchmark yet ({len(by_job)} jobs, but no "
            "cell and no chain); run it first"
        )
    _require_same_models(results)
    return results


def shared_jobs(of_seeds: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the jobs with which the most results remain: seeds that have them all × results.

    ``of_seeds`` has the names of each seed's finished jobs. If several sets of jobs keep as many
    results, it is the one with more seeds.
    """
    candidates: set[frozenset[str]] = set()
    for jobs in of_seeds:
        candidates |= {jobs} | {jobs & other for other in candidates}

    def rank(jobs: frozenset[str]) -> tuple[int, int, int]:
        seeds = sum(jobs <= of_seed for of_seed in of_seeds)
        results = sum(not name.startswith(_MODELS) for name in jobs)
        return seeds * results, seeds, len(jobs)

    return max(candidates, key=rank)


def _require_same_models(results: Results) -> None:
    """Raise an error if a model was trained again after it was tested."""
    for folder, result in results.by_job.items():
        for test in result["tests"].values():
            for side, tested in zip(("query", "gallery"), test["fingerprints"], strict=True):
                current = results.by_job.get(test[side], {}).get("fingerprint", tested)
                if tested != current:
                    raise UserError(
                        f"{results.out / folder} was tested with a model that {test[side]} no "
                        f"longer has; remove {results.out / folder} and run the benchmark again"
                    )


# results.csv: a row for each value, tidy, for spreadsheets and data frames.

CHAIN = "chain"  # in the place of a scenario
OLD, FREE = "old", "free"  # in the place of a method


class Row(NamedTuple):
    """One value."""

    data: str  # the test images, or the images whose classes are partly held out for tests
    scenario: str  # or ``chain``
    method: str  # or ``old``, the old model, and ``free``, the new model without compatibility
    seed: int
    test: str  # such as ``new→old``, ``v3→v1``, ``mixed raw`` or ``scaled at old threshold``
    metric: str  # such as ``top-1``
    value: str  # as a share, such as 0.5
    low: str = ""  # the lower end of its interval over classes; empty if there is none
    high: str = ""  # the upper end


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
            for version in VERSIONS:
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
    for name, values in values_by_test(result).items():
        # The first version of a chain is the old model of the data scenarios.
        test = chain_test(1, 1) if scenario == CHAIN and name == OLD_SELF else name
        for metric, value in values.items():
            samples, ends = results.find_samples(folder, name, metric), ()
            if samples is not None:
                interval = results.measured([value], [samples]).estimate
                ends = (f"{interval.low:.6f}", f"{interval.high:.6f}")
            yield Row(data, scenario, method, seed, test, metric, f"{value:.6f}", *ends)

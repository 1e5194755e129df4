"""The results of a benchmark's finished jobs: values, bootstrap samples and estimates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from unibct.arrays import Floats
from unibct.benchmark.execution import SAMPLES_FILE
from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import (
    cell_folder,
    chain_test,
    free_folder,
    old_folder,
    version_folder,
)
from unibct.benchmark.measuring import sample_name
from unibct.errors import UserError
from unibct.evaluation.criterion import Estimate, estimate
from unibct.evaluation.directions import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.evaluation.metrics.table import find_metric
from unibct.methods.table import NO_METHOD


@dataclass(frozen=True)
class Measured:
    """One metric of one test, or a difference of two, over the seeds.

    Attributes:
        values: (seeds,) the metric of each seed.
        samples: (seeds, repeats) its bootstrap values; every seed draws the same classes.
        classes: how many are drawn.
    """

    values: Floats
    samples: Floats
    classes: int

    def __sub__(self, other: "Measured") -> "Measured":
        classes = min(self.classes, other.classes)
        return Measured(self.values - other.values, self.samples - other.samples, classes)

    @property
    def estimate(self) -> Estimate:
        """The mean over the seeds, with its interval."""
        return estimate(self.values, self.samples, classes=self.classes)


@dataclass(frozen=True)
class Results:
    """The results of the finished jobs, for the seeds that have the same jobs finished.

    Attributes:
        grid: what is compared, with these seeds only.
        out: the benchmark's folder.
        by_job: what each finished job wrote to its result file, by the job's folder.
        missing_jobs: how many jobs each other seed lacks; such seeds are left out.
        unshared_jobs: how many finished jobs are left out because not all of the seeds have them.
        outdated_jobs: how many are left out because they were measured with other validation
            images than the folder's.
    """

    grid: Grid
    out: Path
    by_job: dict[str, dict[str, Any]]
    missing_jobs: dict[int, int]
    unshared_jobs: int = 0
    outdated_jobs: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are compared."""
        return self.grid.seeds

    @cached_property
    def metrics(self) -> list[str]:
        """The titles of the metrics with an interval that every test has, in their table's order.

        Results of an earlier version may lack a metric.
        """
        tests = [test for result in self.by_job.values() for test in result["tests"].values()]
        return [
            metric
            for metric in tests[0]["metrics"]
            if find_metric(metric).sample is not None
            and all(metric in test["metrics"] for test in tests)
        ]

    @cached_property
    def deciding_metrics(self) -> list[str]:
        """The metrics on which the verdict depends."""
        return [metric for metric in self.metrics if find_metric(metric).decides]

    @cached_property
    def query_classes(self) -> int:
        """How many test classes have queries.

        Results of an earlier version say only how many there are.
        """
        return min(
            result.get("query_classes", result.get("compared_classes", result["templates"]))
            for result in self.by_job.values()
        )

    @cached_property
    def scenarios(self) -> list[str]:
        """The scenarios that have at least one finished cell."""
        return [
            scenario
            for scenario in self.grid.scenarios
            if any(self.has_cell(scenario, method) for method in self.grid.methods)
        ]

    def has_cell(self, scenario: str, method: str) -> bool:
        """Return whether a method in a scenario is finished for every seed."""
        return all(cell_folder(scenario, method, seed) in self.by_job for seed in self.seeds)

    def has_chain(self, method: str) -> bool:
        """Return whether every version of a method's chain is finished for every seed."""
        return all(
            version_folder(method, seed, version) in self.by_job
            for seed in self.seeds
            for version in range(1, self.grid.versions + 1)
        )

    def cross(self, scenario: str, method: str, metric: str) -> Measured:
        """Return a metric of the cross test: new queries in the old gallery."""
        return self._over_seeds(CROSS, metric, self._cells(scenario, method))

    def flips(self, scenario: str, method: str, rate: str) -> Measured | None:
        """Return a flip rate of the cross test, or None if an earlier version wrote the results.

        Args:
            scenario: a scenario with a finished cell of the method.
            method: of the cell.
            rate: ``nfr``, ``pfr`` or ``relative_nfr``.
        """
        folders = self._cells(scenario, method)
        if not all("flips" in self.by_job[folder]["tests"][CROSS] for folder in folders):
            return None
        return self._over_seeds(CROSS, rate, folders, "flips")

    def new_self(self, scenario: str, method: str, metric: str) -> Measured:
        """Return a metric of the new model's self test."""
        return self._over_seeds(NEW_SELF, metric, self._cells(scenario, method))

    def blended(self, scenario: str, method: str, metric: str) -> Measured | None:
        """Return a metric of blended queries, or None if an earlier version wrote the results."""
        folders = self._cells(scenario, method)
        if not all(BLEND in self.by_job[folder]["tests"] for folder in folders):
            return None
        return self._over_seeds(BLEND, metric, folders)

    def cells(self, scenario: str, method: str) -> list[dict[str, Any]]:
        """Return what each seed's cell wrote to its result file."""
        return [self.by_job[folder] for folder in self._cells(scenario, method)]

    @cached_property
    def chosen_on(self) -> str | None:
        """The validation images on which cells have chosen, if there are any."""
        blends = (result["tests"].get(BLEND, {}) for result in self.by_job.values())
        names = (test["chosen_on"]["data"] for test in blends if test.get("chosen_on") is not None)
        return next(names, None)

    def old_self(self, scenario: str, metric: str) -> Measured:
        """Return a metric of the old model's self test."""
        folders = [old_folder(scenario, seed) for seed in self.seeds]
        return self._over_seeds(OLD_SELF, metric, folders)

    def free_self(self, scenario: str, metric: str) -> Measured | None:
        """Return a metric of the free model's self test, or None if it was not trained."""
        folders = [free_folder(scenario, seed) for seed in self.seeds]
        if not self.by_job.keys() >= set(folders):
            return None
        return self._over_seeds(NEW_SELF, metric, folders)

    def between_versions(self, method: str, query: int, gallery: int, metric: str) -> Measured:
        """Return a metric of the test between two versions of an upgrade chain."""
        later = max(query, gallery)
        test = OLD_SELF if later == 1 else chain_test(query, gallery)
        folders = [version_folder(method, seed, later) for seed in self.seeds]
        return self._over_seeds(test, metric, folders)

    def cost(self, scenario: str, method: str) -> dict[str, float] | None:
        """Return images per second and seconds of a training run, of the fastest seed."""
        folders = self._cells(scenario, method)
        if method == NO_METHOD:
            folders = [free_folder(scenario, seed) for seed in self.seeds]
        costs = [cost for f in folders if (cost := self.by_job.get(f, {}).get("cost"))]
        return max(costs, key=lambda cost: cost["images_per_second"], default=None)

    @cached_property
    def weak_old_models(self) -> dict[str, list[int]]:
        """The scenarios whose old model is hardly better than raw pixels, with the seeds.

        Results of an earlier version do not say how strong the old model is.
        """
        weak = {
            scenario: weak_seeds(self, [old_folder(scenario, seed) for seed in self.seeds])
            for scenario in self.scenarios
        }
        return {scenario: seeds for scenario, seeds in weak.items() if seeds}

    def _cells(self, scenario: str, method: str) -> list[str]:
        """Return the folders of a method's cells in a scenario, one per seed."""
        return [cell_folder(scenario, method, seed) for seed in self.seeds]

    def _over_seeds(
        self, test: str, metric: str, folders: Sequence[str], kind: str = "metrics"
    ) -> Measured:
        """Return a metric (or another kind of value) of a test, from the seeds' job folders."""
        values = [self.by_job[folder]["tests"][test][kind][metric] for folder in folders]
        samples = [self.samples(folder, test, metric) for folder in folders]
        return self.measured(values, samples)

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


def weak_seeds(results: Results, folders: Sequence[str]) -> list[int]:
    """Return the seeds whose old model is hardly better than raw pixels.

    Args:
        results: of the finished jobs.
        folders: of the old models, one per seed.
    """
    strengths = [results.by_job.get(folder, {}).get("old_model") for folder in folders]
    pairs = zip(results.seeds, strengths, strict=True)
    return [seed for seed, strength in pairs if strength is not None and strength["too_weak"]]


def compared_methods(results: Results) -> list[str]:
    """Return the methods that have a finished cell in some scenario, in the grid's order."""
    return [
        method
        for method in results.grid.methods
        if any(results.has_cell(scenario, method) for scenario in results.scenarios)
    ]


def finished_methods(results: Results, scenario: str) -> list[str]:
    """Return the methods that have a finished cell in a scenario, in the grid's order."""
    return [method for method in results.grid.methods if results.has_cell(scenario, method)]


def gain(results: Results, scenario: str, method: str, metric: str) -> Measured:
    """Return cross − old self of a cell."""
    return results.cross(scenario, method, metric) - results.old_self(scenario, metric)

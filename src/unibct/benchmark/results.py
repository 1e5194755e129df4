"""What the jobs of a benchmark left, read back: values, samples, estimates, and a flat table."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from unibct.arrays import Floats
from unibct.benchmark.execution import SAMPLES_FILE, sample_name
from unibct.benchmark.jobs import (
    Job,
    cell_folder,
    chain_test,
    free_folder,
    old_folder,
    version_folder,
)
from unibct.benchmark.plan import Grid
from unibct.benchmark.workspace import RESULT_FILE, is_finished
from unibct.errors import UserError
from unibct.evaluation.criterion import Estimate, estimate
from unibct.evaluation.directions import CROSS, NEW_SELF, OLD_SELF
from unibct.evaluation.metrics.table import find_metric
from unibct.evaluation.resolution import tar_name
from unibct.files import read_json
from unibct.methods import NO_METHOD


@dataclass(frozen=True)
class Measured:
    """One metric of one test over the seeds that have it."""

    values: Floats  # (seeds,)
    samples: Floats  # (seeds, repeats)

    def __sub__(self, other: "Measured") -> "Measured":
        return Measured(self.values - other.values, self.samples - other.samples)

    @property
    def estimate(self) -> Estimate:
        """Mean and interval."""
        return estimate(self.values, self.samples)


@dataclass(frozen=True)
class Results:
    """The finished jobs of a grid, for seeds that are equally far."""

    grid: Grid
    out: Path
    found: dict[str, dict[str, Any]]  # by job folder
    behind: dict[int, int]  # seeds that are left out -> jobs they lack

    @cached_property
    def metrics(self) -> list[str]:
        """The titles of the metrics, in the order of their table."""
        first = next(iter(self.found.values()))
        return list(next(iter(first["tests"].values()))["metrics"])

    @cached_property
    def deciding_metrics(self) -> list[str]:
        """Those on which a verdict depends."""
        return [metric for metric in self.metrics if find_metric(metric).decides]

    @cached_property
    def scenarios(self) -> list[str]:
        """The scenarios of which at least one cell is finished."""
        return [
            scenario
            for scenario in self.grid.scenarios
            if any(self.has(scenario, method) for method in self.grid.methods)
        ]

    def has(self, scenario: str, method: str) -> bool:
        """Whether a cell is finished for every seed of the grid."""
        return all(cell_folder(scenario, method, seed) in self.found for seed in self.grid.seeds)

    def cross(self, scenario: str, method: str, metric: str) -> Measured:
        """New queries in the old gallery."""
        return self._over_seeds(
            CROSS, metric, [cell_folder(scenario, method, s) for s in self.seeds]
        )

    def new_self(self, scenario: str, method: str, metric: str) -> Measured:
        """The new model's self test."""
        folders = [cell_folder(scenario, method, s) for s in self.seeds]
        return self._over_seeds(NEW_SELF, metric, folders)

    def old_self(self, scenario: str, metric: str) -> Measured:
        """The old model's self test."""
        return self._over_seeds(OLD_SELF, metric, [old_folder(scenario, s) for s in self.seeds])

    def free_self(self, scenario: str, metric: str) -> Measured:
        """The self test of a new model without compatibility: the upper bound."""
        return self._over_seeds(NEW_SELF, metric, [free_folder(scenario, s) for s in self.seeds])

    def versions(self, method: str, query: int, gallery: int, metric: str) -> Measured:
        """A test between two versions of an upgrade chain."""
        later = max(query, gallery)
        name = OLD_SELF if later == 1 else chain_test(query, gallery)
        folders = [version_folder(method, seed, later) for seed in self.seeds]
        return self._over_seeds(name, metric, folders)

    def has_chain(self, method: str) -> bool:
        """Whether every version of a method's chain is finished for every seed."""
        return all(
            version_folder(method, seed, version) in self.found
            for seed in self.seeds
            for version in range(1, self.grid.versions + 1)
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """The grid's seeds."""
        return self.grid.seeds

    def cost(self, scenario: str, method: str) -> dict[str, float] | None:
        """Images per second and seconds of a training, of the seed that was least disturbed."""
        folders = [cell_folder(scenario, method, s) for s in self.seeds]
        if method == NO_METHOD:
            folders = [free_folder(scenario, s) for s in self.seeds]
        costs = [cost for f in folders if (cost := self.found.get(f, {}).get("cost"))]
        return max(costs, key=lambda cost: cost["images_per_second"], default=None)

    def _over_seeds(self, test: str, metric: str, folders: Sequence[str]) -> Measured:
        values = [self.found[folder]["tests"][test]["metrics"][metric] for folder in folders]
        samples = [self._samples(folder, sample_name(test, metric)) for folder in folders]
        return Measured(np.array(values), np.stack(samples).astype(np.float64))

    @cached_property
    def _samples_by_job(self) -> dict[str, dict[str, Floats]]:
        """What has been read of the jobs' sample files."""
        return {}

    def _samples(self, folder: str, name: str) -> Floats:
        """Return (repeats,) bootstrap values that a job kept under ``name``."""
        path = self.out / folder / SAMPLES_FILE
        try:
            if folder not in self._samples_by_job:
                self._samples_by_job[folder] = safetensors.numpy.load_file(path)
            return self._samples_by_job[folder][name]
        except (OSError, KeyError, safetensors.SafetensorError) as error:
            raise UserError(
                f"{path} cannot be read ({error}); remove {path.parent} and run the benchmark again"
            ) from error


def read_results(grid: Grid, jobs: Sequence[Job], out: Path) -> Results:
    """The results of the jobs that are finished.

    Seeds are compared only where they are equally far: the ones with most finished jobs are taken.
    """
    done: dict[int, dict[str, str]] = {seed: {} for seed in grid.seeds}  # name -> folder
    for job in jobs:  # each after those it needs
        own = done[job.seed]
        if is_finished(out, job) and set(job.needs) <= set(own.values()):
            own[job.folder.replace(f"seed{job.seed}", "")] = job.folder
    furthest = set(max(done.values(), key=len))
    seeds = tuple(seed for seed in grid.seeds if set(done[seed]) == furthest)
    found = {
        folder: read_json(out / folder / RESULT_FILE)
        for seed in seeds
        for folder in done[seed].values()
    }
    behind = {seed: len(furthest - set(own)) for seed, own in done.items() if seed not in seeds}
    results = Results(replace(grid, seeds=seeds), out, found, behind)
    if not results.scenarios and not any(map(results.has_chain, grid.chain_methods)):
        raise UserError(
            f"{out} holds no finished result of this benchmark yet ({len(found)} jobs, but no cell "
            "and no chain); run it first"
        )
    _require_same_models(results)
    return results


def _require_same_models(results: Results) -> None:
    """Refuse a test whose models have been trained anew since."""
    for folder, result in results.found.items():
        for test in result["tests"].values():
            prints = test.get("fingerprints", ())
            for side, kept in zip(("query", "gallery"), prints, strict=False):
                other = results.found.get(test[side], {}).get("fingerprint", kept)
                if kept != other:
                    raise UserError(
                        f"{results.out / folder} was tested with a model that {test[side]} has no "
                        f"more; remove {results.out / folder} and run the benchmark again"
                    )


def as_csv(results: Results) -> str:
    """A row for each test and metric of each job, for spreadsheets and data frames."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["job", "seed", "test", "query", "gallery", "metric", "value"])
    for folder, result in results.found.items():
        for name, test in result["tests"].items():
            values = {tar_name(float(far)): tar for far, tar in test["tar_at_far"].items()}
            values |= test["metrics"]
            for metric, value in values.items():
                writer.writerow(
                    [
                        folder,
                        result["seed"],
                        name,
                        test["query"],
                        test["gallery"],
                        metric,
                        f"{value:.6f}",
                    ]
                )
    return text.getvalue()

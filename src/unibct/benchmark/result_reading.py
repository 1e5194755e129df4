"""Read the results of the finished jobs back, for the seeds that can be compared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import Job
from unibct.benchmark.model_origins import require_model_origins
from unibct.benchmark.results import Results
from unibct.benchmark.workspace import is_current, is_finished, read_result
from unibct.errors import UserError

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
        if is_current(out, job) and set(job.needs) <= set(of_seed.values()):
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
    outdated = sum(is_finished(out, job) and not is_current(out, job) for job in jobs)
    chosen = replace(grid, seeds=seeds)
    results = Results(chosen, out, by_job, missing_jobs, unshared, outdated)
    if not results.scenarios and not any(map(results.has_chain, grid.chain_methods)):
        raise UserError(
            f"{out} holds no finished result of this benchmark yet ({len(by_job)} jobs, but no "
            "cell and no chain); run it first"
        )
    _require_same_models(results)
    for job in jobs:
        if job.folder in by_job:
            require_model_origins(out, job, maps=False)
    return results


def shared_jobs(of_seeds: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the jobs with which the most results remain: seeds that have them all × results.

    If several sets of jobs keep as many results, it is the one with more seeds.

    Args:
        of_seeds: the names of each seed's finished jobs.
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
            fingerprints = test.get("fingerprints", ())
            for side, tested in zip(("query", "gallery"), fingerprints, strict=False):
                current = results.by_job.get(test[side], {}).get("fingerprint", tested)
                if tested != current:
                    raise UserError(
                        f"{results.out / folder} was tested with a model that {test[side]} no "
                        f"longer has; remove {results.out / folder} and run the benchmark again"
                    )

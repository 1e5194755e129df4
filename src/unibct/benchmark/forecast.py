"""How long a benchmark will take, estimated from its finished jobs or from a short trial."""

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import RESULT_FILE, is_finished
from unibct.evaluation.directions import CROSS
from unibct.files import read_json
from unibct.losses.arcface import arcface
from unibct.models.architectures.table import build_network
from unibct.models.input import to_input
from unibct.training.class_weights import initial_class_weights
from unibct.training.network import recipe_architecture, recipe_input
from unibct.training.optimizer import SGD
from unibct.training.precision import autocast
from unibct.training.recipe import Recipe

_TRIAL_STEPS = 12
_SLOW_STEPS = 4  # the first steps are slower and are not counted
_FORWARD_SHARE = 1 / 3  # time to embed an image, as a share of a training step's time
_SECONDS_PER_SCORE = 1e-6  # of a test, with its bootstrap
_MORE_OF_A_CELL = 5  # tests that take as long as its thresholds, blends and mixed galleries


@dataclass(frozen=True)
class RunConditions:
    """What the time of a job depends on, besides the job itself.

    Attributes:
        workers: number of processes that run at the same time.
        threads: number of threads of each process.
        device: where models are trained.
        classes: approximate number of classes that a model is trained on.
        test_images: number of images that each model embeds for the tests.
        scores: number of scores in a test, queries × templates.
    """

    workers: int
    threads: int
    device: torch.device
    classes: int
    test_images: int
    scores: int


def forecast_seconds(
    jobs: Sequence[Job], out: Path, conditions: RunConditions, *, again: Sequence[Job] = ()
) -> float:
    """Return how many seconds the jobs that have work will take, roughly.

    Args:
        jobs: the jobs of the benchmark, finished ones too.
        out: the benchmark's folder.
        conditions: the machine and the size of the data.
        again: finished jobs that are only measured again.
    """
    unfinished = [job for job in jobs if not is_finished(out, job)]
    recipes = {
        job.training.recipe.architecture: job.training.recipe for job in unfinished if job.training
    }
    rates = finished_rates(out, jobs)
    for architecture, recipe in recipes.items():
        if architecture not in rates:
            rates[architecture] = trial_rate(
                recipe, conditions.classes, conditions.threads, conditions.device
            )
    seconds = {job.folder: _measuring_seconds(job, conditions) for job in (*unfinished, *again)}
    for job in unfinished:
        images = job.work + _FORWARD_SHARE * conditions.test_images
        if job.training is not None:
            seconds[job.folder] += images / rates[job.training.recipe.architecture]
        elif job.map_fitting is not None:
            seconds[job.folder] += images / max(rates.values(), default=np.inf)
    to_run = [job for job in jobs if job.folder in seconds]
    return schedule(to_run, seconds, conditions.workers)


def _measuring_seconds(job: Job, conditions: RunConditions) -> float:
    """Return how long the tests of a job take, and what a cell measures besides."""
    is_cell = any(test.name == CROSS for test in job.tests)
    tests = len(job.tests) + (_MORE_OF_A_CELL if is_cell else 0)
    return _SECONDS_PER_SCORE * conditions.scores * tests


def schedule(jobs: Sequence[Job], seconds: Mapping[str, float], workers: int) -> float:
    """Return when the last job ends if each free worker takes the first job that is ready.

    Args:
        jobs: each after those that it needs.
        seconds: how long each job takes, by its folder.
        workers: number of jobs that run at the same time.
    """
    waiting, running, now = list(jobs), list[tuple[float, str]](), 0.0
    unfinished = {job.folder for job in jobs}
    while waiting or running:
        ready = [job for job in waiting if unfinished.isdisjoint(job.needs + job.after)]
        for job in ready[: workers - len(running)]:
            waiting.remove(job)
            heapq.heappush(running, (now + seconds[job.folder], job.folder))
        now, folder = heapq.heappop(running)
        unfinished.remove(folder)
    return now


def finished_rates(out: Path, jobs: Iterable[Job]) -> dict[str, float]:
    """Return the training images per second of each architecture in the finished jobs."""
    rates: dict[str, list[float]] = {}
    for job in jobs:
        if job.training is not None and is_finished(out, job):
            result = read_json(out / job.folder / RESULT_FILE)
            rates.setdefault(result["architecture"], []).append(result["cost"]["images_per_second"])
    return {architecture: float(np.median(of_jobs)) for architecture, of_jobs in rates.items()}


def trial_rate(
    recipe: Recipe, classes: int, threads: int, device: torch.device, *, steps: int = _TRIAL_STEPS
) -> float:
    """Return the training images per second, measured in a few steps on random pixels."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        architecture = recipe_architecture(recipe)
        spec, dim = recipe_input(recipe, architecture), recipe.dim or architecture.dim
        network = build_network(architecture, spec, dim)
        network.to(device, memory_format=torch.channels_last)  # pyright: ignore
        rows = initial_class_weights(classes, dim, 0, range(classes))
        class_weights = torch.nn.Parameter(rows.to(device))
        optimizer = SGD([*network.parameters(), class_weights], lr=1e-3, momentum=0.9)
        rng = np.random.default_rng(0)
        shape = (recipe.batch_size, *spec.frame.shape)
        pixels = rng.integers(256, size=shape, dtype=np.uint8)
        labels = torch.from_numpy(rng.integers(classes, size=recipe.batch_size)).to(device)
        times: list[float] = []
        for _ in range(steps):
            begin = time.perf_counter()
            with autocast(recipe.precision, device):
                embeddings = network(to_input(pixels, spec, device))
            loss = arcface(embeddings.float(), class_weights, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device
            times.append(time.perf_counter() - begin)
        return recipe.batch_size / float(np.median(times[_SLOW_STEPS:]))
    finally:
        torch.set_num_threads(threads_before)

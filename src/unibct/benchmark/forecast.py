"""How long a benchmark will take: from what its finished jobs took, or from a short trial."""

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import RESULT_FILE, is_finished
from unibct.files import read_json
from unibct.losses.arcface import arcface
from unibct.models.architectures.table import build_network, find_architecture
from unibct.models.model import to_input
from unibct.training.recipe import Recipe

_STEPS = 12
_SKIPPED = 4  # first steps, which are slower
_FORWARD = 1 / 3  # of a training step's time, for an image that is only embedded
_SECONDS_PER_SCORE = 1e-6  # of a test: scores and bootstrap


def forecast(
    jobs: Sequence[Job],
    out: Path,
    *,
    workers: int,
    threads: int,
    classes: int,
    test_images: int,
    scores: int,
    device: torch.device,
) -> float:
    """Seconds that the unfinished jobs should take.

    Args:
        jobs: the benchmark's.
        out: its folder.
        workers: processes at work at the same time.
        threads: of each.
        classes: about how many a model is trained on.
        test_images: that each model embeds.
        scores: of a test, queries × templates.
        device: on which models are trained.
    """
    left = [job for job in jobs if not is_finished(out, job)]
    recipes = {
        job.training.recipe.architecture: job.training.recipe for job in left if job.training
    }
    rates = finished_rates(out, jobs)
    for architecture, recipe in recipes.items():
        if architecture not in rates:
            rates[architecture] = trial_rate(recipe, classes, threads, device)
    seconds: dict[str, float] = {}
    for job in left:
        seconds[job.folder] = _SECONDS_PER_SCORE * scores * len(job.tests)
        if job.training is not None:
            images = job.work + _FORWARD * test_images
            seconds[job.folder] += images / rates[job.training.recipe.architecture]
        elif job.adapter is not None:
            images = job.work + _FORWARD * test_images
            seconds[job.folder] += images / max(rates.values(), default=np.inf)
    return schedule(left, seconds, workers)


def schedule(jobs: Sequence[Job], seconds: Mapping[str, float], workers: int) -> float:
    """When the last job ends, if each worker takes the first job whose needs are met."""
    waiting, running, now = list(jobs), list[tuple[float, str]](), 0.0
    pending = {job.folder for job in jobs}
    while waiting or running:
        ready = [job for job in waiting if not pending & set(job.needs)]
        for job in ready[: workers - len(running)]:
            waiting.remove(job)
            heapq.heappush(running, (now + seconds[job.folder], job.folder))
        now, folder = heapq.heappop(running)
        pending.remove(folder)
    return now


def finished_rates(out: Path, jobs: Iterable[Job]) -> dict[str, float]:
    """Training images per second of each architecture, as finished jobs had them."""
    rates: dict[str, list[float]] = {}
    for job in jobs:
        if job.training is not None and is_finished(out, job):
            result = read_json(out / job.folder / RESULT_FILE)
            rates.setdefault(result["architecture"], []).append(result["cost"]["images_per_second"])
    return {architecture: float(np.median(found)) for architecture, found in rates.items()}


def trial_rate(
    recipe: Recipe, classes: int, threads: int, device: torch.device, *, steps: int = _STEPS
) -> float:
    """Training images per second of a few steps on noise."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        spec = find_architecture(recipe.architecture).input
        dim = recipe.dim or find_architecture(recipe.architecture).dim
        network = build_network(recipe.architecture, spec, dim)
        network.to(device, memory_format=torch.channels_last)  # pyright: ignore
        class_weights = torch.nn.Parameter(torch.randn(classes, dim, device=device))
        optimizer = torch.optim.SGD([*network.parameters(), class_weights], lr=1e-3, momentum=0.9)
        rng = np.random.default_rng(0)
        shape = (recipe.batch_size, *spec.size)
        pixels = rng.integers(256, size=shape, dtype=np.uint8)
        labels = torch.from_numpy(rng.integers(classes, size=recipe.batch_size)).to(device)
        times: list[float] = []
        for _ in range(steps):
            begin = time.perf_counter()
            embeddings = network(to_input(pixels, spec, device))
            loss = arcface(embeddings, class_weights, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device
            times.append(time.perf_counter() - begin)
        return recipe.batch_size / float(np.median(times[_SKIPPED:]))
    finally:
        torch.set_num_threads(before)

"""Several one-threaded training processes against one process with all threads, in one run.

    python measurements/workers.py

About a minute. The two arrangements take turns on the default network. The table shows the images
per second of all processes together (median over the rounds) and the ratio. The result is the
reason why `unibct benchmark` runs one worker with one thread on each core.
"""

import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from unibct.losses import arcface
from unibct.models.architectures import build_network
from unibct.models.input import to_input
from unibct.training.network import autocast, recipe_architecture, recipe_input
from unibct.training.optimizer import SGD
from unibct.training.recipe import load_recipe
from unibct.training.state import initial_class_weights

ROUNDS = 5
CLASSES = 636
STEPS = 60
SLOW_STEPS = 4  # the first steps are slower and are not counted


def rate(threads: int) -> float:
    """Return the images per second of one process: training steps on random pixels."""
    torch.set_num_threads(threads)
    recipe, device = load_recipe("glyphs"), torch.device("cpu")
    architecture = recipe_architecture(recipe)
    spec, dim = recipe_input(recipe, architecture), recipe.dim or architecture.dim
    network = build_network(architecture, spec, dim)
    network.to(device, memory_format=torch.channels_last)  # pyright: ignore
    rows = initial_class_weights(CLASSES, dim, 0, range(CLASSES))
    class_weights = torch.nn.Parameter(rows.to(device))
    optimizer = SGD([*network.parameters(), class_weights], lr=1e-3, momentum=0.9)
    rng = np.random.default_rng(0)
    shape = (recipe.batch_size, *spec.frame.shape)
    pixels = rng.integers(256, size=shape, dtype=np.uint8)
    labels = torch.from_numpy(rng.integers(CLASSES, size=recipe.batch_size)).to(device)
    times: list[float] = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        with autocast(recipe.precision, device):
            embeddings = network(to_input(pixels, spec, device))
        loss = arcface(embeddings.float(), class_weights, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device
        times.append(time.perf_counter() - begin)
    return recipe.batch_size / statistics.median(times[SLOW_STEPS:])


def main() -> None:
    """Measure both arrangements in turns."""
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    rates: dict[str, list[float]] = {"one process": [], "workers": []}
    with ProcessPoolExecutor(cores, mp_context=context) as pool:
        for _ in range(ROUNDS):
            rates["one process"].append(pool.submit(rate, cores).result())
            rates["workers"].append(sum(pool.map(rate, [1] * cores)))
    one, many = (statistics.median(values) for values in rates.values())
    print(f"one process, {cores} threads     {one:8,.0f} images/s")
    print(f"{cores} processes, 1 thread each {many:8,.0f} images/s   {many / one:.2f} ×")


if __name__ == "__main__":
    main()

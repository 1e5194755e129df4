"""Several one-threaded training processes against one process with all threads, in one run.

    python measurements/workers.py

About a minute. The two arrangements take turns on the default network. The table shows the images
per second of all processes together (median over the rounds) and the ratio. The result is the
reason why `unibct benchmark` runs one worker with one thread on each core.
"""

import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor

import torch

from unibct.benchmark.run import trial_rate
from unibct.training.recipe import load_recipe

ROUNDS = 5
CLASSES = 636


def rate(threads: int) -> float:
    """Return the images per second of one process."""
    return trial_rate(load_recipe("glyphs"), CLASSES, threads, torch.device("cpu"), steps=60)


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

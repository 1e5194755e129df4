"""Several one-threaded training processes against one process with all threads, in one run.

    python measurements/workers.py

A minute. The two arrangements take turns on the default network; the table gives the images per
second of all processes together, the median of the rounds, and the ratio. This is why
`unibct benchmark` runs as many one-threaded workers as there are cores.
"""

import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor

import torch

from unibct.benchmark.forecast import trial_rate
from unibct.training.recipe import load_recipe

ROUNDS = 5
CLASSES = 636


def rate(threads: int) -> float:
    """Images per second of one process."""
    return trial_rate(load_recipe("glyphs"), CLASSES, threads, torch.device("cpu"), steps=60)


def main() -> None:
    """Take turns."""
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    rates: dict[str, list[float]] = {"one process": [], "workers": []}
    with ProcessPoolExecutor(cores, mp_context=context) as pool:
        for _ in range(ROUNDS):
            rates["one process"].append(pool.submit(rate, cores).result())
            rates["workers"].append(sum(pool.map(rate, [1] * cores)))
    one, many = (statistics.median(found) for found in rates.values())
    print(f"one process, {cores} threads     {one:8,.0f} images/s")
    print(f"{cores} processes, 1 thread each {many:8,.0f} images/s   {many / one:.2f} ×")


if __name__ == "__main__":
    main()

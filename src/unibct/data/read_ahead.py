"""Threads that work on the next images while the caller uses the last ones."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from unibct.distributed.cpus import usable_cpus

T = TypeVar("T")


def results_ahead(jobs: Iterable[Callable[[], T]], workers: int) -> Iterator[T]:
    """Yield the result of each job, in the order of the jobs.

    Args:
        jobs: functions without arguments. The iterable is read a few jobs ahead.
        workers: threads that call them ahead; 0 means that nothing is done ahead.
    """
    if workers == 0:
        for job in jobs:
            yield job()
        return
    with ThreadPoolExecutor(workers) as pool:
        results: deque[Future[T]] = deque()
        try:
            for job in jobs:
                results.append(pool.submit(job))
                if len(results) > workers:
                    yield results.popleft().result()
            while results:
                yield results.popleft().result()
        finally:  # the caller may stop early
            for result in results:
                result.cancel()


def reading_threads() -> int:
    """Return the number of threads that read images."""
    cores = usable_cpus()
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    if processes.isdecimal():  # torchrun sets OMP_NUM_THREADS to 1 on any number of cores
        return max(2, cores // int(processes))
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")  # smaller if processes share the cores
    return max(2, int(omp_threads) if omp_threads.isdecimal() else cores)

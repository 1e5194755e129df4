import threading
from functools import partial

import pytest

from unibct.data import read_ahead
from unibct.data.read_ahead import reading_threads, results_ahead


def test_each_process_of_a_machine_has_its_cores(monkeypatch):
    monkeypatch.setattr(read_ahead, "usable_cpus", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert reading_threads() == 8
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert reading_threads() == 2


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_jobs(workers):
    assert list(results_ahead((partial(int, n) for n in range(20)), workers)) == list(range(20))


def test_jobs_run_ahead_but_not_far():
    second = threading.Event()
    taken = []

    def jobs():
        for number in range(10):
            taken.append(number)
            yield second.set if number == 1 else partial(second.wait, 30)

    results = results_ahead(jobs(), 2)
    assert next(results)  # it has waited for the second one, which a thread did meanwhile
    assert len(taken) == 3

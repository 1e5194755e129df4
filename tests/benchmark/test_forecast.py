from dataclasses import replace

import torch

from tests.benchmark.embedded_jobs import jobs_of
from unibct.benchmark.forecast import RunConditions, forecast_seconds, schedule
from unibct.benchmark.jobs import Job
from unibct.data.readers.table import open_images
from unibct.data.scenarios import split


def test_the_forecast_counts_what_is_left(tmp_path):
    jobs = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])
    one_worker = RunConditions(
        workers=1, threads=1, device=torch.device("cpu"), classes=10, test_images=100, scores=0
    )
    one = forecast_seconds(jobs, tmp_path, one_worker)
    assert one > 0
    labels = open_images("glyphs:train").labels
    parts = split(labels, "open-class")
    assert sum(job.work for job in jobs) == 6 * (len(parts.old) + len(parts.new))
    # The rates are measured, so that two forecasts on a busy machine cannot be compared.
    assert forecast_seconds(jobs, tmp_path, replace(one_worker, workers=2)) > 0


def test_the_forecast_waits_for_what_a_job_needs():
    jobs = [Job("a", 0, ()), Job("b", 0, (), needs=("a",)), Job("c", 0, ()), Job("d", 0, ())]
    costs = {"a": 3.0, "b": 4.0, "c": 1.0, "d": 1.0}  # given, not measured
    assert schedule(jobs, costs, 1) == 9
    assert schedule(jobs, costs, 2) == 7  # c and d run next to a, then b alone
    assert schedule(jobs, costs, 9) == 7
    assert schedule([], {}, 2) == 0

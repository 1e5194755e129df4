from dataclasses import replace

import pytest
import torch

from tests.benchmark.embedded_jobs import jobs_of
from unibct.benchmark import forecast
from unibct.benchmark.forecast import RunConditions, forecast_seconds, schedule, trial_rate
from unibct.benchmark.jobs import Job
from unibct.data.readers.table import open_images
from unibct.data.scenarios import split
from unibct.files import write_json


def test_the_forecast_counts_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "trial_rate", lambda *_: 100.0)  # given, not measured
    jobs = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])
    one_worker = RunConditions(
        workers=1, threads=1, device=torch.device("cpu"), classes=10, test_images=100, scores=0
    )
    one = forecast_seconds(jobs, tmp_path, one_worker)
    labels = open_images("glyphs:train").labels
    parts = split(labels, "open-class")
    assert sum(job.work for job in jobs) == 6 * (len(parts.old) + len(parts.new))
    trained = [job for job in jobs if job.training is not None]
    work = sum(job.work + 100 / 3 for job in trained)  # to embed is a third of a training step
    assert one == pytest.approx(work / 100.0)
    two = forecast_seconds(jobs, tmp_path, replace(one_worker, workers=2))
    assert 0 < two < one


def test_what_is_measured_again_takes_the_time_of_its_tests(tmp_path):
    jobs = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])
    for job in jobs:
        content = {"architecture": "resnet-small", "cost": {"images_per_second": 1.0}}
        write_json(tmp_path / job.folder / "result.json", content)
    one_worker = RunConditions(
        workers=1, threads=1, device=torch.device("cpu"), classes=10, test_images=100, scores=10**6
    )
    assert forecast_seconds(jobs, tmp_path, one_worker) == 0
    again = forecast_seconds(jobs, tmp_path, one_worker, again=jobs)
    assert again == pytest.approx(1 + 1 + 7)  # two models' self tests, and a cell
    assert forecast_seconds(jobs, tmp_path, one_worker, again=jobs[:1]) == pytest.approx(1)


def test_a_rate_is_measured_on_a_few_steps():
    recipe = jobs_of(seeds=[0], scenarios=["open-class"], methods=["none"], chain=[])[0]
    assert recipe.training is not None
    small = recipe.training.recipe.updated(batch_size=2)
    assert trial_rate(small, 10, 1, torch.device("cpu"), steps=6) > 0


def test_the_forecast_waits_for_what_a_job_needs():
    jobs = [Job("a", 0, ()), Job("b", 0, (), needs=("a",)), Job("c", 0, ()), Job("d", 0, ())]
    costs = {"a": 3.0, "b": 4.0, "c": 1.0, "d": 1.0}  # given, not measured
    assert schedule(jobs, costs, 1) == 9
    assert schedule(jobs, costs, 2) == 7  # c and d run next to a, then b alone
    assert schedule(jobs, costs, 9) == 7
    assert schedule([], {}, 2) == 0

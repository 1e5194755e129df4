import json
import shutil
from dataclasses import replace

import pytest

from unibct.benchmark.execution import run_job
from unibct.benchmark.model_origins import model_elsewhere, require_model_origins
from unibct.benchmark.result_reading import read_results
from unibct.errors import UserError
from unibct.models.folder import load_model

OLD, FREE = "models/old-classes-seed0", "models/free-open-class-seed0"
TRAINED, MAPPED = (f"cells/open-class/{method}/seed0" for method in ("unibct-plus", "procrustes"))


@pytest.fixture
def trained_again(finished, tmp_path):
    """A copy of a finished benchmark, and a function that replaces one of its models."""
    source, out = finished[0].workspace.out, tmp_path / "copy"
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("cache"))

    def train_again(folder):
        shutil.rmtree(out / folder)
        shutil.copytree(source / folder.replace("seed0", "seed1"), out / folder)

    return out, train_again


def job_of(benchmark, folder):
    return next(job for job in benchmark.jobs if job.folder == folder)


def test_a_model_is_not_measured_with_another_old_model_than_its_own(finished, trained_again):
    benchmark, (out, train_again) = finished[0], trained_again
    workspace = replace(benchmark.workspace, out=out, measure_again=True)
    for job in benchmark.jobs:
        require_model_origins(out, job)
    train_again(OLD)
    for folder in (TRAINED, MAPPED):
        before = (out / folder / "result.json").read_bytes()
        with pytest.raises(UserError, match=rf"another model.*{OLD}.*; remove .*{folder} and run"):
            run_job(workspace, job_of(benchmark, folder))
        assert (out / folder / "result.json").read_bytes() == before
    none = job_of(benchmark, "cells/open-class/none/seed0")
    run_job(workspace, none)  # it has no model of its own


def test_a_map_is_not_measured_beside_another_free_model_than_its_own(finished, trained_again):
    out, train_again = trained_again
    train_again(FREE)
    require_model_origins(out, job_of(finished[0], TRAINED))
    with pytest.raises(UserError, match=f"another model than the one that {FREE} has now"):
        require_model_origins(out, job_of(finished[0], MAPPED))


def test_each_version_of_a_chain_belongs_to_the_one_before(finished, trained_again):
    out, train_again = trained_again
    second, third = (job_of(finished[0], f"chains/unibct-plus/seed0/v{v}") for v in (2, 3))
    train_again("models/old-images-seed0")
    require_model_origins(out, third)
    with pytest.raises(UserError, match=f"remove .*{second.folder} and run"):
        require_model_origins(out, second)
    train_again(second.folder)
    with pytest.raises(UserError, match=f"remove .*{third.folder} and run"):
        require_model_origins(out, third)


def test_a_report_refuses_a_cell_that_was_tested_with_another_old_model(finished, trained_again):
    """An earlier version measured such cells."""
    benchmark, (out, train_again) = finished[0], trained_again
    train_again(OLD)
    current = json.loads((out / OLD / "result.json").read_text())["fingerprint"]
    for path in (out / "cells/open-class").rglob("seed0/result.json"):
        result = json.loads(path.read_text())
        for name in ("new→old", "blend→old"):
            result["tests"][name]["fingerprints"][1] = current
        path.write_text(json.dumps(result))
    with pytest.raises(UserError, match=f"remove .*{TRAINED} and run the benchmark again"):
        read_results(benchmark.workspace.grid, benchmark.jobs, out)


def test_a_model_for_another_old_model_is_not_taken_but_made_anew(finished, tmp_path):
    benchmark, _ = finished
    source = benchmark.workspace.out
    workspace = replace(benchmark.workspace, out=tmp_path, models_from=source)
    trained, mapped, free = (job_of(benchmark, name) for name in (TRAINED, MAPPED, FREE))
    assert model_elsewhere(workspace, trained) == source / TRAINED  # the old one will be taken too
    shutil.copytree(source / "models/old-classes-seed1", tmp_path / OLD)  # trained here
    assert model_elsewhere(workspace, trained) is None
    assert model_elsewhere(workspace, mapped) is None
    assert model_elsewhere(workspace, free) == source / FREE
    run_job(workspace, free)
    run_job(workspace, mapped)
    old, adapted = (load_model(tmp_path / name / "model") for name in (OLD, MAPPED))
    assert adapted.old_fingerprint == old.fingerprint
    stored = json.loads((tmp_path / MAPPED / "result.json").read_text())
    assert "measured_again_by" not in stored

import numpy as np
import pytest

from tests.benchmark.embedded_jobs import jobs_of
from unibct.benchmark.grid import make_grid
from unibct.benchmark.jobs import (
    cell_folder,
    make_jobs,
    select_jobs,
    share_warmups,
    training_rows,
    version_folder,
)
from unibct.data.readers import open_images
from unibct.data.scenarios import split
from unibct.errors import UserError
from unibct.maps import MAPS
from unibct.methods import METHODS
from unibct.training.recipe import load_recipe

ALL_METHODS = [*METHODS, *MAPS]


def test_five_scenarios_share_two_old_and_four_free_models():
    jobs = jobs_of(seeds=[3], chain=[])
    models = [job.folder for job in jobs if job.folder.startswith("models/")]
    names = "old-images free-all free-open-data old-classes free-open-class free-identical-data"
    assert models == [f"models/{name}-seed3" for name in names.split()]
    cells = [job.folder.split("/")[1:3] for job in jobs if job.folder.startswith("cells/")]
    assert len(cells) == 5 * 8 - 2
    assert ["open-class", "bct"] not in cells
    assert ["extended-class", "bct"] not in cells


@pytest.mark.slow
def test_every_job_comes_after_those_it_needs_and_trains_on_its_scenarios_images():
    labels = open_images("glyphs:train").labels
    seen = set()
    for job in jobs_of(seeds=[0, 1], methods=ALL_METHODS):
        assert {*job.needs, *job.after} <= seen
        seen.add(job.folder)
        if job.training is not None and job.folder.startswith("cells/"):
            scenario = job.folder.split("/")[1]
            rows = training_rows(labels, job.training.part, job.seed)
            assert np.array_equal(rows, split(labels, scenario, seed=666 + job.seed).new)
            assert job.training.recipe.seed == 2 * job.seed + 1
            larger = scenario == "identical-data"
            assert ("wide" in job.training.recipe.architecture) == larger
    assert len([f for f in seen if f.startswith("cells/open-data/")]) == 2 * len(ALL_METHODS)


def test_versions_of_a_chain_learn_from_nested_images_against_the_one_before():
    labels = open_images("glyphs:train").labels
    chain = {j.folder: j for j in jobs_of(scenarios=["open-data"], methods=["none"], seeds=[0])}
    second, third = chain["chains/unibct/seed0/v2"], chain["chains/unibct/seed0/v3"]
    assert second.training.old == "models/old-images-seed0"
    assert third.training.old == second.folder
    first = split(labels, "extended-data", seed=666).old
    middle = training_rows(labels, second.training.part, 0)
    assert set(first) < set(middle) < set(training_rows(labels, third.training.part, 0))
    assert len(training_rows(labels, third.training.part, 0)) == len(labels)
    assert len({chain[f].training.recipe.seed for f in (second.needs[0], *third.needs)}) == 2
    assert [name for name, *_ in third.tests] == ["v3→v1", "v1→v3", "v3→v2", "v2→v3", "v3→v3"]


def test_only_takes_what_it_names_and_what_that_needs():
    jobs = jobs_of()
    chosen = [job.folder for job in select_jobs(jobs, ["open-class/unibct"])]
    assert "cells/open-class/unibct/seed2" in chosen
    assert "models/old-classes-seed2" in chosen
    assert len(chosen) == 2 * 3, "the free models are not needed"
    assert len(select_jobs(jobs, ["open-class/none"])) == 3 * 3
    assert len(select_jobs(jobs, ["chains"])) == 3 * (1 + 2 * 2)
    assert select_jobs(jobs, []) == jobs
    with pytest.raises(UserError, match="only closed: this benchmark has no such cell"):
        select_jobs(jobs, ["closed"])


def test_too_few_classes_for_a_scenario_are_refused_at_planning(glyph_classes):
    few = glyph_classes.select(np.flatnonzero(glyph_classes.labels < 5))
    with pytest.raises(UserError, match="has 5 classes to train on: too few for open-class"):
        make_jobs(make_grid(scenarios=["open-class"]), few)
    assert make_jobs(make_grid(scenarios=["open-data"], chain=[]), few)


def test_a_cell_with_a_warm_up_waits_for_the_free_models():
    jobs = {job.folder: job for job in jobs_of(methods=["unibct", "lce"], seeds=[0], chain=[])}
    assert jobs["cells/open-class/unibct/seed0"].after == ("models/free-open-class-seed0",)
    assert jobs["cells/open-class/lce/seed0"].after == ()


def test_a_cell_whose_warm_up_nobody_else_makes_waits_for_none():
    def cell(method, *settings):
        recipe = load_recipe("glyphs", settings)
        jobs = jobs_of(recipe=recipe, methods=[method], seeds=[0], chain=[])
        return next(j for j in jobs if j.folder == f"cells/open-class/{method}/seed0")

    whole = cell("lce").work
    for alone in (cell("unibct", "warmup_epochs=0"), cell("unibct-plus@warmup_epochs=2")):
        assert (alone.after, alone.work, alone.warmup_work) == ((), whole, 0)
    # A resnet50 has other blocks than a resnet18: it cannot start from the old weights.
    chosen = {"methods": ["unibct-plus@warmup_epochs=2"], "scenarios": ["identical-data"]}
    recipe = load_recipe("glyphs", ["architecture=resnet18"])
    jobs = jobs_of(recipe=recipe, **chosen, seeds=[0], chain=[])
    assert jobs[-1].after == ("models/free-identical-data-seed0",)
    cold = cell("unibct-plus@warmup_epochs=2", "warm_start=false")
    assert cold.after == ("models/free-open-class-seed0",)
    assert cold.work + cold.warmup_work == whole


def test_without_the_free_model_one_cell_makes_the_warm_up_and_the_others_wait():
    """Extended-data and extended-class share their free model, and so the warm-up."""
    scenarios = ["extended-data", "extended-class", "open-class"]
    methods = ["none", "unibct-centroid", "unibct", "lce"]
    jobs = jobs_of(methods=methods, scenarios=scenarios, seeds=[0, 1], chain=[])
    chosen = select_jobs(jobs, ["unibct-centroid", "unibct", "lce"])
    folders = {job.folder for job in chosen}
    shared = share_warmups(chosen, folders)
    assert [job.folder for job in shared] == [job.folder for job in chosen]
    for before, job in zip(chosen, shared, strict=True):
        if not before.after:
            assert job == before
            continue
        seed = f"seed{before.seed}"
        scenario = "open-class" if "open-class" in job.folder else "extended-data"
        maker = f"cells/{scenario}/unibct-centroid/{seed}"
        free = next(j for j in jobs if j.folder == before.after[0])
        if job.folder == maker:
            assert (job.after, job.work) == ((), free.work), "it trains all epochs"
        else:
            assert (job.after, job.work) == ((maker,), before.work)
            assert before.work < free.work
    # The free model makes the warm-up: it was trained before, or is trained now.
    assert share_warmups(chosen, folders | {j.folder for j in jobs}) == chosen
    assert share_warmups(jobs, {j.folder for j in jobs}) == jobs


def test_a_variant_has_a_folder_of_its_own_whatever_its_settings():
    names = ("unibct", "unibct@warmup_epochs=0,eta=0.5", "unibct@weights=runs/old")
    folders = [cell_folder("open-class", name, 0) for name in names]
    assert folders[1] == "cells/open-class/unibct@warmup_epochs=0,eta=0.5/seed0"
    assert len(set(folders)) == 3
    assert all(folder.count("/") == 3 for folder in folders)
    assert version_folder("unibct@eta=2", 0, 2) == "chains/unibct@eta=2/seed0/v2"


@pytest.mark.parametrize("architecture", ["resnet-small", "resnet18"])
def test_a_warm_start_is_for_new_models_that_can_have_the_old_weights(architecture):
    settings = ["warm_start=true", f"architecture={architecture}"]
    recipe = load_recipe("glyphs", settings)
    jobs = {job.folder: job for job in jobs_of(recipe=recipe, seeds=[0])}
    warm = {f for f, job in jobs.items() if job.training and job.training.recipe.warm_start}
    assert "cells/open-class/unibct/seed0" in warm
    assert "chains/unibct/seed0/v2" in warm
    assert not any(f.startswith("models/") for f in warm)
    grows = architecture == "resnet-small"  # a resnet50 has other blocks than a resnet18
    assert ("cells/identical-data/unibct/seed0" in warm) == grows
    cold = load_recipe("glyphs", [*settings, "warm_start=false"])
    for job in jobs_of(recipe=cold, seeds=[0], scenarios=["identical-data"]):
        if job.folder.startswith("cells/") and job.training is not None:
            assert job.training.recipe.warm_start is False
    # Nobody shares the warm-up of such a run.
    assert jobs["cells/open-class/unibct/seed0"].work == jobs["models/free-open-class-seed0"].work


def test_the_work_of_a_job_counts_the_epochs_that_steps_ask_for():
    recipe = load_recipe("glyphs", ["steps=10000"])
    chosen = {"seeds": [0], "scenarios": ["extended-data"], "methods": ["unibct"], "chain": []}
    few, many = ({j.folder: j for j in jobs_of(recipe=r, **chosen)} for r in (None, recipe))
    images = few["models/old-images-seed0"].work // 6
    epochs = -(-10_000 // (images // 64))
    assert many["models/old-images-seed0"].work == epochs * images
    cells = [jobs["cells/extended-data/unibct/seed0"].work for jobs in (few, many)]
    assert cells[1] > cells[0]

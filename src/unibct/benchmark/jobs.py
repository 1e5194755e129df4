"""The jobs of a benchmark. Each trains at most one model and runs some tests.

This module decides which jobs a grid needs, in which order, and in which folders their results
are. Jobs that need the same model share it: the five scenarios have two old models and four free
models in all.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from unibct.benchmark import VERSIONS
from unibct.benchmark.grid import Grid
from unibct.data.image_set import ImageSet
from unibct.data.scenarios import (
    DEFAULT_SEED,
    SCENARIOS,
    nested_split,
    split,
)
from unibct.errors import UserError
from unibct.evaluation.search_test import CROSS, NEW_SELF, OLD_SELF, Direction
from unibct.maps import MAPS
from unibct.methods import NO_METHOD, find_method
from unibct.training.plan import recipe_of_variant, upgrade_recipes, with_enough_epochs
from unibct.training.recipe import Recipe


@dataclass(frozen=True)
class Training:
    """How a job trains its model."""

    part: str  # of the training images, as a name for ``training_rows``
    recipe: Recipe  # with the seed and the architecture
    method: str = NO_METHOD
    old: str | None = None  # folder of the job that trains the old model


@dataclass(frozen=True)
class MapFitting:
    """How a job maps the embeddings of another job's model into the old space."""

    kind: str  # a name from ``MAPS``
    part: str  # the training images on which the map is fitted, as a name for ``training_rows``
    new: str  # folder of the job whose model is mapped
    old: str  # folder of the job that trains the old model


class JobTest(NamedTuple):
    """A test that a job runs."""

    name: str  # its direction, such as ``new→old``
    query: str  # folder of the job with the query embeddings
    gallery: str  # folder of the job with the gallery embeddings


@dataclass(frozen=True)
class Job:
    """One folder of the benchmark, and how to fill it."""

    folder: str  # where the results go; its name says what the job is
    seed: int  # chooses the split and the initial weights
    tests: tuple[JobTest, ...]
    training: Training | None = None  # None if it trains no model
    map_fitting: MapFitting | None = None  # None if it maps no other job's model
    needs: tuple[str, ...] = ()  # folders of the jobs that must be finished first
    # Folders of jobs whose warm-up it can take over. If they run too, it waits for them.
    after: tuple[str, ...] = ()
    work: int = 0  # images that go through training, or that take the same time
    warmup_work: int = 0  # images of the warm-up that it takes over


def training_rows(labels: NDArray[np.int64], part: str, seed: int) -> NDArray[np.int64]:
    """Return the rows of a part of the training images, whose (images,) classes are ``labels``.

    The part is ``old:SCENARIO`` or ``new:SCENARIO``, a side of the seed's split, or ``share:X``, a
    share of each class's images.
    """
    side, _, choice = part.partition(":")
    if side == "share":
        return nested_split(labels, float(choice), seed=DEFAULT_SEED + seed)
    sides = split(labels, choice, seed=DEFAULT_SEED + seed)
    return sides.old if side == "old" else sides.new


def make_jobs(grid: Grid, images: ImageSet) -> list[Job]:
    """Return all jobs of a grid, seed by seed, each job after those that it needs."""
    jobs: dict[str, Job] = {}
    for seed in grid.seeds:
        for scenario in grid.scenarios:
            for job in _scenario_jobs(grid, images, scenario, seed):
                jobs.setdefault(job.folder, job)
        for method in grid.chain_methods:
            for job in _chain_jobs(grid, images, method, seed):
                jobs.setdefault(job.folder, job)
    return list(jobs.values())


def select_jobs(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """Return the jobs that ``only`` names, together with the jobs that they need.

    A name is a scenario, a method, both as ``open-class/unibct``, or ``chains``: each of its
    parts must be a part of the job's folder. No names mean all jobs.
    """
    if not only:
        return list(jobs)
    by_folder = {job.folder: job for job in jobs}
    selected: set[str] = set()
    for name in only:
        parts = set(name.split("/"))
        matching = [job.folder for job in jobs if parts <= set(job.folder.split("/"))]
        if not matching:
            raise UserError(
                f"only {name}: this benchmark has no such cell; write one of its scenarios, one "
                "of its methods, or both as in open-class/unibct (bct has no cell where the new "
                "set has new classes)"
            )
        selected.update(matching)
    unchecked = list(selected)
    while unchecked:
        needs = set(by_folder[unchecked.pop()].needs) - selected
        selected |= needs
        unchecked += needs
    return [job for job in jobs if job.folder in selected]


def share_warmups(jobs: Sequence[Job], trained: Collection[str]) -> list[Job]:
    """Return the jobs so that one makes the warm-up that others take over, if no free model does.

    ``trained`` are the folders of the jobs whose model is trained in this benchmark, now or before.
    """
    makers: dict[tuple[str, ...], str] = {}
    shared: list[Job] = []
    for job in jobs:
        if job.after and job.folder in trained and not set(job.after) & set(trained):
            maker = makers.setdefault(job.after, job.folder)
            if maker == job.folder:
                job = replace(job, after=(), work=job.work + job.warmup_work, warmup_work=0)
            else:
                job = replace(job, after=(maker,))
        shared.append(job)
    return shared


def old_folder(scenario: str, seed: int) -> str:
    """Return the folder of the old model; the data scenarios share one, as do the class ones."""
    return f"models/old-{SCENARIOS[scenario].sample}-seed{seed}"


def free_folder(scenario: str, seed: int) -> str:
    """Return the folder of the free model, trained on the new set without compatibility."""
    new_set = "all" if SCENARIOS[scenario].new == "all" else scenario
    return f"models/free-{new_set}-seed{seed}"


def cell_folder(scenario: str, method: str, seed: int) -> str:
    """Return the folder of a cell: one method in one scenario with one seed."""
    return f"cells/{scenario}/{safe_name(method)}/seed{seed}"


def safe_name(method: str) -> str:
    """Return a method's name as the name of a file; a setting of a variant may hold a ``/``."""
    return quote(method, safe="@=,+[]")


def version_folder(method: str, seed: int, version: int) -> str:
    """Return the folder of a version in an upgrade chain.

    The first version is the old model of the data scenarios.
    """
    if version == 1:
        return old_folder("extended-data", seed)
    return f"chains/{safe_name(method)}/seed{seed}/v{version}"


def chain_test(query: int, gallery: int) -> str:
    """Return the name of the test between two versions of a chain, such as ``v3→v1``."""
    return Direction(f"v{query}", f"v{gallery}")


def _scenario_jobs(grid: Grid, images: ImageSet, scenario: str, seed: int) -> list[Job]:
    """Return the jobs of one scenario and seed: the old model, the free model and the cells."""
    sides = split(images.labels, scenario, seed=DEFAULT_SEED + seed)
    classes = [_classes(images, rows) for rows in (sides.old, sides.new)]
    if min(map(len, classes)) < 2:
        raise UserError(
            f"{grid.data} has {len(images.class_names)} classes to train on: too few for "
            f"{scenario}, whose {'old' if len(classes[0]) < 2 else 'new'} set would have one"
        )
    old_recipe, new_recipe = upgrade_recipes(grid.recipe, scenario, seed)
    free = free_folder(scenario, seed)
    free_training = Training(f"new:{scenario}", new_recipe.updated(warm_start=None))
    work = _work(new_recipe, len(sides.new))
    jobs = [
        _old_job(scenario, seed, old_recipe, len(sides.old)),
        Job(free, seed, (JobTest(NEW_SELF, free, free),), free_training, work=work),
    ]
    jobs += [
        _cell_job(scenario, method, seed, new_recipe, len(sides.new))
        for method in grid.methods
        if method == NO_METHOD or method in MAPS or _works_in(method, *classes)
    ]
    return jobs


def _old_job(scenario: str, seed: int, recipe: Recipe, images: int) -> Job:
    """Return the job of the old model, which has this recipe and number of training images."""
    folder, training = old_folder(scenario, seed), Training(f"old:{scenario}", recipe)
    tests = (JobTest(OLD_SELF, folder, folder),)
    return Job(folder, seed, tests, training, work=_work(recipe, images))


def _cell_job(scenario: str, method: str, seed: int, recipe: Recipe, images: int) -> Job:
    """Return the job of one cell; the new model has this recipe and number of training images."""
    cell = cell_folder(scenario, method, seed)
    old, free = old_folder(scenario, seed), free_folder(scenario, seed)
    if method == NO_METHOD:
        tests = (JobTest(CROSS, free, old), JobTest(NEW_SELF, free, free))
        return Job(cell, seed, tests, needs=(old, free))
    if method in MAPS:
        tests = (JobTest(CROSS, cell, old), JobTest(NEW_SELF, free, free))
        map_fitting = MapFitting(method, f"new:{scenario}", free, old)
        # Two models embed the new set, and a forward pass is a third of a training step.
        work = 2 * images // 3
        return Job(cell, seed, tests, map_fitting=map_fitting, needs=(old, free), work=work)
    tests = (JobTest(CROSS, cell, old), JobTest(NEW_SELF, cell, cell))
    training = Training(f"new:{scenario}", recipe, method, old)
    entry = find_method(method)
    recipe = recipe_of_variant(method, recipe)
    recipe_used = with_enough_epochs(recipe, images)
    epochs, warmup_epochs, after = recipe_used.epochs, 0, ()
    warm_starts = entry.warm_starts if recipe.warm_start is None else recipe.warm_start
    if entry.has_warmup and recipe_used.warmup_epochs and not warm_starts:
        # The warm-up is the same in the free model and all such methods: jobs share its result.
        warmup_epochs, after = min(epochs, recipe_used.warmup_epochs), (free,)
    return Job(
        cell,
        seed,
        tests,
        training,
        needs=(old,),
        after=after,
        work=(epochs - warmup_epochs) * images,
        warmup_work=warmup_epochs * images,
    )


def _work(recipe: Recipe, images: int) -> int:
    """Return how many images go through a training on a set of this many images."""
    return with_enough_epochs(recipe, images).epochs * images


def _classes(images: ImageSet, rows: NDArray[np.int64]) -> list[str]:
    return [images.class_names[label] for label in np.unique(images.labels[rows])]


def _works_in(method: str, old_classes: Sequence[str], new_classes: Sequence[str]) -> bool:
    """Return whether a method can train on these classes (``bct`` cannot if some are new)."""
    try:
        find_method(method).check_classes(old_classes, new_classes)
    except UserError:
        return False
    return True


def _chain_jobs(grid: Grid, images: ImageSet, method: str, seed: int) -> list[Job]:
    """Return the jobs of an upgrade chain.

    The first version learns from 30 % of each class's images, the second from 65 % and the third
    from all. A version runs every test between itself and the versions before it.
    """
    first_recipe, last_recipe = upgrade_recipes(grid.recipe, "extended-data", seed)
    folders = [version_folder(method, seed, version) for version in VERSIONS]
    first_rows = training_rows(images.labels, "old:extended-data", seed)
    jobs = [_old_job("extended-data", seed, first_recipe, len(first_rows))]
    second_recipe = last_recipe.updated(seed=2000 + 2 * seed)
    for version, share, recipe in ((2, 0.65, second_recipe), (3, 1.0, last_recipe)):
        folder, earlier = folders[version - 1], tuple(folders[: version - 1])
        tests: list[JobTest] = []
        for number, other in enumerate(earlier, start=1):
            tests.append(JobTest(chain_test(version, number), folder, other))
            tests.append(JobTest(chain_test(number, version), other, folder))
        tests.append(JobTest(chain_test(version, version), folder, folder))
        training = Training(f"share:{share}", recipe, method, earlier[-1])
        work = _work(recipe, len(training_rows(images.labels, training.part, seed)))
        jobs.append(Job(folder, seed, tuple(tests), training, needs=earlier, work=work))
    return jobs

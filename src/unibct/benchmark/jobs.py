"""The jobs of a benchmark: each trains at most one model and makes some tests.

Jobs that need the same model share it: the old models of the five scenarios are two, and the free
models four.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.benchmark.plan import Grid
from unibct.data.image_set import ImageSet
from unibct.data.scenarios import DEFAULT_FRACTION, DEFAULT_SEED, SCENARIOS, nested_split, split
from unibct.errors import UserError
from unibct.evaluation.directions import CROSS, NEW_SELF, OLD_SELF, direction_of
from unibct.maps.adapter import ADAPTERS
from unibct.methods import NO_METHOD, find_method
from unibct.training.plan import upgrade_recipes
from unibct.training.recipe import Recipe


@dataclass(frozen=True)
class Training:
    """How a job's model is trained.

    Attributes:
        images: which images of the training set, for ``training_rows``.
        recipe: with seed and architecture.
        method: a name from ``METHODS``.
        old: the job whose model is the old one.
    """

    images: str
    recipe: Recipe
    method: str = NO_METHOD
    old: str | None = None


@dataclass(frozen=True)
class Adaptation:
    """How a job's queries come from another job's model: by a map into the old space.

    Attributes:
        kind: a name from ``ADAPTERS``.
        images: on which it is fitted, for ``training_rows``.
        new: the job whose model is mapped.
        old: the job into whose model's space.
    """

    kind: str
    images: str
    new: str
    old: str


@dataclass(frozen=True)
class Job:
    """One folder of the benchmark.

    Attributes:
        folder: where its results go; says what it is.
        seed: of split and weights.
        tests: name, query job and gallery job of each test it makes.
        training: how its model is trained; None if it takes another job's.
        adapter: how another job's embeddings become its own.
        needs: jobs that come first.
        work: images through training, or as many as take the same time.
    """

    folder: str
    seed: int
    tests: tuple[tuple[str, str, str], ...]
    training: Training | None = None
    adapter: Adaptation | None = None
    needs: tuple[str, ...] = ()
    work: int = 0


def training_rows(labels: NDArray[np.int64], images: str, seed: int) -> NDArray[np.int64]:
    """The rows of the training set that ``images`` names: old:SCENARIO, new:SCENARIO or share:X."""
    side, _, which = images.partition(":")
    if side == "share":
        return nested_split(labels, float(which), seed=DEFAULT_SEED + seed)
    parts = split(labels, which, seed=DEFAULT_SEED + seed)
    return parts.old if side == "old" else parts.new


def make_jobs(grid: Grid, images: ImageSet) -> list[Job]:
    """All jobs of a grid, each after those it needs; seed by seed."""
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
    """The jobs that ``only`` names (a scenario, a method, both as a/b, a chain), with their needs.

    Each part of a name must be a part of a job's folder: ``open-class/unibct``, ``chains``.
    """
    if not only:
        return list(jobs)
    by_folder = {job.folder: job for job in jobs}
    wanted: set[str] = set()
    for name in only:
        parts = set(name.split("/"))
        found = [job.folder for job in jobs if parts <= set(job.folder.split("/"))]
        if not found:
            raise UserError(
                f"--only {name}: this benchmark has no such cell; write one of its scenarios, one "
                "of its methods, or both as in open-class/unibct (bct has no cell where the new "
                "set has new classes)"
            )
        wanted.update(found)
    waiting = list(wanted)
    while waiting:
        needs = set(by_folder[waiting.pop()].needs) - wanted
        wanted |= needs
        waiting += needs
    return [job for job in jobs if job.folder in wanted]


def old_folder(scenario: str, seed: int) -> str:
    """The old model's job: one for the data scenarios, one for the class scenarios."""
    return f"models/old-{SCENARIOS[scenario].sample}-seed{seed}"


def free_folder(scenario: str, seed: int) -> str:
    """The free model's job: trained on the scenario's new set without compatibility."""
    new_set = "all" if SCENARIOS[scenario].new == "all" else scenario
    return f"models/free-{new_set}-seed{seed}"


def cell_folder(scenario: str, method: str, seed: int) -> str:
    """A cell's job."""
    return f"cells/{scenario}/{method}/seed{seed}"


def version_folder(method: str, seed: int, version: int) -> str:
    """The job of a version in an upgrade chain; the first one is the data scenarios' old model."""
    if version == 1:
        return old_folder("extended-data", seed)
    return f"chains/{method}/seed{seed}/v{version}"


def chain_test(query: int, gallery: int) -> str:
    """Return the name of the test between two versions of a chain, such as ``v3→v1``."""
    return direction_of(f"v{query}", f"v{gallery}")


def _scenario_jobs(grid: Grid, images: ImageSet, scenario: str, seed: int) -> list[Job]:
    parts = split(images.labels, scenario, seed=DEFAULT_SEED + seed)
    classes = [_classes(images, rows) for rows in (parts.old, parts.new)]
    if min(map(len, classes)) < 2:
        raise UserError(
            f"{grid.data} has {len(images.class_names)} classes to train on: too few for "
            f"{scenario}, whose {'old' if len(classes[0]) < 2 else 'new'} set would have one"
        )
    old_recipe, new_recipe = upgrade_recipes(grid.recipe, scenario, seed)
    old, free = old_folder(scenario, seed), free_folder(scenario, seed)
    new_work = new_recipe.epochs * len(parts.new)
    after_warmup = max(new_recipe.epochs - new_recipe.warmup_epochs, 0) * len(parts.new)
    jobs = [
        Job(
            old,
            seed,
            ((OLD_SELF, old, old),),
            Training(f"old:{scenario}", old_recipe),
            work=old_recipe.epochs * len(parts.old),
        ),
        Job(
            free,
            seed,
            ((NEW_SELF, free, free),),
            Training(f"new:{scenario}", new_recipe.updated(warm_start=False)),
            work=new_work,
        ),
    ]
    for method in grid.methods:
        cell = cell_folder(scenario, method, seed)
        needs = (old, free)
        if method == NO_METHOD:
            tests = ((CROSS, free, old), (NEW_SELF, free, free))
            jobs.append(Job(cell, seed, tests, needs=needs))
        elif method in ADAPTERS:
            tests = ((CROSS, cell, old), (NEW_SELF, free, free))
            adapter = Adaptation(method, f"new:{scenario}", free, old)
            # Two models embed the new set: a forward pass is a third of a training step.
            work = 2 * len(parts.new) // 3
            jobs.append(Job(cell, seed, tests, adapter=adapter, needs=needs, work=work))
        elif _works_in(method, *classes):
            training = Training(f"new:{scenario}", new_recipe, method, old)
            shares = find_method(method).has_warmup and not new_recipe.warm_start
            tests = ((CROSS, cell, old), (NEW_SELF, cell, cell))
            work = after_warmup if shares else new_work
            jobs.append(Job(cell, seed, tests, training, needs=needs, work=work))
    return jobs


def _classes(images: ImageSet, rows: NDArray[np.int64]) -> list[str]:
    return [images.class_names[label] for label in np.unique(images.labels[rows])]


def _works_in(method: str, old_classes: Sequence[str], new_classes: Sequence[str]) -> bool:
    """Whether a method can be used with these training sets (``bct`` cannot with new classes)."""
    try:
        find_method(method).check_classes(old_classes, new_classes)
    except UserError:
        return False
    return True


def _chain_jobs(grid: Grid, images: ImageSet, method: str, seed: int) -> list[Job]:
    """v1 knows 30 % of each class's images, the last version all, the others equal steps between.

    A version makes every test with itself on either side.
    """
    first_recipe, last_recipe = upgrade_recipes(grid.recipe, "extended-data", seed)
    folders = [version_folder(method, seed, v) for v in range(1, grid.versions + 1)]
    first_rows = training_rows(images.labels, "old:extended-data", seed)
    jobs = [
        Job(
            folders[0],
            seed,
            ((OLD_SELF, folders[0], folders[0]),),
            Training("old:extended-data", first_recipe),
            work=first_recipe.epochs * len(first_rows),
        )
    ]
    for version in range(2, grid.versions + 1):
        step = (version - 1) / (grid.versions - 1)
        share = round(DEFAULT_FRACTION + step * (1 - DEFAULT_FRACTION), 6)
        recipe = last_recipe
        if version < grid.versions:
            recipe = last_recipe.updated(seed=1000 * version + 2 * seed)
        own, before = folders[version - 1], folders[: version - 1]
        tests = [
            pair
            for number, other in enumerate(before, start=1)
            for pair in (
                (chain_test(version, number), own, other),
                (chain_test(number, version), other, own),
            )
        ]
        tests.append((chain_test(version, version), own, own))
        rows = training_rows(images.labels, f"share:{share}", seed)
        jobs.append(
            Job(
                own,
                seed,
                tuple(tests),
                Training(f"share:{share}", recipe, method, before[-1]),
                needs=tuple(before),
                work=recipe.epochs * len(rows),
            )
        )
    return jobs

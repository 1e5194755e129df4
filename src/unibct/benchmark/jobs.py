"""What a benchmark runs: scenarios × methods × seeds and upgrade chains, as jobs.

A job trains at most one model and makes some tests. Jobs that need the same model share it: the
old models of the five scenarios are two, and the free models four.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.data.readers.table import open_images
from unibct.data.scenarios import (
    DEFAULT_FRACTION,
    DEFAULT_SEED,
    SCENARIOS,
    find_scenario,
    nested_split,
    split,
)
from unibct.errors import UserError
from unibct.maps.table import ADAPTERS
from unibct.methods.table import ABLATIONS, METHODS, NO_METHOD, find_method
from unibct.models.architectures.table import find_architecture
from unibct.progress import Progress
from unibct.training.plan import require_epochs_left, upgrade_recipes
from unibct.training.recipe import Recipe, load_recipe

PAPER_METHODS = ("none", "regress", "contrast", "bct", "unibct-centroid", "unibct-drop", "unibct")
DEFAULT_METHODS = (*PAPER_METHODS, "unibct-plus")
ALL_METHODS = (*METHODS, *ADAPTERS)
DEFAULT_SEEDS = (0, 1, 2)
QUICK_SCENARIOS = ("extended-data", "open-class")
CHAIN_METHODS = ("unibct", "unibct-plus")
VERSIONS = 3
HELD_OUT = 0.3  # share of the classes that are tested where no test set is given
CLASSES_NEEDED = 10  # of which they are held out

OLD_SELF = "old→old"
CROSS = "new→old"
NEW_SELF = "new→new"


@dataclass(frozen=True)
class Grid:
    """What is compared, on which images, by which recipe.

    Attributes:
        data: the training images, as ``open_images`` takes them.
        test: the test images; None holds out a part of the classes of ``data``.
        recipe: every number of the trainings.
        scenarios: names from ``SCENARIOS``.
        methods: names from ``METHODS`` and ``ADAPTERS``.
        seeds: each chooses a split and initial weights.
        chain_methods: the methods with which a chain of versions is trained.
        versions: how many models an upgrade chain has.
        skip_bad: leave unreadable images out instead of refusing.
    """

    data: str
    test: str | None
    recipe: Recipe
    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    chain_methods: tuple[str, ...] = CHAIN_METHODS
    versions: int = VERSIONS
    skip_bad: bool = False

    def __post_init__(self) -> None:
        """Refuse bad names before any work."""
        for name in self.scenarios:
            find_scenario(name)
        for name in (*self.methods, *self.chain_methods):
            if name in ADAPTERS:
                continue
            if name not in (*METHODS, *ABLATIONS):
                raise UserError(
                    f"unknown method {name!r}; choose some of {', '.join(ALL_METHODS)}, or paper, "
                    "or all"
                )
            require_epochs_left(name, self.recipe)
        for name in self.chain_methods:
            if name in (*ADAPTERS, NO_METHOD):
                raise UserError(f"{name} trains no compatible model: it makes no upgrade chain")
        if not self.seeds or min(self.seeds) < 0:
            raise UserError(f"seeds are numbers from 0 up, not {list(self.seeds)}")
        if self.recipe.seed is not None:
            raise UserError(
                f"the recipe's seed = {self.recipe.seed} would be the same in every trial: leave "
                "it out, and give the trials' seeds with --seeds"
            )

    def settings(self) -> dict[str, Any]:
        """What every result of a folder has in common."""
        return {"recipe": self.recipe.model_dump(mode="json"), "versions": self.versions}

    def open(self, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
        """The training images and the test images, whose classes differ."""
        images = self._open(self.data, progress)
        if self.test is not None:
            test = self._open(self.test, progress)
            common = set(images.class_names) & set(test.class_names)
            if common:
                raise UserError(
                    f"{self.data} and {self.test} have {len(common)} classes in common, first "
                    f"{min(common)!r}: the test classes must be ones that no model has seen"
                )
            return images, test
        if len(images.class_names) < CLASSES_NEEDED:
            raise UserError(
                f"{self.data} has {len(images.class_names)} classes; to hold some out for the "
                f"tests takes at least {CLASSES_NEEDED}: give test images of other classes "
                "with --test"
            )
        parts = split(images.labels, "open-class", fraction=HELD_OUT, seed=DEFAULT_SEED)
        return images.select(parts.new), images.select(parts.old)

    def _open(self, name: str, progress: Progress | None) -> ImageSet:
        images = open_images(name)
        if not self.skip_bad:
            return images
        size = find_architecture(self.recipe.architecture).input.size
        return read_pixels(images, *size, skip_bad=True, memory=0, progress=progress).images


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


def make_grid(
    data: str = "glyphs:train",
    *,
    test: str | None = None,
    recipe: Recipe | None = None,
    quick: bool = False,
    scenarios: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    chain: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> Grid:
    """Settle a benchmark; what is not given takes its default (``quick``: the smaller one)."""
    if test is None and data == "glyphs:train":
        test = "glyphs:test"
    chosen: list[str] = []
    for name in methods or DEFAULT_METHODS:
        chosen += {"all": ALL_METHODS, "paper": PAPER_METHODS}.get(name, (name,))
    if chain is None:
        chain = () if quick else CHAIN_METHODS
    return Grid(
        data,
        test,
        recipe or load_recipe(),
        tuple(dict.fromkeys(scenarios)) or (QUICK_SCENARIOS if quick else tuple(SCENARIOS)),
        tuple(dict.fromkeys(chosen)),
        tuple(dict.fromkeys(seeds)) or (DEFAULT_SEEDS[:1] if quick else DEFAULT_SEEDS),
        tuple(dict.fromkeys(chain)),
        skip_bad=skip_bad,
    )


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


def pair_name(query: int, gallery: int) -> str:
    """The name of a test between two versions of a chain."""
    return f"v{query}→v{gallery}"


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
                (pair_name(version, number), own, other),
                (pair_name(number, version), other, own),
            )
        ]
        tests.append((pair_name(version, version), own, own))
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

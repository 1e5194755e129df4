"""What a benchmark compares: scenarios, methods and seeds, on which images, by which recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.data.readers.table import open_images
from unibct.data.scenarios import DEFAULT_SEED, SCENARIOS, find_scenario, split
from unibct.errors import UserError
from unibct.maps.table import ADAPTERS
from unibct.methods.table import ABLATIONS, METHODS, NO_METHOD
from unibct.models.architectures.table import find_architecture
from unibct.progress import Progress
from unibct.training.plan import require_epochs_left
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
            common = set(images.class_identities) & set(test.class_identities)
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

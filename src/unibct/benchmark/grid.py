"""What a benchmark compares: its scenarios, methods and seeds, its images and its recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unibct.benchmark import CHAIN_METHODS, DEFAULT_METHODS, VERSIONS
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.data.readers import open_images
from unibct.data.scenarios import SCENARIOS, hold_out
from unibct.errors import UserError
from unibct.maps import MAPS
from unibct.methods import METHODS, NO_METHOD, find_method
from unibct.registry import Registry
from unibct.training.default_recipe import recipe_for
from unibct.training.network import recipe_input
from unibct.training.plan import require_epochs_left
from unibct.training.recipe import Recipe

DEFAULT_SEEDS = (0, 1, 2)
QUICK_SCENARIOS = ("extended-data", "open-class")
HELD_OUT = 0.3  # share of the classes that are kept for testing if there is no test set
CLASSES_NEEDED = 10  # fewer classes are not enough to hold some out


@dataclass(frozen=True)
class Grid:
    """What is compared, on which images and with which recipe."""

    data: str  # the training images, as a name for ``open_images``
    test: str | None  # the test images; None: some of the classes of ``data`` are held out
    recipe: Recipe  # every number of the training runs
    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    methods: tuple[str, ...] = DEFAULT_METHODS  # methods, such as unibct@warmup_epochs=0, and maps
    seeds: tuple[int, ...] = DEFAULT_SEEDS  # each chooses a split and initial weights
    chain_methods: tuple[str, ...] = CHAIN_METHODS  # those that train an upgrade chain
    skip_bad: bool = False  # leave unreadable images out instead of refusing
    # Images of other classes, on which each cell chooses how it blends queries and merges scores.
    # None: the midpoint, and raw scores.
    validation: str | None = None

    def __post_init__(self) -> None:
        """Raise an error for a bad name or number before any work is done."""
        for name in self.scenarios:
            SCENARIOS.find(name)
        for name in self.methods:
            if name not in MAPS:
                Registry("method", {**METHODS, **MAPS}).find(name.partition("@")[0])
                find_method(name)
        for name in self.chain_methods:
            if name in (*MAPS, NO_METHOD):
                raise UserError(f"{name} trains no compatible model: it makes no upgrade chain")
            find_method(name)
        for name in dict.fromkeys((*self.methods, *self.chain_methods)):
            if name not in MAPS:
                require_epochs_left(name, self.recipe)
        if not self.seeds or min(self.seeds) < 0:
            raise UserError(f"seeds are numbers from 0 up, not {list(self.seeds)}")
        if self.recipe.seed is not None:
            raise UserError(
                f"the recipe's seed = {self.recipe.seed} would be the same in every trial: leave "
                "it out, and give the seeds of the trials as seeds"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings that all results of one folder share."""
        return {"recipe": self.recipe.model_dump(mode="json"), "versions": len(VERSIONS)}

    def open(self) -> tuple[ImageSet, ImageSet]:
        """Return the training images and the test images. They have no class in common."""
        images = self._open(self.data)
        if self.test is not None:
            test = self._open(self.test)
            _require_other_classes(
                (self.data, images), (self.test, test), "the test classes must be ones"
            )
            return images, test
        if len(images.class_names) < CLASSES_NEEDED:
            raise UserError(
                f"{self.data} has {len(images.class_names)} classes; to hold some out for "
                f"testing takes at least {CLASSES_NEEDED}: give test images of other classes "
                "as test"
            )
        parts = hold_out(images.labels, HELD_OUT)
        return images.select(parts.train), images.select(parts.test)

    def open_validation(self, training: ImageSet, test: ImageSet) -> ImageSet | None:
        """Return the validation images, if any. They have no class in common with the others."""
        if self.validation is None:
            return None
        images = self._open(self.validation)
        for name, others in ((self.data, training), (self.test or self.data, test)):
            _require_other_classes(
                (name, others),
                (self.validation, images),
                "the validation classes must be others, and ones",
            )
        return images

    def _open(self, name: str) -> ImageSet:
        images = open_images(name, skip_bad=self.skip_bad)
        if not self.skip_bad:
            return images
        frame = recipe_input(self.recipe).frame
        return read_pixels(images, frame, memory=0).images


def _require_other_classes(
    first: tuple[str, ImageSet], second: tuple[str, ImageSet], wanted: str
) -> None:
    """Refuse two sets, each with its name, that have classes in common."""
    common = set(first[1].class_identities) & set(second[1].class_identities)
    if common:
        raise UserError(
            f"{first[0]} and {second[0]} have {len(common)} classes in common, first "
            f"{min(common)!r}: {wanted} that no model has seen"
        )


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
    validation: str | None = None,
) -> Grid:
    """Return the grid of a benchmark. Whatever is not given has its default.

    Args:
        data: the training images, as a name for ``open_images``.
        test: the test images; by default ``glyphs:test`` for the embedded images, else some
            held-out classes of ``data``.
        recipe: every number of the training runs; by default the shipped recipe that
            fits ``data``, see ``recipe_for``.
        quick: use smaller defaults: two scenarios, one seed, no upgrade chain.
        scenarios: names from ``SCENARIOS``; by default all.
        methods: methods, such as ``unibct`` or ``unibct@warmup_epochs=0``, and names from
            ``MAPS``; by default the paper's methods and ``unibct-plus``.
        seeds: each chooses a split and initial weights; by default 0, 1 and 2.
        chain: methods that train an upgrade chain; by default ``unibct`` and ``unibct-plus``.
        skip_bad: leave unreadable images out instead of refusing.
        validation: images of other classes, on which each cell chooses how it blends queries and
            merges scores.
    """
    for option, names in (("methods", methods), ("scenarios", scenarios), ("chain", chain)):
        if isinstance(names, str):
            raise UserError(f"{option} is a list of names, such as [{names!r}], not one text")
    if test is None and data == "glyphs:train":
        test = "glyphs:test"
    if chain is None:
        chain = () if quick else CHAIN_METHODS
    return Grid(
        data,
        test,
        recipe or recipe_for(open_images(data)),
        tuple(dict.fromkeys(scenarios)) or (QUICK_SCENARIOS if quick else tuple(SCENARIOS)),
        tuple(dict.fromkeys(methods)) or DEFAULT_METHODS,
        tuple(dict.fromkeys(seeds)) or (DEFAULT_SEEDS[:1] if quick else DEFAULT_SEEDS),
        tuple(dict.fromkeys(chain)),
        skip_bad=skip_bad,
        validation=validation,
    )

"""The recipe that fits the images: for someone who names none, and for finished vectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unibct import progress
from unibct.data.decoding import DEFAULT_FIT
from unibct.data.image_set import ImageSet
from unibct.data.survey import Survey, survey
from unibct.training import PHOTOGRAPHS, SMALL_COLOUR, SMALL_GREY
from unibct.training.network import recipe_architecture, recipe_input
from unibct.training.recipe import Recipe, load_recipe

# In pixels of the shorter side, median of the sample.
LARGEST_SMALL = 64  # larger images are photographs
_LARGEST_FOR_32 = 48  # above, 32×32 would lose too much of a small coloured image


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe that fits an image set."""

    name: str  # of a shipped recipe
    settings: tuple[str, ...]  # what is changed in it to fit, each as ``key=value``
    survey: Survey  # what the choice is based on

    @property
    def options(self) -> str:
        """The options of the command line that choose the same."""
        return " ".join([f"--recipe {self.name}", *(f"--set {text}" for text in self.settings)])

    def load(self, overrides: Sequence[str] = ()) -> Recipe:
        """Load the recipe; ``overrides`` replace its own settings.

        The recipe's input is for its own network. If the user names one that is made for larger
        images, its own size and channels are taken, and if it comes from another library or the
        user, all that it says about its images, unless the user names them too.
        """
        recipe = load_recipe(self.name, [*self.settings, *overrides])
        named = {text.partition("=")[0].strip() for text in overrides}
        if recipe.size is None or "architecture" not in named:
            return recipe
        architecture, settings = recipe_architecture(recipe), {"size", "channels"}
        native_input = architecture.input
        if architecture.config is not None:
            settings |= set() if native_input.fit == DEFAULT_FIT else {"fit"}
        elif native_input.height * native_input.width <= math.prod(recipe.size):
            return recipe
        return recipe.updated(**dict.fromkeys(settings - named))

    def line(self, recipe: Recipe) -> str:
        """Say in one line what was chosen, why, and how to change it; ``load`` gave the recipe."""
        seen, spec = self.survey, recipe_input(recipe, recipe_architecture(recipe))
        kind = "colour" if seen.colour else "grey"
        size = f"{seen.height}×{seen.width}" if seen.looked_at else "unreadable"
        return (
            f"{' with '.join([f'recipe {self.name}', *self.settings])} ("
            f"{recipe.architecture} on {spec.height}×{spec.width} "
            f"{'grey' if spec.channels == 1 else 'colour'}): {seen.images:,} {kind} images, "
            f"median {size}, of {seen.classes:,} classes, median {seen.per_class:g} each; "
            "name another recipe, or change settings (KEY=VALUE)"
        )


def choose_recipe(images: ImageSet) -> RecipeChoice:
    """Look at a sample of the images, and return the shipped recipe that fits them."""
    seen = survey(images)
    if seen.side > LARGEST_SMALL:
        return RecipeChoice(PHOTOGRAPHS, () if seen.colour else ("channels=1",), seen)
    if not seen.colour:
        return RecipeChoice(SMALL_GREY, (), seen)
    return RecipeChoice(SMALL_COLOUR, ("size=64",) if seen.side > _LARGEST_FOR_32 else (), seen)


def recipe_for(
    images: ImageSet,
    overrides: Sequence[str] = (),
) -> Recipe:
    """Return the shipped recipe that fits a sample of the images.

    Args:
        images: the training set.
        overrides: settings that replace the recipe's, each written ``key=value``.
    """
    if images.vector_dim is not None:
        given = load_recipe(SMALL_GREY, overrides)
        recipe = fitted_recipe(given, images)
        unused = unused_settings(given, recipe, load_recipe(SMALL_GREY))
        if unused is not None:
            progress.note(unused)
        progress.note(
            f"recipe {SMALL_GREY} with architecture {recipe.architecture}: {len(images):,} "
            f"finished vectors of dimension {images.vector_dim}; name another "
            "recipe, or change settings (KEY=VALUE)"
        )
        return recipe
    choice = choose_recipe(images)
    recipe = choice.load(overrides)
    progress.note(choice.line(recipe))
    return recipe


# What a recipe becomes for finished vectors instead of images.

VECTOR_NETWORKS = ("projection", "projection-mlp")


def fitted_recipe(recipe: Recipe, images: ImageSet) -> Recipe:
    """Return the recipe as it is for images; for vectors, with a network that takes them.

    Everything that changes images at random is off, and a network for images is replaced by
    ``projection``.
    """
    if images.vector_dim is None:
        return recipe
    is_for_vectors = recipe.architecture in VECTOR_NETWORKS
    return recipe.updated(
        architecture=recipe.architecture if is_for_vectors else VECTOR_NETWORKS[0],
        size=(1, images.vector_dim),
        channels=1,
        fit=None,
        mean=None,
        deviation=None,
        shift=0,
        flip=False,
        crop=0.0,
        colour=0.0,
        augment=None,
    )


def unused_settings(given: Recipe, fitted: Recipe, usual: Recipe | None = None) -> str | None:
    """Say which settings of a recipe have no effect on finished vectors; None if all have.

    ``fitted`` is what ``fitted_recipe`` has made of it. The ``usual`` recipe's own settings need no
    mention.
    """
    used, defaults = fitted.model_dump(), {} if usual is None else usual.model_dump()
    unused = [
        f"{name} = {value}"
        for name, value in given.model_dump().items()
        if value != used[name] and value is not None and value != defaults.get(name)
    ]
    if not unused:
        return None
    return f"settings for images are not used on finished vectors: {', '.join(unused)}"

"""What a training run is: all that determines its result, settled and checked before it begins."""

import hashlib
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from unibct.data.image_set import ImageSet
from unibct.data.scenarios import SCENARIOS
from unibct.errors import UserError
from unibct.methods.table import DEFAULT_METHOD, NO_METHOD, find_method
from unibct.models.architectures.table import find_architecture
from unibct.models.model import Model
from unibct.training.recipe import AFTER_WARMUP, Recipe


@dataclass(frozen=True)
class Run:
    """What determines a training run's result."""

    images: ImageSet
    recipe: Recipe
    method: str
    old_fingerprint: str | None

    def described(self) -> dict[str, Any]:
        """Plain values: kept with each checkpoint and model, and compared on resuming."""
        return {
            "method": self.method,
            "images": len(self.images),
            "classes": len(self.images.class_names),
            "old_model": self.old_fingerprint,
            "recipe": self.recipe.model_dump(mode="json"),
            "unibct": metadata.version("unibct"),
        }

    @property
    def begin(self) -> int:
        """The epoch from which the method is at work."""
        return self.recipe.warmup_epochs if find_method(self.method).has_warmup else 0

    def refreshes_at(self, epoch: int) -> bool:
        """Whether the method renews what depends on the new model at the beginning of ``epoch``."""
        return epoch == self.begin or (epoch > self.begin and epoch in self.recipe.refresh_epochs)

    def warmup_digest(self, pixels: str) -> str | None:
        """Names the state at the end of the warm-up, which runs that differ later have in common.

        None if there is no warm-up, or if it begins from the old model's weights.
        """
        recipe = self.recipe
        if self.begin == 0 or recipe.warm_start:
            return None
        common = recipe.model_dump(mode="json", exclude=set(AFTER_WARMUP))
        return _digest([pixels, common, metadata.version("unibct")])

    @property
    def digest(self) -> str:
        """Names the run before any image is read; a folder of another one is found out later."""
        return _digest([self.images.digest, self.described()])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def plan_run(
    images: ImageSet, recipe: Recipe, *, old: Model | None = None, method: str | None = None
) -> Run:
    """Settle method and dimension, and refuse what cannot work, before anything is written."""
    name = method or (NO_METHOD if old is None else DEFAULT_METHOD)
    entry = find_method(name)
    if entry.needs_old_model and old is None:
        raise UserError(f"method {name} needs the old model: give --old MODEL")
    architecture = find_architecture(recipe.architecture)
    dim = recipe.dim or (old.dim if old is not None else architecture.dim)
    if entry.needs_old_model and old is not None:
        entry.check_classes(old.class_names, images.class_names)
        if dim != old.dim:
            raise UserError(
                f"the new model's dimension is {dim} but the old one's is {old.dim}: embeddings "
                "of different dimensions cannot be compared; leave dim out of the recipe"
            )
        require_epochs_left(name, recipe)
    if recipe.warm_start:
        _check_warm_start(recipe, dim, old)
    if len(images.class_names) < 2:
        raise UserError(f"{images.name} has one class only; training needs at least two")
    uses_old = entry.needs_old_model or recipe.warm_start
    used_old = old.fingerprint if uses_old and old is not None else None
    return Run(images, recipe.updated(dim=dim, seed=_seed(recipe, old)), name, used_old)


def require_epochs_left(method: str, recipe: Recipe) -> None:
    """Refuse a warm-up that never ends, for a method that waits for its end."""
    entry = find_method(method)
    waits = entry.needs_old_model and entry.has_warmup
    if waits and recipe.warmup_epochs >= recipe.epochs:
        raise UserError(
            f"warmup_epochs = {recipe.warmup_epochs} leaves none of {recipe.epochs} epochs "
            f"for the compatibility loss of {method}"
        )


def upgrade_recipes(recipe: Recipe, scenario: str, seed: int) -> tuple[Recipe, Recipe]:
    """The old and the new model's recipe in a trial with a given seed.

    The two start from different weights: from the same ones they would agree already. In
    identical-data the new network is larger, and cannot begin from the old one's weights.
    """
    old = recipe.updated(seed=2 * seed, warm_start=False)
    new = recipe.updated(seed=2 * seed + 1)
    if SCENARIOS[scenario].new == "same":
        larger = find_architecture(recipe.architecture).larger
        if larger is None:
            raise UserError(
                f"{scenario} needs a larger network than {recipe.architecture}, and none is known; "
                "name another architecture, or leave this scenario out"
            )
        # The same number of dimensions, or the two could not be compared.
        dim = recipe.dim or find_architecture(recipe.architecture).dim
        new = new.updated(architecture=larger, dim=dim, warm_start=False)
    return old, new


def _check_warm_start(recipe: Recipe, dim: int, old: Model | None) -> None:
    if old is None:
        raise UserError("warm_start begins from the old model's weights: give --old MODEL")
    if old.adapter is not None:
        raise UserError(
            "warm_start begins from a network, but the old model is an adapted one: its network's "
            "own embeddings are not those of its gallery; leave warm_start out"
        )
    if recipe.architecture != old.architecture:
        raise UserError(
            f"warm_start needs the same architecture, but the old model is a {old.architecture} "
            f"and the new one a {recipe.architecture}; leave warm_start out"
        )
    if dim != old.dim:
        raise UserError(
            f"warm_start needs the same dimension, but the old model has {old.dim} and the recipe "
            f"says dim = {dim}; leave dim out"
        )


def _seed(recipe: Recipe, old: Model | None) -> int:
    """The recipe's seed; by default one that the old model was not trained with.

    From the same initial weights two models agree before anything makes them compatible.
    """
    if recipe.seed is not None:
        return recipe.seed
    return 0 if old is None else int(old.training.get("recipe", {}).get("seed", 0)) + 1


def require_same_run(kept: dict[str, Any], wanted: dict[str, Any], out: Path) -> None:
    """Refuse to go on with a run that was another one, and name what differs."""
    ours = {**{f"recipe.{k}": v for k, v in wanted["recipe"].items()}, **wanted}
    theirs = {**{f"recipe.{k}": v for k, v in kept.get("recipe", {}).items()}, **kept}
    differing = [key for key, value in ours.items() if key != "recipe" and theirs.get(key) != value]
    if differing:
        key = differing[0]
        raise UserError(
            f"{out} holds another run: its {key} is {theirs.get(key)!r}, not {ours[key]!r}; "
            "choose another --out or remove it"
        )

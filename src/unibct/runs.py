"""What a training run is: all that determines its result, settled and checked before it begins."""

import hashlib
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from unibct.data.sets import ImageSet
from unibct.errors import UserError
from unibct.methods import DEFAULT_METHOD, NO_METHOD, find_method
from unibct.models.architectures import find_architecture
from unibct.models.model import Model
from unibct.recipe import Recipe


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
    def digest(self) -> str:
        """Names the run before any image is read; a folder of another one is found out later."""
        text = json.dumps([self.images.digest, self.described()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


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
        if recipe.warmup_epochs >= recipe.epochs:
            raise UserError(
                f"warmup_epochs = {recipe.warmup_epochs} leaves none of {recipe.epochs} epochs "
                f"for the compatibility loss of {name}"
            )
    if len(images.class_names) < 2:
        raise UserError(f"{images.name} has one class only; training needs at least two")
    used_old = old.fingerprint if entry.needs_old_model and old is not None else None
    return Run(images, recipe.updated(dim=dim, seed=_seed(recipe, old)), name, used_old)


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

"""What a training run is: everything that determines its result, checked before it starts."""

import hashlib
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from unibct.data.image_set import ImageSet
from unibct.data.scenarios import SCENARIOS
from unibct.errors import UserError
from unibct.methods.table import DEFAULT_METHOD, NO_METHOD, MethodEntry, find_method
from unibct.models.architectures.table import find_architecture
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.training.length import with_enough_epochs
from unibct.training.network import network_digest, recipe_architecture, recipe_input
from unibct.training.recipe import AFTER_WARMUP, Recipe, with_flat_recipe
from unibct.training.user_augmentation import find_augment
from unibct.training.warm_start import starts_from_old

VERSION = "unibct"  # the key of a description whose value is the version


@dataclass(frozen=True)
class Run:
    """Everything that determines the result of a training run.

    Attributes:
        images: the training set.
        recipe: every number of the run, dimension and seed included.
        method: the compatibility method's name.
        old_fingerprint: of the old model, if the run uses one.
        network_digest: of what the recipe's words leave open, see ``network_digest``.
        projected_dim: the old model's dimension, if it is another one and the new model gets a
            projection into the old space.
    """

    images: ImageSet
    recipe: Recipe
    method: str
    old_fingerprint: str | None
    network_digest: str | None = None
    projected_dim: int | None = None

    def description(self) -> dict[str, Any]:
        """Return plain values to keep with checkpoints and models, and to compare on resuming."""
        values = {
            "method": self.method,
            "images": len(self.images),
            "classes": len(self.images.class_names),
            "old_model": self.old_fingerprint,
            "recipe": self.recipe.model_dump(mode="json"),
            VERSION: metadata.version("unibct"),
        }
        further = {"network": self.network_digest, "projected_dim": self.projected_dim}
        return values | {name: value for name, value in further.items() if value is not None}

    @property
    def dim(self) -> int:
        """The dimension of the embeddings."""
        assert self.recipe.dim is not None
        return self.recipe.dim

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        assert self.recipe.seed is not None
        return self.recipe.seed

    @property
    def method_start(self) -> int:
        """The first epoch in which the method is used."""
        return self.recipe.warmup_epochs if find_method(self.method).has_warmup else 0

    @property
    def first_usable_epoch(self) -> int:
        """The first epoch whose model is what was asked for: compatible, if there is an old one."""
        return self.method_start if find_method(self.method).needs_old_model else 0

    def refreshes_at(self, epoch: int) -> bool:
        """Return whether the method looks at the new model again at the start of ``epoch``."""
        start = self.method_start
        return epoch == start or (epoch > start and epoch in self.recipe.refresh_epochs)

    def warmup_digest(self, pixels_digest: str) -> str | None:
        """Return a name for the state at the end of the warm-up.

        Runs that differ only afterwards have the same name. None if there is no warm-up, or if it
        starts from the old model's weights.
        """
        recipe = self.recipe
        if self.method_start == 0 or recipe.warm_start:
            return None
        common = recipe.model_dump(mode="json", exclude={*AFTER_WARMUP, "warm_start"})
        network = [part for part in (self.network_digest, self.projected_dim) if part is not None]
        return _digest([pixels_digest, common, metadata.version("unibct"), *network])

    @property
    def digest(self) -> str:
        """A name for the run that needs no pixels, so it is known before any image is read."""
        return _digest([self.images.digest, self.description()])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def plan_run(
    images: ImageSet, recipe: Recipe, *, old: Embedder | None = None, method: str | None = None
) -> Run:
    """Choose what the recipe leaves open, and refuse what cannot work, before a file is written.

    Args:
        images: the training set.
        recipe: the numbers of the run; dimension and seed may be None. A small set gets more
            epochs if the recipe asks for a number of steps.
        old: the old model.
        method: a name from ``METHODS``; by default ``unibct-plus`` with ``old``, else ``none``.
    """
    name = method or (NO_METHOD if old is None else DEFAULT_METHOD)
    entry = find_method(name)
    if entry.needs_old_model and old is None:
        raise UserError(f"method {name} needs the old model: give --old MODEL (old=)")
    if recipe.augment is not None:
        find_augment(recipe.augment)
    architecture = recipe_architecture(recipe)
    recipe_input(recipe, architecture)  # refuses an input that no network can have
    dim = recipe.dim or (old.dim if old is not None else architecture.dim)
    if entry.needs_old_model and old is not None:
        _require_classifier(name, entry, old)
        if isinstance(old, Model):
            _check_classes(entry, old, images)
        if dim != old.dim and entry.needs_same_dim:
            raise UserError(
                f"the new model's dimension is {dim} but the old one's is {old.dim}, and {name} "
                "mixes their embeddings; choose another method, or leave dim out of the recipe"
            )
        require_epochs_left(name, recipe)  # more epochs leave as large a share of them
    warm_start = starts_from_old(recipe, entry, architecture, dim, old)
    if len(images.class_names) < 2:
        raise UserError(f"{images.name} has one class only; training needs at least two")
    uses_old = entry.needs_old_model or warm_start
    old_fingerprint = old.fingerprint if uses_old and old is not None else None
    length = with_enough_epochs(recipe, len(images))
    complete = length.updated(dim=dim, seed=run_seed(recipe, old), warm_start=warm_start)
    projected = old.dim if entry.needs_old_model and old is not None and dim != old.dim else None
    return Run(images, complete, name, old_fingerprint, network_digest(architecture), projected)


def unknown_identities(old: Model | ImageSet, images: ImageSet) -> str | None:
    """Say why it is unknown which old classes the training set has; None if it is known.

    Args:
        old: the old model, or its training set.
        images: the new training set.
    """
    if old.class_source == images.class_source:
        return None
    numbered = f"{images.name} only numbers its classes"
    if images.class_source is None:
        numbered = "the old model's training set only numbered its classes"
    return (
        f"{numbered}, and the other set is not the same file, so the same name need not be the "
        "same class; to say which are the same, give the classes names that are not mere numbers "
        "(labels, names of folders, or beside .rec and .tar files a classes.txt with a name per "
        "line), and train the old model with them"
    )


def _require_classifier(name: str, entry: MethodEntry, old: Embedder) -> None:
    """Refuse a method that uses the old classifier, if nothing but embeddings are known."""
    if entry.needs_old_classifier and not isinstance(old, Model):
        raise UserError(
            f"{name} uses the old model's classifier, which {old.name} does not have; choose a "
            f"method that needs only its embeddings, such as {DEFAULT_METHOD}"
        )


def _check_classes(entry: MethodEntry, old: Model, images: ImageSet) -> None:
    """Refuse classes that the method cannot handle, and say so if their identity is unknown."""
    try:
        entry.check_classes(old.class_identities, images.class_identities)
    except UserError as error:
        unknown = unknown_identities(old, images)
        if unknown is None:
            raise
        raise UserError(f"{error}; {unknown}") from error


def require_epochs_left(method: str, recipe: Recipe) -> None:
    """Refuse a warm-up that leaves no epoch for a method that waits for its end."""
    entry = find_method(method)
    waits = entry.needs_old_model and entry.has_warmup
    if waits and recipe.warmup_epochs >= recipe.epochs:
        raise UserError(
            f"warmup_epochs = {recipe.warmup_epochs} leaves none of {recipe.epochs} epochs "
            f"for the compatibility loss of {method}"
        )


def upgrade_recipes(recipe: Recipe, scenario: str, seed: int) -> tuple[Recipe, Recipe]:
    """Return the old and the new model's recipe for a trial with a given seed.

    The two start from different weights: from the same weights they would agree before any
    training. In identical-data the new network is larger.
    """
    old = recipe.updated(seed=2 * seed, warm_start=None)
    new = recipe.updated(seed=2 * seed + 1)
    if SCENARIOS[scenario].new == "same":
        architecture = recipe_architecture(recipe)
        larger = architecture.larger
        if larger is None:
            raise UserError(
                f"{scenario} needs a larger network than {recipe.architecture}, and none is known; "
                "name another architecture, or leave this scenario out"
            )
        # With different dimensions the two could not be compared.
        dim = recipe.dim or architecture.dim
        grows = recipe.architecture in find_architecture(larger).grows_from
        warm_start = recipe.warm_start if grows else False  # the old weights do not fit
        new = new.updated(architecture=larger, dim=dim, warm_start=warm_start)
    return old, new


def run_seed(recipe: Recipe, old: Embedder | None) -> int:
    """Return the recipe's seed; by default one more than the old model's.

    From the same initial weights two models would agree before anything makes them compatible.
    """
    if recipe.seed is not None:
        return recipe.seed
    if old is None:
        return 0
    old_recipe: dict[str, Any] = old.training.get("recipe", {}) if isinstance(old, Model) else {}
    return int(old_recipe.get("seed", 0)) + 1


def require_same_run(stored: dict[str, Any], planned: dict[str, Any], out: Path) -> None:
    """Refuse to continue a different run, and name the first value that differs.

    Another version of unibct is no difference: it knows what the earlier one's settings mean.

    Args:
        stored: the description that was found in ``out``.
        planned: the description of the run that is to continue there.
        out: the run's folder.
    """
    # A run of an earlier version knew fewer settings; the others had their defaults.
    defaults = _flat({"recipe": Recipe().model_dump(mode="json")})
    stored_values, planned_values = defaults | _flat(stored), _flat(planned)
    for key in _flat(stored):
        if key.startswith("recipe.") and key not in defaults | planned_values:
            raise UserError(
                f"{out} holds a run of another version of unibct: this one does not know its "
                f"{key}; go on with that version, or choose another --out"
            )
    for key, planned_value in planned_values.items():
        stored_value = stored_values.get(key)
        if stored_value != planned_value and key != VERSION:
            raise UserError(
                f"{out} holds another run: its {key} is {stored_value!r}, not {planned_value!r}; "
                "choose another --out or remove it"
            )


def _flat(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description with the recipe's entries as ``recipe.KEY``, before the others.

    The share of classes that are set aside follows them; runs of earlier versions have none.
    """
    validation: dict[str, Any] = description.get("validation", {})
    plain = {"validation": validation.get("share", 0.0)}
    plain |= {key: value for key, value in description.items() if key != "validation"}
    settings = {f"validation.{key}": value for key, value in validation.items()}
    return with_flat_recipe(plain) | settings

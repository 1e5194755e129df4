"""The plan of a run: everything that determines its result, checked before a file is written.

What is asked for (``TrainOptions``) and the recipe leave some things open: the number of epochs,
the classes to set aside, whether to start from the old weights, dimension and seed. ``plan_run``
chooses them. With the pixels and the processes the plan is a ``RunContext``, which stays the same
from the first step to the last.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches
from unibct.data.scenarios import SCENARIOS
from unibct.data.training_classes import (
    NO_CLASSES,
    SCORE_SCALE_MEASURED,
    UNKNOWN_CLASSES,
    TrainingClasses,
)
from unibct.distributed.ranks import Ranks
from unibct.errors import UserError
from unibct.methods import DEFAULT_METHOD, NO_METHOD, MethodEntry, find_method
from unibct.models.architectures import Architecture, find_architecture, without_library
from unibct.models.embedder import Embedder
from unibct.models.input import InputSpec
from unibct.models.model import Model
from unibct.training.network import (
    first_classes,
    network_digest,
    recipe_architecture,
    recipe_input,
)
from unibct.training.options import TrainOptions
from unibct.training.recipe import (
    AFTER_WARMUP,
    EARLIER_SETTINGS,
    Recipe,
    find_augment,
    with_flat_recipe,
)
from unibct.training.set_aside import SetAside, set_aside

# How long a training is: the steps of an epoch, and epochs enough for the recipe's steps.


def images_per_epoch(images: int, batch_size: int) -> int:
    """Return how many images an epoch uses.

    Only whole batches: a last batch of one or two images would upset batch normalisation. A set
    that is smaller than a batch is one small batch.
    """
    return images // batch_size * batch_size if images >= batch_size else images


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Return how many batches an epoch has."""
    return -(-images_per_epoch(images, batch_size) // batch_size)


def with_enough_epochs(recipe: Recipe, images: int) -> Recipe:
    """Return the recipe with enough epochs to train ``images`` for its least number of steps.

    If there are more epochs, everything that is written in epochs is stretched by the same
    factor: it happens at the same share of the training. A recipe that has enough is returned as
    it is, so this may be called again with its own result.
    """
    in_an_epoch = steps_per_epoch(images, recipe.batch_size)
    if recipe.steps is None or in_an_epoch * recipe.epochs >= recipe.steps:
        return recipe
    before, after = recipe.epochs, -(-recipe.steps // in_an_epoch)

    def stretched(epoch: int) -> int:
        # Half an epoch goes up. In integers: epochs that differ by one or more stay different.
        return (2 * epoch * after + before) // (2 * before)

    return recipe.updated(
        epochs=after,
        milestones=tuple(stretched(epoch) for epoch in recipe.milestones),
        warmup_epochs=stretched(recipe.warmup_epochs),
        refresh_epochs=tuple(stretched(epoch) for epoch in recipe.refresh_epochs),
        lr_warmup_epochs=recipe.lr_warmup_epochs * after / before,
    )


def length_note(given: Recipe, used: Recipe, images: int) -> str | None:
    """Say in a line why ``images`` are trained for more epochs than given; None if they are not."""
    if given.epochs == used.epochs:
        return None
    return (
        f"{used.epochs} epochs instead of {given.epochs}: {images:,} images are "
        f"{steps_per_epoch(images, given.batch_size):,} steps per epoch, and the recipe asks for "
        f"at least {given.steps:,} steps (change it with the setting steps=N)"
    )


# Whether a run starts from the old model's weights instead of random ones. A larger network of the
# same family can start from a smaller one: it grows from it.


def starts_from_old(
    recipe: Recipe,
    entry: MethodEntry,
    architecture: Architecture,
    dim: int,
    old: Embedder | None,
) -> bool | None:
    """Return whether training starts from the old weights; None if nobody asked for it.

    A recipe that asks for it gets it or an error. A method that starts so by itself does it
    only from the same or a smaller network of its family with the same input, and if no other
    first weights were chosen.
    """
    if recipe.warm_start is not None:
        obstacle = _obstacle(architecture, dim, old) if recipe.warm_start else None
        if obstacle is not None:
            raise UserError(f"warm_start {obstacle}")
        return recipe.warm_start
    if not entry.warm_starts:
        return None
    return (
        architecture.start is None
        and _obstacle(architecture, dim, old) is None
        and isinstance(old, Model)
        and recipe_input(recipe, architecture) == old.input
    )


def _obstacle(architecture: Architecture, dim: int, old: Embedder | None) -> str | None:
    """Say why training cannot start from the old weights, after "warm_start"; None if it can."""
    if old is None:
        return "begins from the old model's weights: give old"
    if not isinstance(old, Model):
        return (
            f"begins from the old model's weights, which {old.name} does not give; "
            "leave warm_start out"
        )
    if old.vector_map is not None:
        return (
            "begins from a network, but the old model is an adapted one: its network's "
            "own embeddings are not those of its gallery; leave warm_start out"
        )
    same = architecture.name == old.architecture
    same = same and without_library(architecture.config) == without_library(old.architecture_config)
    if not same and old.architecture not in architecture.grows_from:
        return (
            f"needs the same architecture, or one that can grow from it, but the old model is a "
            f"{old.architecture} and the new one a {architecture.name}; leave warm_start out"
        )
    if dim != old.dim:
        return (
            f"needs the same dimension, but the old model has {old.dim} and the recipe "
            f"says dim = {dim}; leave dim out"
        )
    return None


# The run.

VERSION = "unibct"  # the key of a description whose value is the version


@dataclass(frozen=True)
class Run:
    """Everything that determines the result of a training run."""

    images: ImageSet  # to train on, without the classes that are set aside
    recipe: Recipe  # every number, dimension and seed included
    method: str  # its name
    given: Recipe  # as the user gave it; a small set gets more epochs
    old: Embedder | None
    architecture: Architecture
    sets: SetAside  # the classes that are set aside
    first_classes: TrainingClasses  # what first weights and finished vectors have learnt from

    @cached_property
    def entry(self) -> MethodEntry:
        """What is known of the method."""
        return find_method(self.method)

    @cached_property
    def old_fingerprint(self) -> str | None:
        """That of the old model, if the run uses one."""
        is_used = self.entry.needs_old_model or self.recipe.warm_start
        return self.old.fingerprint if is_used and self.old is not None else None

    @cached_property
    def input(self) -> InputSpec:
        """The images that the network takes."""
        return recipe_input(self.recipe, self.architecture)

    @property
    def projected_dim(self) -> int | None:
        """The old dimension, if it is another one: there is a projection into the old space."""
        old = self.old if self.entry.needs_old_model else None
        return None if old is None or old.dim == self.dim else old.dim

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
        return self.recipe.warmup_epochs if self.entry.has_warmup else 0

    @property
    def first_usable_epoch(self) -> int:
        """The first epoch whose model is what was asked for: compatible, if there is an old one."""
        return self.method_start if self.entry.needs_old_model else 0

    def refreshes_at(self, epoch: int) -> bool:
        """Return whether the method looks at the new model again at the start of ``epoch``."""
        start = self.method_start
        return epoch == start or (epoch > start and epoch in self.recipe.refresh_epochs)

    def of(self, images: ImageSet) -> "Run":
        """Return the same run on fewer images: some turned out to be unreadable."""
        return replace(self, images=images, recipe=_complete(self.given, images, self.recipe))

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
        network = network_digest(self.architecture)
        further = {"network": network, "projected_dim": self.projected_dim}
        return values | {name: value for name, value in further.items() if value is not None}

    def warmup_digest(self, pixels_digest: str) -> str | None:
        """Return a name for the state at the end of the warm-up.

        Runs that differ only afterwards have the same name. None if there is no warm-up, or if it
        starts from the old model's weights.
        """
        recipe = self.recipe
        if self.method_start == 0 or recipe.warm_start:
            return None
        common = recipe.model_dump(mode="json", exclude={*AFTER_WARMUP, "warm_start"})
        network = (network_digest(self.architecture), self.projected_dim)
        parts = [pixels_digest, common, metadata.version("unibct")]
        return _digest(parts + [part for part in network if part is not None])

    @property
    def digest(self) -> str:
        """A name for the run that needs no pixels, so it is known before any image is read."""
        return _digest([self.images.digest, self.description()])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _complete(given: Recipe, images: ImageSet, chosen: Recipe) -> Recipe:
    """Return the recipe for these images, with what was chosen where the user left it open."""
    if len(images.class_names) < 2:
        raise UserError(f"{images.name} has one class only; training needs at least two")
    open_values = {name: getattr(chosen, name) for name in ("dim", "seed", "warm_start")}
    return with_enough_epochs(given, len(images)).updated(**open_values)


def plan_run(
    images: ImageSet,
    recipe: Recipe,
    *,
    old: Embedder | None = None,
    method: str | None = None,
    validation: float | None = 0.0,
    draws_from_all: bool = False,
) -> Run:
    """Choose what the recipe leaves open, and refuse what cannot work, before a file is written.

    Args:
        images: the training set.
        recipe: the numbers of the run; dimension and seed may be None. A small set gets more
            epochs if the recipe asks for a number of steps.
        old: the old model.
        method: as for ``find_method``; by default ``unibct-plus`` with ``old``, else ``none``.
        validation: the share of the classes to set aside, see ``set_aside``.
        draws_from_all: set classes aside as earlier versions did, whatever the first weights know.
    """
    name = method or (NO_METHOD if old is None else DEFAULT_METHOD)
    entry, recipe = find_method(name), recipe_of_variant(name, recipe)
    if entry.needs_old_model and old is None:
        raise UserError(f"method {name} needs the old model (old)")
    if recipe.augment is not None:
        find_augment(recipe.augment)
    architecture = recipe_architecture(recipe)
    recipe_input(recipe, architecture)  # refuses an input that no network can have
    dim = recipe.dim or (old.dim if old is not None else architecture.dim)
    if entry.needs_old_model and old is not None:
        if entry.needs_old_classifier and not isinstance(old, Model):
            raise UserError(
                f"{name} uses the old model's classifier, which {old.name} does not have; choose a "
                f"method that needs only its embeddings, such as {DEFAULT_METHOD}"
            )
        if dim != old.dim and entry.needs_same_dim:
            raise UserError(
                f"the new model's dimension is {dim} but the old one's is {old.dim}, and {name} "
                "mixes their embeddings; choose another method, or leave dim out of the recipe"
            )
        require_epochs_left(name, recipe)  # more epochs leave as large a share of them
    warm_start = starts_from_old(recipe, entry, architecture, dim, old)
    chosen = recipe.updated(dim=dim, seed=run_seed(recipe, old), warm_start=warm_start)
    first = old.training_classes if warm_start and old is not None else first_classes(chosen)
    learnt = first | (images.vectors_by or NO_CLASSES)
    learnt = learnt.without(SCORE_SCALE_MEASURED)  # the new model has its own, if any
    known = UNKNOWN_CLASSES if draws_from_all else learnt
    assert chosen.seed is not None
    sets = set_aside(images, validation, chosen.seed, None if learnt == NO_CLASSES else known)
    if entry.needs_old_model and isinstance(old, Model):
        _check_classes(entry, old, sets.training)
    complete = _complete(recipe, sets.training, chosen)
    return Run(sets.training, complete, name, recipe, old, architecture, sets, learnt)


def unknown_identities(old: Model | ImageSet, images: ImageSet) -> str | None:
    """Say why it is unknown which classes of ``images`` the old model or set has, else None."""
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


def _check_classes(entry: MethodEntry, old: Model, images: ImageSet) -> None:
    """Refuse classes that the method cannot handle, and say so if their identity is unknown."""
    try:
        entry.check_classes(old.class_identities, images.class_identities)
    except UserError as error:
        unknown = unknown_identities(old, images)
        if unknown is None:
            raise
        raise UserError(f"{error}; {unknown}") from error


def recipe_of_variant(method: str, recipe: Recipe) -> Recipe:
    """Return the recipe with what the method's name sets, such as ``unibct@warmup_epochs=0``."""
    return recipe.updated(**find_method(method).recipe)


def require_epochs_left(method: str, recipe: Recipe) -> None:
    """Refuse a warm-up that leaves no epoch for a method that waits for its end."""
    entry, recipe = find_method(method), recipe_of_variant(method, recipe)
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
    """Refuse to continue a different run in ``out``, and name the first value that differs.

    Both are descriptions. Another version of unibct is no difference: it knows what the earlier
    one's settings mean.
    """
    # A run of an earlier version knew fewer settings, or more; those had their defaults.
    defaults = _flat({"recipe": Recipe().model_dump(mode="json")})
    stored_values, planned_values = defaults | _flat(stored), _flat(planned)
    given_up = {f"recipe.{key}": value for key, value in EARLIER_SETTINGS.items()}
    for key, value in _flat(stored).items():
        if key in given_up and value == given_up[key]:
            continue
        if key.startswith("recipe.") and key not in defaults | planned_values:
            raise UserError(
                f"{out} holds a run of another version of unibct: this one does not know its "
                f"{key}; go on with that version, or choose another folder (out)"
            )
    for key, planned_value in planned_values.items():
        stored_value = stored_values.get(key)
        if stored_value != planned_value and key != VERSION:
            raise UserError(
                f"{out} holds another run: its {key} is {stored_value!r}, not {planned_value!r}; "
                "choose another folder (out) or remove it"
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


# A run with its pixels, on its processes.


@dataclass(frozen=True)
class RunContext:
    """A run's plan, images and place. All of it is fixed before the first step."""

    run: Run
    pixels: PixelBatches  # the training images, decoded
    device: torch.device  # where the network is trained
    ranks: Ranks  # the processes that share the run
    options: TrainOptions
    validation: PixelBatches | None = None  # of images whose classes are set aside

    @property
    def recipe(self) -> Recipe:
        """Every number of the run."""
        return self.run.recipe

    @cached_property
    def out(self) -> Path:
        """The model's folder."""
        return Path(self.options.out)

    @property
    def images(self) -> ImageSet:
        """The training images, without those that cannot be read."""
        return self.pixels.images

    @property
    def description(self) -> dict[str, Any]:
        """Plain values that tell this run from others, the pixels included."""
        described = self.run.description() | {"pixels": self.pixels.digest}
        if self.validation is not None:
            described["validation"] = self.run.sets.description(self.validation)
        return described

    @property
    def own_classes(self) -> range:
        """The classes whose weights this rank holds."""
        return self.ranks.share(len(self.images.class_names))

    @property
    def samples_classes(self) -> bool:
        """Whether a step uses only a sample of the classes."""
        return self.recipe.sample_rate < 1

    @cached_property
    def labels(self) -> Tensor:
        """(images,) the class of each training image, on the device."""
        return torch.from_numpy(self.images.labels).to(self.device)

    @property
    def images_per_epoch(self) -> int:
        """Images that an epoch uses."""
        return images_per_epoch(len(self.images), self.recipe.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(len(self.images), self.recipe.batch_size)

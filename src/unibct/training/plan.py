"""The options of ``train``, packed so that they travel together."""

import hashlib
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from unibct.arrays import Ints
from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches
from unibct.data.scenarios import SCENARIOS
from unibct.data.training_classes import TrainingClasses, identity_digests
from unibct.embeddings.recall import SAMPLE_IMAGES, sample_classes
from unibct.errors import UserError
from unibct.methods import DEFAULT_METHOD, NO_METHOD, MethodEntry, find_method
from unibct.models.architectures import Architecture, find_architecture, without_library
from unibct.models.embedder import Embedder
from unibct.models.model import Model
from unibct.training.network import network_digest, recipe_architecture, recipe_input
from unibct.training.recipe import AFTER_WARMUP, Recipe, find_augment, with_flat_recipe
from unibct.training.tracking import Tracker


@dataclass(frozen=True)
class TrainOptions:
    """The keyword arguments of ``train``, which describes each of them."""

    old: Embedder | None = None
    method: str | None = None
    resume: bool = False
    cache: Path | None = None
    device: str = "auto"
    workers: int | None = None
    checkpoint_every: int | None = None
    tensorboard: Path | None = None
    tracker: Tracker | None = None
    validation: float | None = None
    label: str = "training"


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
    """Return the recipe with enough epochs to train for at least ``recipe.steps`` steps.

    If there are more epochs, everything that is written in epochs is stretched by the same
    factor: it happens at the same share of the training. A recipe that has enough is returned as
    it is, so this may be called again with its own result.

    Args:
        recipe: as the user gave it.
        images: number of training images.
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
    """Say in a line why a training has more epochs than its recipe; None if it has not.

    Args:
        given: the recipe as the user gave it.
        used: what ``with_enough_epochs`` returned for it.
        images: number of training images.
    """
    if given.epochs == used.epochs:
        return None
    return (
        f"{used.epochs} epochs instead of {given.epochs}: {images:,} images are "
        f"{steps_per_epoch(images, given.batch_size):,} steps per epoch, and the recipe asks for "
        f"at least {given.steps:,} steps (change it with --set steps=N)"
    )


# Which classes a run sets aside: it never trains on them, and measures recall@1 on them.

AUTOMATIC_SHARE = 0.1
UNLEARNT = "unlearnt"  # in a description: earlier versions drew from all classes
_AUTOMATIC_CLASSES = 10  # with fewer, recall@1 says little: nothing is set aside by default
_LEFT_CLASSES = 2  # training needs two at least, and recall@1 as well


@dataclass(frozen=True)
class SetAside:
    """A data set in two parts without a class in common.

    Attributes:
        training: the images to train on.
        validation: the images to measure recall@1 on: whole classes of those that were set aside,
            ``SAMPLE_IMAGES`` at most. None if no class was set aside.
        share: the share of the classes that was asked for, 0 if none was set aside.
        classes: the number of classes that were set aside.
        images: the number of their images.
        unlearnt: whether they were drawn from those that the first weights have not learnt; None if
            the first weights are random.
    """

    training: ImageSet
    validation: ImageSet | None = None
    share: float = 0.0
    classes: int = 0
    images: int = 0
    unlearnt: bool | None = None


@dataclass(frozen=True)
class ValidationSet:
    """The validation images of a run.

    Attributes:
        pixels: of the images that recall@1 is measured on.
        source: how they were chosen.
    """

    pixels: PixelBatches
    source: SetAside

    def description(self) -> dict[str, Any]:
        """Return plain values that tell this validation set from others."""
        return {
            "share": self.source.share,
            "classes": self.source.classes,
            "images": self.source.images,
            "measured_images": len(self.pixels.images),
            "pixels": self.pixels.digest,
            **({UNLEARNT: True} if self.source.unlearnt else {}),
        }


def set_aside(
    images: ImageSet, share: float | None, seed: int, learnt: TrainingClasses | None = None
) -> SetAside:
    """Divide a data set into classes to train on and classes to measure on.

    A run that starts from trained weights measures on classes that these have not learnt, if there
    are enough: on half of those at most, because the others are what the new model can learn. Then
    fewer classes than the share may be set aside.

    Args:
        images: the data set.
        share: the share of the classes to set aside, from 0 to less than 1. None means 0.1 if
            that is enough classes with two images or more, else 0. For finished vectors None means
            0: they have no pixels to compare with.
        seed: chooses the classes.
        learnt: what the run's first weights have learnt from; None if they are random.
    """
    if share is None and images.vector_dim is not None:
        return SetAside(images)
    wanted = AUTOMATIC_SHARE if share is None else share
    if not 0 <= wanted < 1:
        raise UserError(
            f"validation = {wanted:g}: write the share of the classes to set aside, such as 0.1, "
            "or 0 for none"
        )
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    eligible = np.flatnonzero(sizes > 1)
    count = min(int(wanted * len(sizes) + 1e-9), len(eligible))
    if wanted == 0 or (share is None and count < _AUTOMATIC_CLASSES):
        return SetAside(images)
    if count < _LEFT_CLASSES or len(sizes) - count < _LEFT_CLASSES:
        raise UserError(
            f"validation = {wanted:g} sets {count} of the {len(sizes)} classes of {images.name} "
            f"aside ({len(eligible)} have two images or more): two classes are needed to measure "
            "on and two to train on; give another share, or 0 for none"
        )
    unlearnt = None
    if learnt is not None:
        others = classes_not_learnt(images, eligible, learnt)
        fewer = min(count, len(others) // 2)
        unlearnt = fewer >= min(count, _AUTOMATIC_CLASSES)
        if unlearnt:
            eligible, count = others, fewer
    chosen = np.random.default_rng([seed, 0, 0, 3]).permutation(eligible)[:count]
    is_chosen = np.isin(images.labels, chosen)
    rows = np.flatnonzero(is_chosen)
    measured = rows[sample_classes(images.labels[rows], SAMPLE_IMAGES, seed=seed)]
    return SetAside(
        images.select(np.flatnonzero(~is_chosen)),
        images.select(measured),
        wanted,
        count,
        len(rows),
        unlearnt,
    )


def classes_not_learnt(images: ImageSet, classes: Ints, learnt: TrainingClasses) -> Ints:
    """Return those of the classes that are known to be none of the learnt ones."""
    if not learnt.complete or not learnt.named_as(images.class_source):
        return classes[:0]
    identities = images.class_identities
    known = [bool(identity_digests([identities[int(c)]]) & learnt.digests) for c in classes]
    return classes[~np.array(known, dtype=bool)]


# Whether a run starts from the old model's weights instead of random ones.
#
# A larger network of the same family can start from a smaller one: it grows from it.


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
        return "begins from the old model's weights: give --old MODEL"
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


# What a training run is: everything that determines its result, checked before it starts.

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
        method: as for ``find_method``; by default ``unibct-plus`` with ``old``, else ``none``.
    """
    name = method or (NO_METHOD if old is None else DEFAULT_METHOD)
    entry, recipe = find_method(name), recipe_of_variant(name, recipe)
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

"""What advice rests on: the scenario, the old model's strength, and how fast this machine works."""

import csv
import tempfile
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.data.checked_set import scan_images
from unibct.data.decoding import Frame, Pixels
from unibct.data.image_set import ImageSet
from unibct.data.scenarios import SCENARIOS
from unibct.data.training_classes import identity_digests
from unibct.embeddings.recall import ModelRecall, model_recall, sample_classes
from unibct.embeddings.stored import StoredEmbeddings
from unibct.maps.vector_map import fit_vector_map
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.training.plan import unknown_identities
from unibct.training.recipe import Recipe
from unibct.training.run_folder import METRICS_FILE
from unibct.training.train import train


@dataclass(frozen=True)
class FoundScenario:
    """How a new training set relates to the old one."""

    # The scenarios that fit, from ``SCENARIOS``; several if the ids of the old images are needed to
    # tell them apart, none if it is not known which classes are the same.
    names: tuple[str, ...]
    why: str  # the reason in words
    old_classes: int | None  # number of classes of the old set; None if that is not known
    new_classes: int  # number of classes of the new set
    shared_classes: int | None  # number of classes that both have; None if that is not known

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "scenarios": list(self.names),
            "why": self.why,
            "old_classes": self.old_classes,
            "new_classes": self.new_classes,
            "shared_classes": self.shared_classes,
        }


def find_scenario_of(
    old_classes: Collection[str],
    new_classes: Collection[str],
    old_ids: Collection[str] | None,
    new_ids: Collection[str],
) -> FoundScenario:
    """Return the scenario of two training sets, by what tells each class from all others.

    ``old_ids``, of the old images, is None if only the old model is given.
    """
    old, new = set(old_classes), set(new_classes)
    shared, added = old & new, new - old
    if not shared:
        names, why = ("open-class",), "no class is in both sets"
    elif added and shared == old:
        names, why = ("extended-class",), f"{len(added):,} classes are new, and no old one is gone"
    elif added:
        names = ("open-class",)
        why = f"{len(added):,} classes are new and {len(old - new):,} old ones are gone"
    else:
        names, why = _same_classes(old_ids, new_ids)
    assert set(names) <= set(SCENARIOS)
    return FoundScenario(names, why, len(old), len(new), len(shared))


def _same_classes(
    old_ids: Collection[str] | None, new_ids: Collection[str]
) -> tuple[tuple[str, ...], str]:
    """Tell the scenarios without new classes apart by the images."""
    if old_ids is None:
        every = ("extended-data", "open-data", "identical-data")
        return every, "no class is new; give --old-data to tell whether the images are the same"
    old, new = set(old_ids), set(new_ids)
    shared = len(old & new)
    if old == new:
        return ("identical-data",), "the same images; give the new model a larger network"
    if shared == len(old):
        return ("extended-data",), f"all {shared:,} old images and {len(new) - shared:,} more"
    if shared == len(new):
        return ("open-data",), f"no new image: {shared:,} of the {len(old):,} old images"
    why = f"{len(new) - shared:,} other images of classes that are known"
    return ("open-data",), why + (f", and {shared:,} of the old images" if shared else "")


# What is known of the old model, whatever stands in its place: its classes and its strength.

STRENGTH_IMAGES = 500  # on which the old model is measured
_CLASSES_NEEDED = 10  # unseen classes, for a measurement on them alone
_BATCH = 64


def usable_images(old: Embedder, images: ImageSet) -> ImageSet:
    """Return the images that the old model can embed, or whose old embeddings are stored."""
    return old.known_images(images) if isinstance(old, StoredEmbeddings) else images


def unknown_classes(old: Embedder, images: ImageSet) -> str | None:
    """Say why it is unknown which classes of a set the old model has learnt; None if known."""
    if isinstance(old, Model):
        return unknown_identities(old, images)
    if not old.training_classes.complete:
        return f"which classes {old.name} was trained on is not recorded; give --old-data"
    if not old.training_classes.named_as(images.class_source):
        return (
            f"{old.name} was trained on a set that names its classes differently, or one of the "
            "two only numbers them"
        )
    return None


def scenario_of(old: Embedder, images: ImageSet, old_set: ImageSet | None) -> FoundScenario:
    """Compare the new set with the old one, or with the classes that the old model has learnt."""
    if old_set is None:
        unknown = unknown_classes(old, images)
    else:
        unknown = unknown_identities(old_set, images)
    if unknown is not None:
        return FoundScenario(
            (), unknown, _class_count(old_set or old), len(images.class_names), None
        )
    if old_set is not None:
        old_classes, old_ids = old_set.class_identities, old_set.ids
        return find_scenario_of(old_classes, images.class_identities, old_ids, images.ids)
    if isinstance(old, Model):
        return find_scenario_of(old.class_identities, images.class_identities, None, images.ids)
    digests = identity_digests(images.class_identities)
    return find_scenario_of(old.training_classes.digests, digests, None, images.ids)


def old_strength(old: Embedder, images: ImageSet, frame: Frame) -> tuple[ModelRecall | None, str]:
    """Measure the old model on classes that it has not seen, if there are enough of them.

    Each image has an old embedding, see ``usable_images``. In ``frame`` raw pixels are compared if
    the old model takes none. The strength is None if no class has two images; with it comes on
    which images it was measured.
    """
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    is_unseen = ~_learnt(old, images)
    unseen_classes = np.flatnonzero(is_unseen & (sizes > 1))
    on = "classes that it was trained on, so it is better there than elsewhere"
    rows = np.arange(len(images))
    learnt = old.training_classes
    if not learnt.complete or not learnt.named_as(images.class_source):
        on = "classes that it may have been trained on"
    elif len(unseen_classes) >= _CLASSES_NEEDED:
        rows, on = np.flatnonzero(np.isin(images.labels, unseen_classes)), "classes new to it"
    elif is_unseen.any():
        on = "classes, some of which it was trained on"
    rows = rows[sample_classes(images.labels[rows], STRENGTH_IMAGES)]
    if not len(rows):
        return None, "nothing: no class has two images"
    is_stored = isinstance(old, StoredEmbeddings)
    sample = read_sample(
        images.select(rows), frame if is_stored else cast(ImageEmbedder, old).input.frame
    )
    if is_stored:
        vectors = old.embeddings.vectors_of(sample.images.ids)
    else:
        starts = range(0, len(sample.pixels), _BATCH)
        batches = (sample.pixels[i : i + _BATCH] for i in starts)
        vectors = np.concatenate([cast(ImageEmbedder, old).embed_pixels(b) for b in batches])
    strength = model_recall(vectors, sample.images.labels, sample.pixels.__getitem__)
    return strength, f"{len(sample.images):,} images of {on}"


def _learnt(old: Embedder, images: ImageSet) -> NDArray[np.bool_]:
    """Return (classes,) whether the old model is known to have learnt each class of a set."""
    digests = old.training_classes.digests
    return np.array([identity_digests([name]) <= digests for name in images.class_identities])


def _class_count(old: Embedder | ImageSet) -> int | None:
    if isinstance(old, (Model, ImageSet)):
        return len(old.class_names)
    return len(old.training_classes.digests) if old.training_classes.complete else None


# How fast this machine reads, embeds and trains, measured on a sample of the images.

SAMPLE = 256  # images
_EPOCHS = 3  # of the trial; the first is slower and is not counted
_MAP_ROWS = 2_000
_SLOW_RATE = 1e-4  # a learning rate at which no trial diverges


@dataclass(frozen=True)
class Rates:
    """Images per second on this device, each measured on a sample."""

    reading: float  # of reading and decoding the new training set, by all reading threads
    gallery_reading: float  # of reading and decoding the gallery
    old_forward: float | None  # of embedding with the old model; None if its embeddings are stored
    new_forward: float  # of embedding with the new network
    training: float  # of training steps with the method and the old model
    map_rows: float  # of fitting a linear map to their embeddings

    def as_json(self) -> dict[str, float | None]:
        """Return plain values for machines."""
        return asdict(self)


@dataclass(frozen=True)
class ReadSample:
    """The readable images of a sample."""

    images: ImageSet  # those that could be read
    pixels: Pixels  # (images, height, width, channels)
    rate: float  # images per second of reading, decoding and fitting them


def sample_of(images: ImageSet, count: int = SAMPLE) -> ImageSet:
    """Return at most ``count`` images, drawn at random; the same set gives the same sample."""
    if len(images) <= count:
        return images
    rows = np.random.default_rng(0).choice(len(images), count, replace=False)
    return images.select(np.sort(rows))


def read_sample(images: ImageSet, frame: Frame) -> ReadSample:
    """Read a sample, and measure how long that takes. Unreadable images are left out."""
    begin = time.perf_counter()
    with progress.silenced():
        checked, pixels = scan_images(images, frame, keep=True)
    rate = len(images) / _since(begin)
    assert pixels is not None
    good_rows = np.setdiff1d(np.arange(len(images)), list(checked.problems))
    return ReadSample(checked.readable(replace(images, skip_bad=True)), pixels[good_rows], rate)


def forward_rate(model: ImageEmbedder, pixels: Pixels) -> float:
    """Return how many images per second a model embeds, without reading them."""
    model.embed_pixels(pixels[:_BATCH])  # the first batch is slower
    begin = time.perf_counter()
    for start in range(0, len(pixels), _BATCH):
        model.embed_pixels(pixels[start : start + _BATCH])
    return len(pixels) / _since(begin)


def trial_run(
    images: ImageSet, recipe: Recipe, *, old: Embedder, method: str, device: str
) -> tuple[float, Model]:
    """Train for a few steps on a sample with all that the real training has.

    Return images per second without the first epoch, and a model of no use but to measure the speed
    of its network.
    """
    batch_size = max(min(recipe.batch_size, len(images)), 2)
    short = recipe.updated(
        epochs=_EPOCHS,
        steps=None,
        milestones=(),
        refresh_epochs=(),
        warmup_epochs=0,
        lr_warmup_epochs=0.0,
        batch_size=batch_size,
        lr=_SLOW_RATE,
        seed=0,
    )
    with tempfile.TemporaryDirectory(prefix="unibct-advise-") as folder:
        out = Path(folder) / "trial"
        plain = method.partition("@")[0]  # settings of a variant hardly change the speed
        with progress.silenced():
            model = train(images, short, out, old=old, method=plain, validation=0, device=device)
        with (out / METRICS_FILE).open(encoding="utf-8") as file:
            rates = [float(row["images_per_second"]) for row in csv.DictReader(file)]
    return float(np.median(rates[1:])), model


def map_rate(new_dim: int, old_dim: int) -> float:
    """Return how many rows per second a linear map is fitted to, measured on random vectors."""
    rng = np.random.default_rng(0)
    new, old = (rng.normal(size=(_MAP_ROWS, dim)) for dim in (new_dim, old_dim))
    begin = time.perf_counter()
    fit_vector_map("linear", new=new, old=old, labels=np.arange(_MAP_ROWS))
    return _MAP_ROWS / _since(begin)


def _since(begin: float) -> float:
    return max(time.perf_counter() - begin, 1e-9)

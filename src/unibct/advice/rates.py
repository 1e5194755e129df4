"""How fast this machine reads, embeds and trains, measured on a sample of the images."""

import csv
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from unibct.data.decoding import Frame, Pixels
from unibct.data.image_set import ImageSet
from unibct.data.scan import Scan
from unibct.maps.vector_map import fit_vector_map
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.progress import Silent
from unibct.training.metrics import METRICS_FILE
from unibct.training.recipe import Recipe
from unibct.training.train import train

SAMPLE = 256  # images
_BATCH = 64
_EPOCHS = 3  # of the trial; the first is slower and is not counted
_MAP_ROWS = 2_000
_SLOW_RATE = 1e-4  # a learning rate at which no trial diverges


@dataclass(frozen=True)
class Rates:
    """Images per second on this device, each measured on a sample.

    Attributes:
        reading: of reading and decoding the new training set, by all reading threads.
        gallery_reading: of reading and decoding the gallery.
        old_forward: of embedding with the old model; None if its embeddings are stored.
        new_forward: of embedding with the new network.
        training: of training steps with the method and the old model.
        map_rows: of fitting a linear map to their embeddings.
    """

    reading: float
    gallery_reading: float
    old_forward: float | None
    new_forward: float
    training: float
    map_rows: float

    def as_json(self) -> dict[str, float | None]:
        """Return plain values for machines."""
        return asdict(self)


@dataclass(frozen=True)
class ReadSample:
    """The readable images of a sample.

    Attributes:
        images: those that could be read.
        pixels: (images, height, width, channels).
        rate: images per second of reading, decoding and fitting them.
    """

    images: ImageSet
    pixels: Pixels
    rate: float


def sample_of(images: ImageSet, count: int = SAMPLE) -> ImageSet:
    """Return at most ``count`` images, drawn at random; the same set gives the same sample."""
    if len(images) <= count:
        return images
    rows = np.random.default_rng(0).choice(len(images), count, replace=False)
    return images.select(np.sort(rows))


def read_sample(images: ImageSet, frame: Frame) -> ReadSample:
    """Read a sample, and measure how long that takes. Unreadable images are left out."""
    scan = Scan(images, frame, keep=True)
    begin = time.perf_counter()
    checked = scan.run(Silent(), None)
    rate = len(images) / _since(begin)
    assert scan.pixels is not None
    good_rows = np.setdiff1d(np.arange(len(images)), list(checked.problems))
    return ReadSample(checked.readable(images, skip_bad=True), scan.pixels[good_rows], rate)


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
    """Train for a few steps with all that the real training has: method, changes, network.

    Args:
        images: a sample of the training set.
        recipe: of the real training.
        old: the old model.
        method: a name from ``METHODS``.
        device: where to train.

    Returns:
        Images per second without the first epoch, and a model of no use but to measure the speed
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
        model = train(images, short, out, old=old, method=method, validation=0, device=device)
        with (out / METRICS_FILE).open(encoding="utf-8") as file:
            rates = [float(row["images_per_second"]) for row in csv.DictReader(file)]
    return float(np.median(rates[1:])), model


def map_rate(new_dim: int, old_dim: int) -> float:
    """Return how many rows per second a linear map is fitted to, measured on random vectors."""
    rng = np.random.default_rng(0)
    new, old = (rng.normal(size=(_MAP_ROWS, dim)) for dim in (new_dim, old_dim))
    begin = time.perf_counter()
    fit_vector_map("linear", new, old, np.arange(_MAP_ROWS))
    return _MAP_ROWS / _since(begin)


def _since(begin: float) -> float:
    return max(time.perf_counter() - begin, 1e-9)

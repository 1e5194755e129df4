"""Whether the loader is fast enough to keep the network busy.

    python measurements/loader.py

About a minute on two cores. The script makes a miniature face set as RecordIO (JPEG, 112×112).
Then it measures three rates in turns, in images per second: the loader alone (read, decode, mirror
and crop), the network alone (forward and backward pass), and training with both. Goal: training
reaches 0.9 of the slower of the two.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unibct.data.augmentation import changed, drawn_changes
from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches, unread_pixels
from unibct.data.readers.table import open_images
from unibct.examples.miniatures import make_ms1mv3
from unibct.losses.arcface import arcface
from unibct.models.architectures.table import build_network, find_architecture
from unibct.models.input import to_input

BATCH, STEPS, ROUNDS = 64, 6, 3


def main() -> None:
    """Measure the three rates in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", default="resnet18")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        make_ms1mv3(Path(root) / "set", identities=40)
        images = open_images(str(Path(root) / "set" / "train.rec"))
        medians = median_rates(images, options.architecture, options.workers)
    for name, rate in medians.items():
        print(f"{name:<10} {rate:>10,.0f} images/s")
    slower = min(medians["loader"], medians["network"])
    print(f"training against the slower of the two: {medians['training'] / slower:.3f}")


def median_rates(images: ImageSet, architecture_name: str, workers: int | None) -> dict[str, float]:
    """Return the images per second of the loader, of the network, and of training."""
    architecture = find_architecture(architecture_name)
    spec = architecture.input
    pixels = unread_pixels(images, *spec.frame)
    network: Any = build_network(architecture_name, spec, architecture.dim).train()
    network = network.to(memory_format=torch.channels_last)
    weights = torch.nn.Parameter(torch.randn(len(images.class_names), architecture.dim))
    optimizer = torch.optim.SGD([*network.parameters(), weights], lr=1e-3, momentum=0.9)
    labels = torch.from_numpy(images.labels[:BATCH])
    fixed_batch = next(pixels.batches(np.arange(BATCH), BATCH))

    def step(batch: Pixels) -> None:
        embeddings = network(to_input(batch, spec, torch.device("cpu")))
        loss = arcface(embeddings, weights, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def load() -> None:
        for _ in training_batches(pixels, workers):
            pass

    def compute() -> None:
        for _ in range(STEPS):
            step(fixed_batch)

    def train() -> None:
        for batch in training_batches(pixels, workers):
            step(batch)

    rates: dict[str, list[float]] = {"loader": [], "network": [], "training": []}
    for _ in range(ROUNDS):
        for values, run in zip(rates.values(), (load, compute, train), strict=True):
            values.append(STEPS * BATCH / seconds_of(run))
    return {name: statistics.median(values) for name, values in rates.items()}


def training_batches(pixels: PixelBatches, workers: int | None) -> Iterator[Pixels]:
    """Return batches with the random changes of training."""
    rng = np.random.default_rng(0)
    order = rng.integers(0, len(pixels.images), STEPS * BATCH)
    jobs = (
        (
            order[i : i + BATCH],
            partial(changed, changes=drawn_changes(BATCH, rng, flip=True, crop=0.1)),
        )
        for i in range(0, len(order), BATCH)
    )
    return pixels.prepared(jobs, workers)


def seconds_of(run: Callable[[], None]) -> float:
    """Return the seconds of one run."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

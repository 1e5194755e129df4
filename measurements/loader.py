"""Whether reading images keeps the network busy.

    python measurements/loader.py

A minute on two cores. Draws a miniature face set as RecordIO (JPEG, 112×112), then measures in one
run, in turns: images a second that the loader alone gives (read, decode, mirror and crop), that
the bare forward and backward pass takes, and that training does. Goal: training reaches 0.9 of the
slower of the two.
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
from unibct.data.loader import PixelBatches, unread_pixels
from unibct.data.readers.table import open_images
from unibct.examples.miniatures import make_ms1mv3
from unibct.losses.arcface import arcface
from unibct.models.architectures.table import build_network, find_architecture
from unibct.models.input import to_input

BATCH, STEPS, ROUNDS = 64, 6, 3


def main() -> None:
    """Measure the three in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", default="resnet18")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    architecture = find_architecture(options.architecture)
    spec = architecture.input
    with tempfile.TemporaryDirectory() as root:
        make_ms1mv3(Path(root) / "set", identities=40)
        images = open_images(str(Path(root) / "set" / "train.rec"))
        pixels = unread_pixels(images, *spec.size)
        network: Any = build_network(options.architecture, spec, architecture.dim).train()
        network = network.to(memory_format=torch.channels_last)
        weights = torch.nn.Parameter(torch.randn(len(images.class_names), architecture.dim))
        optimizer = torch.optim.SGD([*network.parameters(), weights], lr=1e-3, momentum=0.9)
        labels = torch.from_numpy(images.labels)
        fixed = next(pixels.batches(np.arange(BATCH), BATCH))

        def step(batch: Pixels, rows: torch.Tensor) -> None:
            embeddings = network(to_input(batch, spec, torch.device("cpu")))
            loss = arcface(embeddings, weights, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        def load() -> None:
            for _ in loaded(pixels, options.workers):
                pass

        def compute() -> None:
            for _ in range(STEPS):
                step(fixed, torch.arange(BATCH))

        def train() -> None:
            for batch in loaded(pixels, options.workers):
                step(batch, torch.arange(BATCH))

        rates: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, run in {"loader": load, "network": compute, "training": train}.items():
                rates.setdefault(name, []).append(STEPS * BATCH / timed(run))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"{name:<10} {rate:>10,.0f} images/s")
    slower = min(medians["loader"], medians["network"])
    print(f"training against the slower of the two: {medians['training'] / slower:.3f}")


def loaded(pixels: PixelBatches, workers: int | None) -> Iterator[Pixels]:
    """Batches as training takes them."""
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


def timed(run: Callable[[], None]) -> float:
    """Seconds of one run."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

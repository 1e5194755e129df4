"""Whether the loader reads ahead while the network works.

    python measurements/loader.py

About half a minute on two cores. The script makes a miniature face set as RecordIO (JPEG,
112×112). First it measures the loader alone: read, decode, mirror and crop. Then it trains with a
stand-in for a network on a GPU, which leaves the host alone and takes just as long for a batch as
the loader does. With both alike, training that overlaps them perfectly runs at 1.0 of the rate of
the loader, and training that never overlaps them at 0.5. The last line is the same without
overlap: it shows that the measurement can fail. Goal: 0.9 with the default number of threads.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from miniatures import make_ms1mv3

from unibct.data.augmentation import changed, drawn_changes
from unibct.data.decoding import Frame, Pixels
from unibct.data.loader import PixelBatches, unread_pixels
from unibct.data.readers import open_images

SIZE, BATCH, STEPS, ROUNDS = Frame(112, 112, 3), 64, 40, 3


def main() -> None:
    """Measure the loader, then training with a network that is as fast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=None)
    workers = parser.parse_args().workers
    with tempfile.TemporaryDirectory() as root:
        make_ms1mv3(Path(root) / "set", identities=40)
        images = open_images(str(Path(root) / "set" / "train.rec"))
        pixels = unread_pixels(images, SIZE)
        for name, threads in (("with overlap", workers), ("without", 0)):
            ratios = [overlap(pixels, threads) for _ in range(ROUNDS)]
            rates = [STEPS * BATCH / seconds for _, seconds in ratios]
            print(
                f"{name:<13} loader {statistics.median(rates):>8,.0f} images/s, training at "
                f"{statistics.median(ratio for ratio, _ in ratios):.3f} of it"
            )


def overlap(pixels: PixelBatches, workers: int | None) -> tuple[float, float]:
    """Return how much of the loader's rate training reaches, and the loader's own seconds."""

    def load() -> None:
        for _ in training_batches(pixels, workers):
            pass

    loading = seconds_of(load)

    def train() -> None:
        for _ in training_batches(pixels, workers):
            time.sleep(loading / STEPS)

    return loading / seconds_of(train), loading


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

"""Structural refinement at MS1Mv3's size, next to the paper's inverse and to the bare product.

    python measurements/refine_scale.py --rows 500000              a minute on two cores
    python measurements/refine_scale.py --folder /big/disk         full size: 5.3 GB for each store
    python measurements/refine_scale.py --dtype float32 …          10.6 GB for each store
    python measurements/refine_scale.py --order shuffled …         rows in random order

The two synthetic stores have 5,179,510 × 512 embeddings of 93,431 classes. They are written once to
the folder. The class sizes of MS1Mv3 are not published. Here they are log-normal with its mean of
55.4 images and σ = 0.7. The class of an image then has 90 images on average, and the largest class
about 800. Each class has a centre, three modes around it, and images with different amounts of
noise, so that the graphs have structure. The script measures:

- refinement, from opening the stores to the last prototype: rows/s, and the peak of anonymous
  memory (RssAnon, the memory of the process without the system's file cache);
- on samples of consecutive classes, in turns: refinement, (a) the paper's inverse, class by class,
  (b) only the products X Xᵀ, class by class, and (c) the same products in the library's batches.
  All use the same threads and read both stores in the same way;
- the same for blocks that are already in memory.

Goals: at least 2.5 times as fast as (a), at most 1.5 times the time of the product, below 3 GB. The
fair product is (c), because in shuffled order (b) also gathers each class on its own. Refinement
takes 33 to 37 steps of Chebyshev's iteration on these graphs, and at most 54 on any (λ = 0.9).
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from unibct import progress
from unibct.data.training_classes import UNKNOWN_CLASSES
from unibct.embeddings.store import (
    SHARD_ROWS,
    STORE_DESCRIPTION,
    Shard,
    Vectors,
    open_embeddings,
    write_description,
    write_shard,
)
from unibct.progress import Lines
from unibct.prototypes.class_blocks import Block, MemoryLimits, map_classes
from unibct.prototypes.class_prototypes import class_prototypes, grouped_prototypes
from unibct.prototypes.inputs import (
    PrototypeSettings,
    ReusedMemory,
    batches_of_like_size,
    take_rows,
)

ROWS, CLASSES, DIM = 5_179_510, 93_431, 512
TAU, LAM = 0.05, 0.9
SETTINGS = PrototypeSettings("structural", tau=TAU, lam=LAM)
NO_SPILL = MemoryLimits(spill=False)
SAMPLES = 7
SAMPLE_ROWS = 200_000  # of each sample


def main() -> None:
    """Write the stores if they are not there, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the stores go (default: temporary)")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--order", choices=("class", "shuffled"), default="class")
    parser.add_argument("--spill", action="store_true", help="force the temporary file")
    arguments = parser.parse_args()
    name = f"{arguments.dtype}-{arguments.order}-{arguments.rows}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)) / name
        for number, store in enumerate(("old", "new")):
            if not (folder / store / STORE_DESCRIPTION).is_file():
                write_store(
                    folder / store, arguments.rows, arguments.dtype, arguments.order, number
                )
        measure(folder, spill=True if arguments.spill else None)


def class_sizes(rows: int) -> NDArray[np.int64]:
    """Return log-normal sizes of at least 2, with MS1Mv3's mean and the sum ``rows``."""
    rng = np.random.default_rng(0)
    count = max(1, round(CLASSES * rows / ROWS))
    drawn = rng.lognormal(0, 0.7, count)
    ends = np.zeros(count + 1, dtype=np.int64)
    ends[1:] = np.round(np.cumsum(drawn) / drawn.sum() * (rows - 2 * count))
    return np.diff(ends) + 2


def write_store(folder: Path, rows: int, dtype: str, order: str, number: int) -> None:
    """Write unit vectors around the centres of their classes; ``number`` chooses the space."""
    shutil.rmtree(folder, ignore_errors=True)
    sizes = class_sizes(rows)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if order == "shuffled":
        labels = np.random.default_rng(1).permutation(labels)
    rng = np.random.default_rng([2, number])
    centres = unit(rng.standard_normal((len(sizes), DIM), np.float32))
    shards: list[Shard] = []
    with Lines().task(f"writing {folder}", rows, "rows") as advance:
        for start in range(0, rows, SHARD_ROWS):
            shard_labels = labels[start : start + SHARD_ROWS]
            count = len(shard_labels)
            rng = np.random.default_rng([3, number, start])
            mode = (shard_labels * 7 + 13 * rng.integers(1, 4, count)) % len(sizes)
            noise = rng.standard_normal((count, DIM), np.float32) / np.float32(DIM**0.5)
            noise *= rng.lognormal(-0.4, 0.4, count).astype(np.float32)[:, None]
            vectors = unit(centres[shard_labels] + np.float32(0.4) * centres[mode] + noise)
            ids = [f"{row}" for row in range(start, start + count)]
            shards.append(
                write_shard(folder, len(shards), start, vectors, shard_labels, ids, dtype)
            )
            advance(count)
    write_description(
        folder,
        shards,
        dim=DIM,
        dtype=dtype,
        fingerprint=f"synthetic {number}",
        class_names=[f"{i}" for i in range(len(sizes))],
        class_source=None,
        training_classes=UNKNOWN_CLASSES,
    )


def unit(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return the rows scaled to length 1."""
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32, copy=False)


def ours(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """Compute the prototypes as the library does."""
    return grouped_prototypes(old, sizes, new=new, settings=SETTINGS, order=order)


def inverse(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """(a) Compute V∞ = (1−λ)(I−λẼ)⁻¹V and its mean, class by class."""
    prototypes = torch.empty(len(sizes), old.shape[1])
    rows = None if order is None else torch.from_numpy(order)
    row = 0
    for number, m in enumerate(sizes.tolist()):
        part = slice(row, row + m)
        class_rows = part if rows is None else rows[part]
        v, x = (F.normalize(vectors[class_rows].float(), dim=1) for vectors in (old, new))
        edges = torch.softmax((x @ x.T / TAU).fill_diagonal_(-torch.inf), dim=1)
        refined = (1 - LAM) * cast(Tensor, torch.linalg.inv(torch.eye(m) - LAM * edges)) @ v
        prototypes[number] = F.normalize(refined.mean(dim=0), dim=0)
        row += m
    return prototypes


def product(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """(b) Compute the products X Xᵀ, class by class, and nothing else."""
    rows = None if order is None else torch.from_numpy(order)
    row = 0
    for m in sizes.tolist():
        part = slice(row, row + m)
        x = new[part if rows is None else rows[part]].float()
        torch.mm(x, x.T)
        row += m
    return torch.empty(0)


def batched_product(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """(c) Compute them in the library's batches of classes, padded to multiples of 8 images."""
    memory = ReusedMemory()
    for _, rows in batches_of_like_size(sizes, new.shape[1], order):
        x = take_rows(new, rows, memory)
        products = memory.empty("products", (*rows.shape, rows.shape[1]), x)
        torch.bmm(x, x.transpose(1, 2), out=products)
    return torch.empty(0)


WAYS: dict[str, Callable[[Tensor, Tensor, NDArray[np.int64], Any], Tensor]] = {
    "refinement": ours,
    "(a) inverse": inverse,
    "(b) product": product,
    "(c) batched": batched_product,
}


def apply(way: str, sizes: NDArray[np.int64], block: Block) -> Tensor:
    """Run one of the ways on a block; any other name only reads it."""
    if way not in WAYS:
        return torch.empty(0)
    old, new = (torch.from_numpy(part) for part in block.parts)
    return WAYS[way](old, new, sizes[block.classes.start : block.classes.stop], block.order)


def measure(folder: Path, *, spill: bool | None) -> None:
    """Print all numbers."""
    begin = time.perf_counter()
    old, new = (open_embeddings(folder / store) for store in ("old", "new"))
    opened = time.perf_counter() - begin
    labels = old.labels
    with PeakMemory() as memory:
        begin = time.perf_counter()
        with progress.shown(Lines()):
            class_prototypes(
                labels,
                old=old.vectors,
                new=new.vectors,
                tau=TAU,
                lam=LAM,
                memory=MemoryLimits(spill=spill),
            )
        seconds = time.perf_counter() - begin
    sizes = np.bincount(labels)
    print(
        f"{len(old):,} × {DIM} of {len(sizes):,} classes, {torch.get_num_threads()} threads: "
        f"opened in {1000 * opened:.0f} ms, refined in {seconds:.1f} s, "
        f"{len(old) / seconds:,.0f} rows/s; peak of anonymous memory {memory.peak / 1e9:.2f} GB"
    )
    ends = np.cumsum(sizes)
    rng = np.random.default_rng(4)
    last = max(1, int(np.searchsorted(ends, len(labels) - SAMPLE_ROWS)))
    starts = rng.integers(0, last, SAMPLES).tolist()
    samples = [
        range(start, min(len(sizes), start + SAMPLE_ROWS * len(sizes) // len(labels)))
        for start in starts
    ]
    vectors: list[Vectors] = [old.vectors, new.vectors]
    report("with the reading", [sample_seconds(vectors, labels, sizes, s) for s in samples])
    report("in memory", [block_seconds(vectors, labels, sizes, s) for s in samples])


def sample_seconds(
    sources: list[Vectors], labels: NDArray[np.int64], sizes: NDArray[np.int64], classes: range
) -> dict[str, float]:
    """Return the seconds of each way for a sample of classes, with the reading.

    Also check that refinement and inverse give the same prototypes.
    """
    seconds: dict[str, float] = {}
    results: dict[str, Tensor] = {}
    # The first pass may read from the disk; the others find the rows in the file cache.
    for way in ("reading alone", *WAYS):
        begin = time.perf_counter()
        blocks = map_classes(
            partial(apply, way, sizes), sources, labels, classes=classes, memory=NO_SPILL
        )
        results[way] = torch.cat(list(blocks))
        seconds[way] = time.perf_counter() - begin
    gap = float((results["refinement"] - results["(a) inverse"]).abs().max())
    assert gap < 1e-5, f"refinement and inverse differ by {gap}"
    return seconds


def block_seconds(
    sources: list[Vectors], labels: NDArray[np.int64], sizes: NDArray[np.int64], classes: range
) -> dict[str, float]:
    """Return the seconds of each way for some classes in memory, on one thread."""

    def copied(block: Block) -> Block:
        return Block(block.classes, [part.copy() for part in block.parts], block.order)

    blocks = list(map_classes(copied, sources, labels, classes=classes, memory=NO_SPILL))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds: dict[str, float] = {}
    for way in WAYS:
        begin = time.perf_counter()
        for block in blocks:
            apply(way, sizes, block)
        seconds[way] = time.perf_counter() - begin
    torch.set_num_threads(threads)
    return seconds


def report(title: str, samples: list[dict[str, float]]) -> None:
    """Print the median ratios and the median times of the samples."""
    to_a = median(times["(a) inverse"] / times["refinement"] for times in samples)
    to_b = median(times["refinement"] / times["(b) product"] for times in samples)
    to_c = median(times["refinement"] / times["(c) batched"] for times in samples)
    print(
        f"{title}: {to_a:.2f} × as fast as (a), {to_b:.2f} × the time of (b), {to_c:.2f} × of (c)"
    )
    for way in samples[0]:
        print(f"    {way:12} {1000 * median(times[way] for times in samples):8.0f} ms a sample")


class PeakMemory:
    """The largest RssAnon of this process while the block runs, sampled by a thread."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            text = Path("/proc/self/status").read_text(encoding="ascii")
            self.peak = max(self.peak, int(text.split("RssAnon:")[1].split()[0]) * 1024)


if __name__ == "__main__":
    main()

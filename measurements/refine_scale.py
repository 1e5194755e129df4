"""Structural refinement at MS1Mv3's size, next to the paper's inverse and to the bare product.

    python measurements/refine_scale.py --rows 500000              a minute on two cores
    python measurements/refine_scale.py --folder /big/disk         all of it: 5.3 GB for each store
    python measurements/refine_scale.py --dtype float32 …          10.6 GB for each store
    python measurements/refine_scale.py --order shuffled …         rows in random order

Two synthetic stores of 5,179,510 × 512 embeddings of 93,431 classes, written once to the folder.
How large MS1Mv3's classes are is not published with it; here the sizes are log-normal with its
mean of 55.4 images and σ = 0.7, so that an image's class has 90 on average, the largest some 800.
Each class has a centre, three modes around it, and images of various noise; so the graphs have
structure. Three things are measured:

- refinement from opening the stores to the last prototype: rows/s, and the peak of anonymous memory
  (RssAnon: what the process holds besides the system's file cache);
- on samples of consecutive classes, in turns: refinement, (a) the paper's inverse, class by class,
  (b) nothing but the products X Xᵀ, class by class, and (c) those products in the library's own
  batches; all with the same threads and the same reading of both stores;
- the same without the reading, on one block in memory.

Goals: at least 2.5 times as fast as (a), at most 1.5 times the time of the product, below 3 GB. The
fair product is (c): in shuffled order (b) also pays for gathering each class on its own. These
graphs are easy, some 7 steps of conjugate gradients; hard ones take up to 35.
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

from unibct.embeddings.folder import open_embeddings
from unibct.embeddings.layout import DESCRIPTION_FILE, SHARD_ROWS, Shard
from unibct.embeddings.rows import Vectors
from unibct.embeddings.writing import write_description, write_shard
from unibct.progress import Lines
from unibct.prototypes.batching import ReusedMemory, batches_of_like_size, take_rows
from unibct.prototypes.class_blocks import Block, MemoryLimits, map_classes
from unibct.prototypes.class_prototypes import class_prototypes
from unibct.prototypes.in_memory import grouped_prototypes
from unibct.prototypes.inputs import PrototypeSettings

ROWS, CLASSES, DIM = 5_179_510, 93_431, 512
TAU, LAM = 0.05, 0.9
SETTINGS = PrototypeSettings("structural", tau=TAU, lam=LAM)
NO_SPILL = MemoryLimits(spill=False)
SAMPLES = 7
SAMPLE_ROWS = 200_000  # of each sample


def main() -> None:
    """Write the stores if they are not there, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the stores go; a temporary one without")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--order", choices=("class", "shuffled"), default="class")
    parser.add_argument("--spill", action="store_true", help="force the temporary file")
    arguments = parser.parse_args()
    name = f"{arguments.dtype}-{arguments.order}-{arguments.rows}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)) / name
        for number, store in enumerate(("old", "new")):
            if not (folder / store / DESCRIPTION_FILE).is_file():
                write_store(
                    folder / store, arguments.rows, arguments.dtype, arguments.order, number
                )
        measure(folder, spill=True if arguments.spill else None)


def class_sizes(rows: int) -> NDArray[np.int64]:
    """Log-normal sizes of at least 2 with MS1Mv3's mean; their sum is ``rows``."""
    rng = np.random.default_rng(0)
    count = max(1, round(CLASSES * rows / ROWS))
    drawn = rng.lognormal(0, 0.7, count)
    ends = np.zeros(count + 1, dtype=np.int64)
    ends[1:] = np.round(np.cumsum(drawn) / drawn.sum() * (rows - 2 * count))
    return np.diff(ends) + 2


def write_store(folder: Path, rows: int, dtype: str, order: str, number: int) -> None:
    """Unit vectors around their classes' centres; ``number`` chooses the space."""
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
            own = labels[start : start + SHARD_ROWS]
            rng = np.random.default_rng([3, number, start])
            mode = (own * 7 + 13 * rng.integers(1, 4, len(own))) % len(sizes)
            noise = rng.standard_normal((len(own), DIM), np.float32) / np.float32(DIM**0.5)
            noise *= rng.lognormal(-0.4, 0.4, len(own)).astype(np.float32)[:, None]
            vectors = unit(centres[own] + np.float32(0.4) * centres[mode] + noise)
            ids = [f"{row}" for row in range(start, start + len(own))]
            shards.append(write_shard(folder, len(shards), start, vectors, own, ids, dtype))
            advance(len(own))
    write_description(
        folder,
        shards,
        dim=DIM,
        dtype=dtype,
        fingerprint=f"synthetic {number}",
        class_names=[f"{i}" for i in range(len(sizes))],
    )


def unit(x: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of length 1."""
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32, copy=False)


def ours(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """What the library does."""
    return grouped_prototypes(old, sizes, new=new, settings=SETTINGS, order=order)


def inverse(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """(a) V∞ = (1−λ)(I−λẼ)⁻¹V and its mean, class by class."""
    found = torch.empty(len(sizes), old.shape[1])
    rows = None if order is None else torch.from_numpy(order)
    row = 0
    for number, m in enumerate(sizes.tolist()):
        part = slice(row, row + m)
        own = part if rows is None else rows[part]
        v, x = (F.normalize(vectors[own].float(), dim=1) for vectors in (old, new))
        edges = torch.softmax((x @ x.T / TAU).fill_diagonal_(-torch.inf), dim=1)
        refined = (1 - LAM) * cast(Tensor, torch.linalg.inv(torch.eye(m) - LAM * edges)) @ v
        found[number] = F.normalize(refined.mean(dim=0), dim=0)
        row += m
    return found


def product(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """(b) The products X Xᵀ, class by class, and nothing else."""
    rows = None if order is None else torch.from_numpy(order)
    row = 0
    for m in sizes.tolist():
        part = slice(row, row + m)
        x = new[part if rows is None else rows[part]].float()
        torch.mm(x, x.T)
        row += m
    return torch.empty(0)


def batched_product(old: Tensor, new: Tensor, sizes: NDArray[np.int64], order: Any) -> Tensor:
    """(c) The same in the library's batches of classes, filled up to multiples of 8 images."""
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
    """One of the three on a block."""
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
        class_prototypes(
            old.vectors,
            labels,
            new=new.vectors,
            tau=TAU,
            lam=LAM,
            memory=MemoryLimits(spill=spill),
            progress=Lines(),
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
    """Seconds of each way for a sample of classes, reading included; also compares the results."""
    found: dict[str, float] = {}
    results: dict[str, Tensor] = {}
    for way in ("reading alone", *WAYS):  # the first may read from the disk, the others do not
        begin = time.perf_counter()
        made = map_classes(
            partial(apply, way, sizes), sources, labels, classes=classes, memory=NO_SPILL
        )
        results[way] = torch.cat(list(made))
        found[way] = time.perf_counter() - begin
    gap = float((results["refinement"] - results["(a) inverse"]).abs().max())
    assert gap < 1e-5, f"refinement and inverse differ by {gap}"
    return found


def block_seconds(
    sources: list[Vectors], labels: NDArray[np.int64], sizes: NDArray[np.int64], classes: range
) -> dict[str, float]:
    """Seconds of each way for some classes in memory, on one thread."""

    def copied(block: Block) -> Block:
        return Block(block.classes, [part.copy() for part in block.parts], block.order)

    blocks = list(map_classes(copied, sources, labels, classes=classes, memory=NO_SPILL))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for way in WAYS:
        begin = time.perf_counter()
        for block in blocks:
            apply(way, sizes, block)
        found[way] = time.perf_counter() - begin
    torch.set_num_threads(threads)
    return found


def report(title: str, found: list[dict[str, float]]) -> None:
    """The median of the samples' ratios."""
    to_a = median(times["(a) inverse"] / times["refinement"] for times in found)
    to_b = median(times["refinement"] / times["(b) product"] for times in found)
    to_c = median(times["refinement"] / times["(c) batched"] for times in found)
    print(
        f"{title}: {to_a:.2f} × as fast as (a), {to_b:.2f} × the time of (b), {to_c:.2f} × of (c)"
    )
    for way in found[0]:
        print(f"    {way:12} {1000 * median(times[way] for times in found):8.0f} ms a sample")


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

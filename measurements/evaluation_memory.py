"""Peak memory and time of an evaluation of 100,000 queries in a gallery of 10,000 templates.

    python measurements/evaluation_memory.py                    about a quarter of an hour of CPU
    python measurements/evaluation_memory.py --dim 512
    python measurements/evaluation_memory.py --curves           also the backfill curves: hours

Synthetic embeddings lie on disk and are memory-mapped, as those of an embeddings folder are. In
the same run the matrix products alone are timed, those of all tests and of mAP, each once. The
peak is that of the process's resident memory (Linux); the pages of the mapped embeddings count.
All times are CPU seconds of all threads, so that a busy machine changes them little.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from process_memory import memory

from unibct.arrays import normalized
from unibct.evaluation.evaluation import UpgradeEvaluation
from unibct.evaluation.mixed_gallery import CUTS
from unibct.evaluation.score_table import NormalizedRows
from unibct.evaluation.templates import GallerySplit, split_gallery
from unibct.evaluation.upgrade import evaluate_embeddings

IMAGES_PER_CLASS = 13  # three are in the gallery, ten are queries
TESTS = 4
ROWS_AT_ONCE = 400

Array = NDArray[Any]


def main() -> None:
    """Evaluate two synthetic models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--curves", action="store_true", help="also measure the backfill curves")
    options = parser.parse_args()
    labels: Array = np.repeat(np.arange(int(options.classes)), IMAGES_PER_CLASS)
    split = split_gallery(labels)
    with tempfile.TemporaryDirectory() as root:
        old, new = (
            write_embeddings(Path(root) / f"{name}.npy", labels, options.dim, noise, seed)
            for seed, (name, noise) in enumerate((("old", 2.2), ("new", 1.8)))
        )
        bare = product_seconds(new, split)
        tests = TESTS + (2 * CUTS if options.curves else 0)
        before = memory("VmRSS")
        begin = time.process_time()
        evaluation = evaluate_embeddings(
            labels, old=old, new=new, split=split, backfill_curve=options.curves
        )
        evaluated = time.process_time() - begin
        evaluation.as_json()
        seconds = time.process_time() - begin
        scores = len(split.query) * split.classes
        print(f"{len(split.query):,} queries × {split.classes:,} templates × {options.dim}")
        print(f"resident before      {before:8.2f} GB")
        print(f"peak                 {memory('VmHWM'):8.2f} GB")
        print(f"bytes a score        {1e9 * memory('VmHWM') / scores:8.2f}")
        print(f"evaluation           {evaluated:8.1f} s")
        print(f"with all TARs        {seconds:8.1f} s")
        print(f"bare matrix products {tests * bare:8.1f} s")
        print(f"ratio                {seconds / (tests * bare):8.2f}")
        show(evaluation)


def write_embeddings(path: Path, labels: Array, dim: int, noise: float, seed: int) -> Array:
    """Write vectors around one centre per class, some classes at a time; return their map."""
    out = np.lib.format.open_memmap(path, "w+", np.float32, (len(labels), dim))
    centres, rng = np.random.default_rng(9), np.random.default_rng(seed)
    step = 1000 * IMAGES_PER_CLASS
    for start in range(0, len(labels), step):
        part = labels[start : start + step]
        middle = centres.standard_normal((part[-1] - part[0] + 1, dim), dtype=np.float32)
        noisy = rng.standard_normal((len(part), dim), dtype=np.float32) * np.float32(noise)
        out[start : start + step] = middle[part - part[0]] + noisy
    out.flush()
    return np.load(path, mmap_mode="r")


def product_seconds(vectors: Array, split: GallerySplit) -> float:
    """Return how long the matrix products of one test take: with the templates, with the images."""
    queries = NormalizedRows(vectors, split.query)
    images = normalized(vectors[split.gallery])
    seconds = 0.0
    for gallery in (images[: split.classes], images):
        begin = time.process_time()
        for start in range(0, len(queries), ROWS_AT_ONCE):
            _ = queries[start : start + ROWS_AT_ONCE] @ gallery.T
        seconds += time.process_time() - begin
    return seconds


def show(evaluation: UpgradeEvaluation) -> None:
    """Print what was measured, to see that it is no degenerate case."""
    for name in evaluation.tests:
        values = evaluation.values[name].items()
        print(name, *(f"{metric} {100 * value:.2f}" for metric, value in values))
    for row in evaluation.at_old_threshold:
        mapped = None if row.mapped is None else row.mapped.far
        print(
            f"FAR {row.far:g}: threshold {row.threshold:.4f}, cross {row.cross.far:.2g}, ", mapped
        )
    print(evaluation.verdict, evaluation.flips.as_json())


if __name__ == "__main__":
    main()

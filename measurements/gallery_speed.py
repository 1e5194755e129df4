"""A gallery of 100,000 rows × 512: add, search, upgrade and half a backfill, with rates and memory.

    python measurements/gallery_speed.py                          some minutes
    python measurements/gallery_speed.py --rows 20000 --dim 128
    python measurements/gallery_speed.py --engine postgresql
    python measurements/gallery_speed.py --engine milvus --at http://HOST:19530

Without --at, a server is started for the run.
Vectors are synthetic, so that no network is part of the times. Each search of the gallery is
timed beside the engine's own search of the same rows, in turns: the ratio is what unibct adds. For
the embedded engine, faiss alone on the same matrix is timed too. The peak is that of the
process's resident memory (Linux).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from gallery_server import server_address
from numpy.typing import NDArray

from unibct.arrays import normalized
from unibct.embeddings.store import Embeddings
from unibct.gallery.engines import EMBEDDED, ENGINES, Search
from unibct.gallery.gallery import Gallery
from unibct.gallery.search import Queries, SearchRequest

OLD, NEW = "a" * 32, "b" * 32
PER_CLASS = 10
REPEATS = 7
K = 10


def main() -> None:
    """Measure one engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--engine", default=EMBEDDED, choices=list(ENGINES))
    parser.add_argument("--at", default="")
    options = parser.parse_args()
    old, new = (
        synthetic(options.rows, options.dim, kind, seed) for kind, seed in ((OLD, 1), (NEW, 2))
    )
    print(f"{options.engine}: {options.rows:,} rows × {options.dim}")
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        options.at = server_address(stack, options.engine, options.at)
        # The models are stored embeddings: a few rows say which model it is, and its dimension.
        paths = [written(part, Path(root) / f"{name}") for name, part in (("o", old), ("n", new))]
        gallery = Gallery.create(Path(root) / "G", paths[0], engine=options.engine, at=options.at)
        try:
            measure(gallery, old, new, paths[1], options)
        finally:
            gallery.folder.engine.destroy()


def measure(gallery: Gallery, old: Embeddings, new: Embeddings, model: str, options: Any) -> None:
    """Add, search, upgrade, backfill a half, search again, go back."""
    rows = int(options.rows)
    timed("add", rows, lambda: gallery.add(old))
    searches(gallery, old, "old rows", options.engine)
    timed("upgrade", rows, lambda: gallery.upgrade(model, force=True))
    timed("half a backfill", rows // 2, lambda: gallery.backfill(new, share=0.5))
    searches(gallery, new, "mixed", options.engine)
    timed("rollback", rows, gallery.rollback)
    timed("verify", rows, gallery.verify)


def searches(gallery: Gallery, rows: Embeddings, name: str, engine: str) -> None:
    """Time the gallery's search beside the engine's own."""
    generator = np.random.default_rng(9)
    vectors = np.asarray(rows.vectors[:200])
    noise = generator.standard_normal(vectors.shape).astype(np.float32)
    queries = normalized(vectors + 0.5 * normalized(noise)).astype(np.float32)
    kinds = [kind for kind in gallery.folder.engine.kinds() if gallery.folder.engine.has_live(kind)]
    for count in (1, 200):
        part = queries[:count]
        searching = gallery.folder.state.standing.searching
        asked = Queries(tuple(str(i) for i in range(count)), part, searching)
        ways: dict[str, Callable[[], Any]] = {
            "gallery": lambda a=asked: gallery.search(a, SearchRequest(k=K)),
            "engine": lambda p=part: [
                gallery.folder.engine.search(kind, p, Search(K, {})) for kind in kinds
            ],
        }
        if engine == EMBEDDED and len(kinds) == 1:
            ways["faiss"] = bare_faiss(np.asarray(rows.vectors), part)
        best = fastest(ways)
        text = ", ".join(f"{way} {1000 * best[way] / count:.3f} ms" for way in ways)
        ratios = [f"gallery/engine {best['gallery'] / best['engine']:.3f}"]
        ratios += (
            [f"gallery/faiss {best['gallery'] / best['faiss']:.3f}"] if "faiss" in best else []
        )
        print(f"search {name}, {count} at a time: {text} a query; {', '.join(ratios)}")


def bare_faiss(matrix: NDArray[np.float32], queries: NDArray[np.float32]) -> Callable[[], Any]:
    """Return faiss's exact search of a matrix."""
    from importlib import import_module

    faiss: Any = import_module("faiss")
    return lambda: faiss.knn(queries, matrix, K, faiss.METRIC_INNER_PRODUCT)


def fastest(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the least time of each way, taken in turns: disturbance only makes a run longer."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(REPEATS + 1):
        for way, function in ways.items():
            begin = time.perf_counter()
            function()
            times[way].append(time.perf_counter() - begin)
    return {way: min(values[1:]) for way, values in times.items()}  # the first one warms up


def timed(name: str, rows: int, function: Callable[[], Any]) -> None:
    """Run a step, and print its rate and the peak of memory so far."""
    begin = time.perf_counter()
    function()
    seconds = time.perf_counter() - begin
    print(f"{name:<16} {seconds:8.2f} s  {rows / seconds:10,.0f} rows/s  peak {peak():.2f} GB")


def synthetic(rows: int, dim: int, kind: str, seed: int) -> Embeddings:
    """Return vectors around class centres; both models have the same centres."""
    centres = np.random.default_rng(0).standard_normal((rows // PER_CLASS + 1, dim))
    generator = np.random.default_rng(seed)
    labels = np.arange(rows) // PER_CLASS
    vectors = np.empty((rows, dim), dtype=np.float32)
    for start in range(0, rows, 10_000):
        part = labels[start : start + 10_000]
        vectors[start : start + 10_000] = centres[part] + 0.8 * generator.standard_normal(
            (len(part), dim)
        )
    ids = tuple(f"image-{i:08}" for i in range(rows))
    names = tuple(f"class-{i}" for i in range(int(labels[-1]) + 1))
    return Embeddings(normalized(vectors).astype(np.float32), ids, labels, names, kind)


def written(embeddings: Embeddings, path: Path) -> str:
    """Write a few rows, so that they stand for the model."""
    from unibct.embeddings.forms import write_embeddings

    few = Embeddings(
        embeddings.vectors[:10],
        embeddings.ids[:10],
        embeddings.labels[:10],
        embeddings.class_names[:1],
        embeddings.fingerprint,
    )
    write_embeddings(few, path)
    return f"embeddings:{path}"


def peak() -> float:
    """Return the peak of resident memory in GB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e6


if __name__ == "__main__":
    main()

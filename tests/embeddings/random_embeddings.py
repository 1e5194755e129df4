import numpy as np

from unibct.embeddings.store import NO_CLASS, Embeddings


def random_embeddings(
    rows, dim=6, *, first=0, classes=("a", "b", "c"), fingerprint="model", seed=0, **more
):
    rng = np.random.default_rng(seed + first)
    vectors = rng.normal(size=(rows, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = rng.integers(0, len(classes), rows) if classes else np.full(rows, NO_CLASS)
    ids = tuple(f"image {first + i}.jpg" for i in range(rows))
    return Embeddings(vectors, ids, labels, tuple(classes), fingerprint, **more)

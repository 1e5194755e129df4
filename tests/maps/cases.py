"""Embeddings of the same images by two models, and plain NumPy to compare with."""

import numpy as np


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def rotation(dim, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


def case(rows=60, new_dim=6, old_dim=6, seed=0):
    """Unrelated embeddings, of any length, in five classes of different size."""
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.geometric(0.4, rows), 5) - 1
    return rng.normal(size=(rows, new_dim)), rng.normal(size=(rows, old_dim)), labels


def naive_weights(labels):
    classes = set(labels.tolist())
    return np.array([1 / (labels == c).sum() / len(classes) for c in labels])

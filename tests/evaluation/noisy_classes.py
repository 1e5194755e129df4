"""Embeddings of classes with noise, for tests."""

import numpy as np


def noisy_classes(classes=30, images=12, noise=0.8, dim=16, seed=0):
    """Return (images, dim) float32 vectors around fixed centres, and labels."""
    centres = np.random.default_rng(0).normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), images)
    rng = np.random.default_rng(seed)
    vectors = centres[labels] + noise * rng.normal(size=(len(labels), dim))
    return vectors.astype(np.float32), labels


def noisy_pair(old_noise=1.3, new_noise=0.3, classes=30, images=12, new_seed=1):
    """Return what ``evaluate_embeddings`` takes: labels, and vectors of two models."""
    old, labels = noisy_classes(classes, images, old_noise)
    new, _ = noisy_classes(classes, images, new_noise, seed=new_seed)
    return {"labels": labels, "old": old, "new": new}


def near_duplicates(classes=30, dim=16):
    """Return old and new vectors of four groups of near-duplicates a class, and labels.

    The new model has learnt the class and forgotten the group: its queries are near the template
    of their class, and no longer near their near-duplicates.
    """
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 32)
    group = np.repeat(np.arange(4 * classes), 8)
    centres = (
        rng.normal(size=(classes, dim))[labels] + 2 * rng.normal(size=(4 * classes, dim))[group]
    )
    means = np.stack([centres[labels == label].mean(0) for label in range(classes)])[labels]
    old, new = (x + n * rng.normal(size=x.shape) for x, n in ((centres, 0.3), (means, 0.7)))
    return old.astype(np.float32), new.astype(np.float32), labels

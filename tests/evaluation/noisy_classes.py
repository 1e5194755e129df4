"""Embeddings of classes with noise, for tests."""

import numpy as np


def noisy_classes(classes=30, images=12, noise=0.8, dim=16, seed=0):
    """Return (images, dim) float32 vectors around fixed centres, and labels."""
    centres = np.random.default_rng(0).normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), images)
    rng = np.random.default_rng(seed)
    vectors = centres[labels] + noise * rng.normal(size=(len(labels), dim))
    return vectors.astype(np.float32), labels

"""Random embeddings, class vectors and labels, and plain Python to compare with."""

import math

import torch


def case(batch=32, dim=8, classes=11, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, dim, generator=generator, dtype=dtype)
    w = torch.randn(classes, dim, generator=generator, dtype=dtype)
    y = torch.randint(0, classes, (batch,), generator=generator)
    return x, w, y


def naive_unit_rows(vectors):
    return [[a / math.hypot(*row) for a in row] for row in vectors.tolist()]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))

"""Random embeddings, class vectors and labels, and plain Python to compare with."""

import math

import torch

from tests.distributed.thread_ranks import run_ranks
from unibct.distributed.ranks import ClassesInUse


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


def over_ranks(world, loss, embeddings, class_rows, labels, sampled=None):
    """What ranks that share a batch and its classes find, put together.

    ``loss(embeddings, class rows in use, labels, part, rows of the batch)`` is computed by each.

    Returns:
        The loss, and its gradients for all embeddings and all class rows.
    """

    def of_rank(ranks):
        own, classes = ranks.batch_slice(len(labels)), ranks.share(len(class_rows))
        rows = None
        if sampled is not None:
            is_own = (sampled >= classes.start) & (sampled < classes.stop)
            rows = sampled[is_own] - classes.start
        part = ClassesInUse(len(class_rows), ranks, rows)
        new = embeddings[own].detach().clone().requires_grad_()
        shard = class_rows[classes.start : classes.stop].detach().clone().requires_grad_()
        found = loss(new, part.rows(shard), labels[own], part, own)
        found.backward()
        unused = torch.zeros_like(shard)
        return found.detach(), new.grad, unused if shard.grad is None else shard.grad

    found = run_ranks(world, of_rank)
    for result in found:
        if isinstance(result, Exception):
            raise result
    # Training averages what the ranks find for the network, and each keeps its class rows.
    value = torch.stack([result[0] for result in found]).mean()
    return value, torch.cat([r[1] for r in found]) / world, torch.cat([r[2] for r in found])

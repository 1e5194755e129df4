"""A small training set that the old model has embedded, and batches of it."""

import torch
import torch.nn.functional as F

from unibct.losses import arcface
from unibct.methods import find_method
from unibct.methods.base import Batch, OldEmbeddings, Settings

SETTINGS = Settings(scale=16.0, margin=0.3, tau=0.05, lam=0.9, drop=0.2)


def knowledge(**changes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat_interleave(6)
    values = {
        "embeddings": F.normalize(
            torch.randn(24, 8, generator=generator) + 2 * torch.eye(8)[labels], dim=1
        ),
        "labels": labels,
        "class_names": ("a", "b", "c", "d"),
        "old_class_names": ("d", "c", "x", "b", "a"),
        "old_class_weights": torch.randn(5, 8, generator=generator),
    }
    return OldEmbeddings(**(values | changes))


def batch(rows=(0, 7, 13, 23, 5, 9), seed=1, **changes):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor(rows)
    embeddings = torch.randn(len(rows), 8, generator=generator).requires_grad_()
    class_weights = torch.randn(4, 8, generator=generator).requires_grad_()
    return Batch(embeddings, knowledge().labels[rows], rows, class_weights, **changes)


def small_arcface(embeddings, vectors, labels):
    return arcface(embeddings, vectors, labels, scale=16.0, margin=0.3)


def refreshed_loss(name, new=None):
    """The loss of a method from the table on the standard batch, and that batch."""
    old, step = knowledge(), batch()
    method = find_method(name).make(old, SETTINGS)
    method.refresh(new if method.needs_new_embeddings else None)
    return method.loss(step), step

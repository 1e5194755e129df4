"""Prototypes of embeddings that do not fit in memory, some classes at a time."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unibct.arrays import to_numpy
from unibct.embeddings.rows import Rows
from unibct.errors import UserError
from unibct.progress import Progress, Silent
from unibct.prototypes.class_blocks import (
    Block,
    MemoryLimits,
    Source,
    map_classes,
    stored_dtype,
)
from unibct.prototypes.in_memory import grouped_prototypes
from unibct.prototypes.inputs import PrototypeSettings, class_labels, require_same_rows


def streamed_prototypes(
    old: Any,
    labels: Any,
    *,
    new: Any,
    settings: PrototypeSettings,
    classes: range | None = None,
    memory: MemoryLimits | None = None,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Compute prototypes with a bounded amount of memory.

    Args:
        old: (images, dim) the old model's embeddings: the rows of a store, an array or a tensor.
        labels: (images,) integers 0…C-1, each of them in use.
        new: (images, dim′) the new model's embeddings of the same images, or None.
        settings: how the prototypes are computed.
        classes: the classes to compute; all by default.
        memory: limits of memory and disk.
        progress: reports the images as their classes are done.

    Returns:
        (classes, dim) float32, L2-normalised, in label order.
    """
    sources = [_source(old, "old")]
    if new is not None and settings.needs_new:
        sources.append(_source(new, "new"))
        require_same_rows(sources[1], sources[0])
    label_array = class_labels(labels, len(sources[0]))
    sizes = np.bincount(label_array)
    classes = _checked_classes(classes, len(sizes))

    def block_prototypes(block: Block) -> tuple[range, NDArray[np.float32]]:
        tensors = [torch.from_numpy(part) for part in block.parts]
        block_sizes = sizes[block.classes.start : block.classes.stop]
        prototypes = grouped_prototypes(
            tensors[0], block_sizes, new=tensors[-1], settings=settings, order=block.order
        )
        return block.classes, prototypes.float().numpy()

    prototypes = np.empty((len(classes), sources[0].shape[1]), dtype=np.float32)
    total = int(sizes[classes.start : classes.stop].sum())
    blocks = map_classes(block_prototypes, sources, label_array, classes=classes, memory=memory)
    with (progress or Silent()).task("refinement", total) as advance:
        for done, vectors in blocks:
            prototypes[done.start - classes.start : done.stop - classes.start] = vectors
            advance(int(sizes[done.start : done.stop].sum()))
    _require_finite(prototypes, classes, label_array)
    return prototypes


def _source(embeddings: Any, name: str) -> Source:
    """Check the shape and type of embeddings; their values are not read."""
    source = embeddings if isinstance(embeddings, Rows) else to_numpy(embeddings)
    if source.ndim != 2 or source.shape[1] == 0:
        raise UserError(f"{name} must have the shape (rows, dim), not {source.shape}")
    if stored_dtype(source).name not in ("float16", "float32", "float64"):
        raise UserError(f"{name} must be floating point, not {source.dtype}")
    return source


def _checked_classes(classes: range | None, count: int) -> range:
    if classes is None:
        return range(count)
    if classes.step != 1 or not 0 <= classes.start <= classes.stop <= count:
        raise UserError(f"classes must be a range within 0…{count}, not {classes}")
    return classes


def _require_finite(
    prototypes: NDArray[np.float32], classes: range, labels: NDArray[np.int64]
) -> None:
    """Raise an error that names the first class with NaN or infinity, and its first row."""
    finite = np.isfinite(prototypes).all(axis=1)
    if not finite.all():
        bad_class = classes.start + int(finite.argmin())
        raise UserError(
            f"class {bad_class} has NaN or infinite values in its rows, first row "
            f"{int((labels == bad_class).argmax())}; embed the images again"
        )

"""One vector per class in the old space, from arrays, tensors or the rows of a store."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unibct import progress
from unibct.arrays import same_kind, to_numpy
from unibct.embeddings.store import Rows
from unibct.errors import UserError
from unibct.progress import Advance, ignore
from unibct.prototypes.class_blocks import (
    Block,
    MemoryLimits,
    Source,
    map_classes,
    stored_dtype,
)
from unibct.prototypes.inputs import (
    PROTOTYPE_KINDS,
    ClassBatch,
    PrototypeSettings,
    ReusedMemory,
    batches_of_like_size,
    class_labels,
    float_tensor,
    require_same_rows,
    take_rows,
    valid_rows,
)
from unibct.prototypes.weights import weighted_sums

_CACHE_ENTRIES = 260_000  # numbers that fit the innermost cache that holds more than a few rows


def class_prototypes(
    labels: Any,
    *,
    old: Any,
    new: Any = None,
    kind: str = "structural",
    tau: float = 0.05,
    lam: float = 0.9,
    drop: float = 0.1,
    classes: range | None = None,
    memory: MemoryLimits | None = None,
) -> Any:
    """Compute one L2-normalised prototype per class.

    Arrays and tensors are used in memory as they are. The rows of a store are read some classes at
    a time, with a bounded amount of memory; so are arrays and tensors if ``classes`` or ``memory``
    is given.

    Args:
        labels: (images,) integers 0…C-1, each of them in use.
        old: (images, dim) the old model's embeddings: an array, a tensor or a store's ``vectors``.
        new: (images, dim′) the new model's embeddings of the same images, from which
            ``structural`` makes its graph; by default the graph is made from the old ones.
        kind: ``centroid`` (the mean), ``drop`` (the mean without the share ``drop`` farthest from
            it) or ``structural`` (images weighted by a walk over their graph).
        tau: temperature of the graph's softmax.
        lam: share of the walk that follows the graph, 0 ≤ lam < 1.
        drop: share of a class's images that ``drop`` leaves out (rounded down).
        classes: the classes to compute, for one of several processes; all by default.
        memory: limits of memory and disk.

    Returns:
        (classes, dim) in label order, NumPy or torch as ``old`` is (NumPy for a store). They are
        float32; float64 if ``old`` is float64 and computed in memory.
    """
    settings = PrototypeSettings(kind, tau, lam, drop)
    from_store = isinstance(old, Rows) or isinstance(new, Rows)
    if not from_store and classes is None and memory is None:
        return same_kind(_prototypes_in_memory(old, labels, new, settings), old)
    prototypes = streamed_prototypes(
        old, labels, new=new, settings=settings, classes=classes, memory=memory
    )
    return same_kind(prototypes, old)


def _prototypes_in_memory(old: Any, labels: Any, new: Any, settings: PrototypeSettings) -> Tensor:
    vectors = float_tensor(old, "old")
    label_array = class_labels(labels, len(vectors))
    uses_new = new is not None and settings.needs_new
    graph_vectors = float_tensor(new, "new") if uses_new else vectors
    require_same_rows(graph_vectors, vectors)
    with progress.task("refinement", len(vectors)) as advance:
        return grouped_prototypes(
            vectors,
            np.bincount(label_array),
            new=graph_vectors,
            settings=settings,
            order=np.argsort(label_array, kind="stable"),
            advance=advance,
        )


def grouped_prototypes(
    old: Tensor,
    sizes: NDArray[np.int64],
    *,
    new: Tensor,
    settings: PrototypeSettings,
    order: NDArray[np.int64] | None = None,
    advance: Advance = ignore,
) -> Tensor:
    """Compute the prototypes of classes whose rows are in memory, in batches, without any checks.

    Old (images, dim) and new embeddings (images, dim′), which are used if the kind needs them, are
    of any floating point type. ``sizes``, (classes,), are the images of each class, at least one;
    ``order`` has the rows of the first class, then of the second, …: 0, 1, … by default.
    ``advance`` is called with the number of images of each batch.

    Returns:
        (classes, dim) float32 (float64 if ``old`` is), L2-normalised.
    """
    dtype = old.dtype if old.dtype == torch.float64 else torch.float32
    prototypes = old.new_empty(len(sizes), old.shape[1], dtype=dtype)
    memory, weigh = ReusedMemory(), PROTOTYPE_KINDS[settings.kind].load()
    for classes, rows in batches_of_like_size(sizes, max(old.shape[1], new.shape[1]), order):
        valid = valid_rows(sizes[classes], rows, old)
        weights = weigh(ClassBatch(old, new, rows, valid, memory), settings)
        sums = _sums_of_rows(old, rows, weights.to(dtype), memory)
        prototypes[torch.from_numpy(classes)] = torch.nn.functional.normalize(sums, dim=1)
        advance(int(sizes[classes].sum()))
    return prototypes


def _sums_of_rows(
    vectors: Tensor, rows: NDArray[np.int64], weights: Tensor, memory: ReusedMemory
) -> Tensor:
    """Return Σ w_i · v_i/‖v_i‖ (classes, dim) of a batch.

    It takes three passes over the rows, so a few classes at a time are kept in the cache.
    """
    step = max(1, _CACHE_ENTRIES // (rows.shape[1] * vectors.shape[1]))
    parts = [slice(i, i + step) for i in range(0, len(rows), step)]
    return torch.cat(
        [weighted_sums(take_rows(vectors, rows[p], memory), weights[p]) for p in parts]
    )


def streamed_prototypes(
    old: Any,
    labels: Any,
    *,
    new: Any,
    settings: PrototypeSettings,
    classes: range | None = None,
    memory: MemoryLimits | None = None,
) -> NDArray[np.float32]:
    """Compute prototypes some classes at a time, with a bounded amount of memory.

    The arguments are those of ``class_prototypes``, the result (classes, dim) float32.
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
    with progress.task("refinement", total) as advance:
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

"""One vector per class in the old space, from arrays, tensors or the rows of a store."""

from typing import Any

import numpy as np
from torch import Tensor

from unibct.arrays import same_kind
from unibct.embeddings.rows import Rows
from unibct.progress import Progress, Silent
from unibct.prototypes.class_blocks import MemoryLimits
from unibct.prototypes.in_memory import grouped_prototypes
from unibct.prototypes.inputs import (
    PrototypeSettings,
    class_labels,
    float_tensor,
    require_same_rows,
)
from unibct.prototypes.streaming import streamed_prototypes


def class_prototypes(
    old: Any,
    labels: Any,
    *,
    new: Any = None,
    kind: str = "structural",
    tau: float = 0.05,
    lam: float = 0.9,
    drop: float = 0.1,
    classes: range | None = None,
    memory: MemoryLimits | None = None,
    progress: Progress | None = None,
) -> Any:
    """Compute one L2-normalised prototype per class.

    Arrays and tensors are used in memory as they are. The rows of a store are read some classes at
    a time, with a bounded amount of memory; so are arrays and tensors if ``classes`` or ``memory``
    is given.

    Args:
        old: (images, dim) the old model's embeddings: an array, a tensor or a store's ``vectors``.
        labels: (images,) integers 0…C-1, each of them in use.
        new: (images, dim′) the new model's embeddings of the same images, from which
            ``structural`` makes its graph; by default the graph is made from the old ones.
        kind: ``centroid`` (the mean), ``drop`` (the mean without the share ``drop`` farthest from
            it) or ``structural`` (images weighted by a walk over their graph).
        tau: temperature of the graph's softmax.
        lam: share of the walk that follows the graph, 0 ≤ lam < 1.
        drop: share of a class's images that ``drop`` leaves out (rounded down).
        classes: the classes to compute, for one of several processes; all by default.
        memory: limits of memory and disk.
        progress: reports the images as their classes are done.

    Returns:
        (classes, dim) in label order, NumPy or torch as ``old`` is (NumPy for a store). They are
        float32; float64 if ``old`` is float64 and computed in memory.
    """
    settings = PrototypeSettings(kind, tau, lam, drop)
    from_store = isinstance(old, Rows) or isinstance(new, Rows)
    if not from_store and classes is None and memory is None:
        return same_kind(_prototypes_in_memory(old, labels, new, settings, progress), old)
    prototypes = streamed_prototypes(
        old, labels, new=new, settings=settings, classes=classes, memory=memory, progress=progress
    )
    return same_kind(prototypes, old)


def _prototypes_in_memory(
    old: Any, labels: Any, new: Any, settings: PrototypeSettings, progress: Progress | None
) -> Tensor:
    vectors = float_tensor(old, "old")
    label_array = class_labels(labels, len(vectors))
    uses_new = new is not None and settings.needs_new
    graph_vectors = float_tensor(new, "new") if uses_new else vectors
    require_same_rows(graph_vectors, vectors)
    with (progress or Silent()).task("refinement", len(vectors)) as advance:
        return grouped_prototypes(
            vectors,
            np.bincount(label_array),
            new=graph_vectors,
            settings=settings,
            order=np.argsort(label_array, kind="stable"),
            advance=advance,
        )

"""The old and the new model's embeddings of the training set, which methods learn from.

The old embeddings never change, so they are computed once and cached on disk.
"""

import shutil
from typing import Any, cast

import numpy as np
import torch

from unibct import progress
from unibct.embeddings.extraction import cached_embeddings, embed_pixel_batches, embeddings_folder
from unibct.embeddings.stored import StoredEmbeddings
from unibct.methods.base import Method, OldEmbeddings, Settings
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.training.plan import RunContext
from unibct.training.run_folder import NEW_EMBEDDINGS, OLD_EMBEDDINGS
from unibct.training.state import (
    TrainingState,
    class_weights_on_every_rank,
    current_model,
    share_buffers,
)

_IN_MEMORY = 2 << 30  # bytes of embeddings that a single process keeps on its device


def make_method(context: RunContext, old: Embedder) -> Method:
    """Build the run's method from what the old model knows of the training set."""
    entry, recipe = context.run.entry, context.recipe
    embeddings, flipped = torch.empty(0, old.dim, device=context.device), None
    if entry.needs_old_embeddings:
        has_pixels = not isinstance(old, StoredEmbeddings)
        if has_pixels:
            cast(ImageEmbedder, old).to(context.device)
        embeddings = _old_embeddings(context, old)
        if recipe.flip and not has_pixels:
            progress.note(
                f"{old.name} has no embeddings of mirrored images: those of the images as they are "
                "stand for them"
            )
        elif recipe.flip:
            flipped = _old_embeddings(context, old, flip=True)
    class_weights = None
    if entry.needs_old_classifier and isinstance(old, Model):
        class_weights = class_weights_on_every_rank(old, context.device, context.ranks)
    knowledge = OldEmbeddings(
        embeddings=embeddings,
        labels=context.labels,
        class_names=context.images.class_identities,
        old_class_names=old.class_identities if isinstance(old, Model) else (),
        old_class_weights=class_weights,
        flipped=flipped,
        ranks=context.ranks,
    )
    settings = Settings(
        scale=recipe.scale,
        margin=recipe.margin,
        tau=recipe.tau,
        lam=recipe.lam,
        drop=recipe.drop,
        warm_start=bool(recipe.warm_start),
    )
    with progress.silenced():
        return entry.make(knowledge, settings)


def refresh_method(context: RunContext, state: TrainingState) -> None:
    """Let the method look at the new model again, with its embeddings if it asks for them."""
    new_embeddings = _new_embeddings(context, state)
    with progress.silenced():  # the bar of the training stands for it
        state.method.refresh(new_embeddings)
    context.ranks.barrier()
    if context.ranks.first:
        shutil.rmtree(context.out / NEW_EMBEDDINGS, ignore_errors=True)


def _old_embeddings(context: RunContext, old: Embedder, *, flip: bool = False) -> Any:
    """Return (images, dim) of the old model, from the cache if they are there."""
    folder = context.out / OLD_EMBEDDINGS / ("flipped" if flip else "plain")
    if context.options.cache is not None:
        folder = embeddings_folder(context.options.cache, old, context.pixels, flip=flip)
    embeddings = cached_embeddings(
        old,
        context.pixels,
        folder,
        flip=flip,
        label="old embeddings, mirrored" if flip else "old embeddings",
        ranks=context.ranks,
    )
    return _on_device_if_small(context, embeddings.vectors)


def _new_embeddings(context: RunContext, state: TrainingState) -> Any:
    """Return (images, dim) of the network as it is now, or None if the method needs none."""
    if not state.method.needs_new_embeddings:
        return None
    model = current_model(context, state)
    if _fits_in_memory(context, len(context.images)):
        with progress.silenced():
            vectors = embed_pixel_batches(model, context.pixels).vectors
        return _on_device_if_small(context, vectors)
    share_buffers(context, state)
    embeddings = cached_embeddings(
        model,
        context.pixels,
        context.out / NEW_EMBEDDINGS / "plain",
        label="new embeddings",
        ranks=context.ranks,
    )
    return _on_device_if_small(context, embeddings.vectors)


def _fits_in_memory(context: RunContext, images: int) -> bool:
    """Return whether one process keeps the embeddings; several share the rows on disk."""
    return context.ranks.world == 1 and images * context.run.dim * 4 <= _IN_MEMORY


def _on_device_if_small(context: RunContext, vectors: Any) -> Any:
    """Return (images, dim) as a tensor on the device if it fits, else the rows on disk."""
    if _fits_in_memory(context, len(vectors)):
        return torch.from_numpy(np.array(vectors)).to(context.device)
    return vectors

"""The batches of an epoch: their order, their random changes, and all that a step needs of them.

The loader's threads put a batch together. It is copied to the device while the step before it
runs, so that the step never waits for the host.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unibct.data.augmentation import Changes, changed, drawn_changes
from unibct.data.decoding import Pixels
from unibct.distributed.device import pinned, to_device
from unibct.distributed.ranks import sampled_classes
from unibct.methods.base import OldEmbeddings
from unibct.training.plan import RunContext
from unibct.training.recipe import augmented
from unibct.training.state import TrainingState


@dataclass(frozen=True)
class LoadedBatch:
    """One rank's part of a batch."""

    pixels: Tensor  # (own images, height, width, channels) uint8, changed at random
    rows: Tensor  # (own images,) their rows in the training set
    labels: Tensor  # (own images,) their classes
    flipped: Tensor | None  # (own images,) which of them are mirrored; None: flips are off
    # (own images, dim) their old embeddings, if they are on disk and the method uses them.
    old: Tensor | None
    sampled: Tensor | None  # (rows,) the classes of the step, see ``ClassesInUse``; None: all
    whole_batch: NDArray[np.int64]  # (batch,) the rows of all ranks' images
    rng_state: dict[str, Any]  # of ``changes_rng`` after this batch

    def map(self, function: Callable[[Tensor], Tensor]) -> "LoadedBatch":
        """Return the batch with a function applied to each tensor."""
        tensors = {
            field.name: function(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class EpochDraws:
    """What an epoch draws at random, the same on each rank."""

    epoch: int
    order: NDArray[np.int64]  # (images,) rows of the training set, batch after batch
    changes_rng: np.random.Generator  # draws the random changes of the images
    method_rng: np.random.Generator  # the one that the method draws from


def draw_epoch(context: RunContext, state: TrainingState) -> EpochDraws:
    """Draw the order of the current epoch, and put its generators where the last step left them."""
    changes_rng = np.random.default_rng([context.run.seed, state.epoch])
    method_rng = np.random.default_rng([context.run.seed, state.epoch, 1])
    order = changes_rng.permutation(len(context.images))[: context.images_per_epoch]
    if state.generators:  # in the middle of an epoch
        changes_rng.bit_generator.state = state.generators["changes"]
        method_rng.bit_generator.state = state.generators["method"]
    return EpochDraws(state.epoch, order, changes_rng, method_rng)


def remaining_batches(
    context: RunContext, draws: EpochDraws, first_step: int, old: OldEmbeddings | None = None
) -> Iterator[LoadedBatch]:
    """Load this rank's part of each batch from ``first_step`` to the end of the epoch.

    The batches are on the run's device; each is copied there while the step before it runs.
    ``old`` is where to look up the old embeddings of the images, if the method uses them.
    """
    jobs = _loading_jobs(context, draws, first_step, old)
    yield from copied_ahead(context.pixels.prepared(jobs, context.options.workers), context.device)


@dataclass(frozen=True)
class _Drawn:
    """What is drawn for a batch before a thread loads it: threads would draw in any order."""

    place: tuple[int, int]  # epoch and step
    whole_batch: NDArray[np.int64]  # (batch,) the rows of all ranks' images
    own_part: slice  # of this rank
    changes: Changes  # of its images
    augment_seed: int | None  # of the user's own function
    rng_state: dict[str, Any]  # after the draws


def _loading_jobs(
    context: RunContext, draws: EpochDraws, first_step: int, old: OldEmbeddings | None
) -> Iterator[tuple[NDArray[np.int64], Callable[[Pixels], LoadedBatch]]]:
    """Yield the rows of this rank's part of each batch, and what a thread makes of their pixels."""
    recipe, rng = context.recipe, draws.changes_rng
    settings = {name: getattr(recipe, name) for name in ("shift", "flip", "crop", "colour")}
    for step in range(first_step, context.steps_per_epoch):
        whole_batch = draws.order[step * recipe.batch_size : (step + 1) * recipe.batch_size]
        own_part = context.ranks.batch_slice(len(whole_batch))
        changes = drawn_changes(len(whole_batch), rng, **settings).part(own_part)
        augment_seed = None if recipe.augment is None else int(cast(int, rng.integers(2**63)))
        place, state = (draws.epoch, step), dict(rng.bit_generator.state)
        drawn = _Drawn(place, whole_batch, own_part, changes, augment_seed, state)
        yield whole_batch[own_part], partial(_load, context, old, drawn)


def _load(
    context: RunContext, old: OldEmbeddings | None, drawn: _Drawn, pixels: Pixels
) -> LoadedBatch:
    """Put together everything that a step needs, in a thread of the loader.

    ``pixels`` are (own images, height, width, channels), as they were read.
    """
    rows, flipped = drawn.whole_batch[drawn.own_part], drawn.changes.flipped
    old_vectors = None if old is None else old.read_ahead(rows, flipped)
    sampled = None
    if context.samples_classes:
        sampled = sampled_classes(
            context.images.labels[drawn.whole_batch],
            context.own_classes,
            context.recipe.sample_rate,
            np.random.default_rng([context.run.seed, *drawn.place, 2, context.ranks.rank]),
        )
    batch = LoadedBatch(
        pixels=torch.from_numpy(np.ascontiguousarray(_changed(context, drawn, pixels))),
        rows=torch.from_numpy(rows),
        labels=torch.from_numpy(context.images.labels[rows]),
        flipped=None if flipped is None else torch.from_numpy(flipped),
        old=None if old_vectors is None else torch.from_numpy(old_vectors),
        sampled=None if sampled is None else torch.from_numpy(sampled),
        whole_batch=drawn.whole_batch,
        rng_state=drawn.rng_state,
    )
    return batch.map(lambda tensor: pinned(tensor, context.device))


def _changed(context: RunContext, drawn: _Drawn, pixels: Pixels) -> Pixels:
    """Change this rank's images at random, by our changes and then by the user's function."""
    pixels = changed(pixels, drawn.changes)
    augment, seed = context.recipe.augment, drawn.augment_seed
    if augment is None or seed is None:
        return pixels
    # One by one, so that an image's numbers do not depend on the number of processes.
    images = [
        augmented(augment, image[None], np.random.default_rng([seed, place]))
        for place, image in enumerate(pixels, start=drawn.own_part.start)
    ]
    return np.concatenate(images)


# The way to the device.


def copied_ahead(batches: Iterable[LoadedBatch], device: torch.device) -> Iterator[LoadedBatch]:
    """Copy each batch to the device before the step of the batch before it is taken.

    On a GPU the copies have a stream of their own, so that they run beside the steps.
    """
    if device.type == "cpu":
        yield from batches
        return
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    ahead: _CopiedBatch | None = None
    for batch in batches:
        copied = _CopiedBatch(batch, device, stream)
        if ahead is not None:
            yield ahead.ready()
        ahead = copied
    if ahead is not None:
        yield ahead.ready()


class _CopiedBatch:
    """A batch that is being copied to the device."""

    def __init__(
        self, batch: LoadedBatch, device: torch.device, stream: torch.cuda.Stream | None
    ) -> None:
        self._device = device
        self._copied = None if stream is None else torch.cuda.Event()
        with torch.cuda.stream(stream):  # does nothing if it is None
            self._batch = batch.map(lambda tensor: to_device(tensor, device))
            if self._copied is not None:
                self._copied.record()

    def ready(self) -> LoadedBatch:
        """Return the batch; the device, not the host, waits until it is there."""
        if self._copied is None:
            return self._batch
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._copied)

        def used_by_steps(tensor: Tensor) -> Tensor:
            tensor.record_stream(current)  # else its memory could be used again too early
            return tensor

        return self._batch.map(used_by_steps)

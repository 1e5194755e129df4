"""The batches of an epoch: their order, their random changes, and their pixels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.augmentation import Changes, changed, drawn_changes
from unibct.data.decoding import Pixels
from unibct.training.context import RunContext
from unibct.training.state import TrainingState


@dataclass(frozen=True)
class EpochDraws:
    """What an epoch draws at random, the same on each rank.

    Attributes:
        order: (images,) rows of the training set, batch after batch.
        changes_rng: draws the random changes of the images.
        method_rng: the generator that the method draws from.
    """

    order: NDArray[np.int64]
    changes_rng: np.random.Generator
    method_rng: np.random.Generator


@dataclass(frozen=True)
class LoadedBatch:
    """One rank's part of a batch, ready for the device.

    Attributes:
        pixels: (own images, height, width, channels), changed at random.
        rows: (own images,) their rows in the training set.
        flipped: (own images,) which of them are mirrored. None means that flips are off.
        whole_batch: (batch,) the rows of all ranks' images.
        rng_state: the state of ``changes_rng`` after this batch.
    """

    pixels: Pixels
    rows: NDArray[np.int64]
    flipped: NDArray[np.bool_] | None
    whole_batch: NDArray[np.int64]
    rng_state: dict[str, Any]


def draw_epoch(context: RunContext, state: TrainingState) -> EpochDraws:
    """Draw the order of the current epoch, and put its generators where the last step left them."""
    changes_rng = np.random.default_rng([context.run.seed, state.epoch])
    method_rng = np.random.default_rng([context.run.seed, state.epoch, 1])
    order = changes_rng.permutation(len(context.pixels.images))[: context.images_per_epoch]
    if state.generators:  # in the middle of an epoch
        changes_rng.bit_generator.state = state.generators["changes"]
        method_rng.bit_generator.state = state.generators["method"]
    return EpochDraws(order, changes_rng, method_rng)


def remaining_batches(
    context: RunContext, draws: EpochDraws, first_step: int, workers: int | None
) -> Iterator[LoadedBatch]:
    """Load this rank's part of each batch from ``first_step`` to the end of the epoch.

    Args:
        context: the run.
        draws: the epoch's order and generators.
        first_step: the first batch to load.
        workers: threads that load ahead; see ``PixelBatches.prepared``.
    """
    yield from context.pixels.prepared(_loading_jobs(context, draws, first_step), workers)


def _loading_jobs(
    context: RunContext, draws: EpochDraws, first_step: int
) -> Iterator[tuple[NDArray[np.int64], Callable[[Pixels], LoadedBatch]]]:
    """Draw the changes of each whole batch here, because threads would draw in any order."""
    recipe, rng = context.recipe, draws.changes_rng
    for start in range(first_step * recipe.batch_size, len(draws.order), recipe.batch_size):
        whole_batch = draws.order[start : start + recipe.batch_size]
        own_part = context.ranks.batch_slice(len(whole_batch))
        changes = drawn_changes(
            len(whole_batch),
            rng,
            shift=recipe.shift,
            flip=recipe.flip,
            crop=recipe.crop,
            colour=recipe.colour,
            low_resolution=recipe.low_resolution,
        ).part(own_part)
        rows = whole_batch[own_part]
        load = partial(
            _load,
            rows=rows,
            changes=changes,
            whole_batch=whole_batch,
            rng_state=dict(rng.bit_generator.state),
        )
        yield rows, load


def _load(
    pixels: Pixels,
    *,
    rows: NDArray[np.int64],
    changes: Changes,
    whole_batch: NDArray[np.int64],
    rng_state: dict[str, Any],
) -> LoadedBatch:
    return LoadedBatch(changed(pixels, changes), rows, changes.flipped, whole_batch, rng_state)

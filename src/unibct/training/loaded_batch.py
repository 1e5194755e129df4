"""A batch that has been loaded, and its way to the device."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unibct.distributed.device import to_device


@dataclass(frozen=True)
class LoadedBatch:
    """One rank's part of a batch.

    Attributes:
        pixels: (own images, height, width, channels) uint8, changed at random.
        rows: (own images,) their rows in the training set.
        labels: (own images,) their classes.
        flipped: (own images,) which of them are mirrored. None means that flips are off.
        old: (own images, dim) their old embeddings, if they are on disk and the method uses them.
        sampled: (rows,) the classes that the step uses, see ``ClassPart``. None means all.
        whole_batch: (batch,) the rows of all ranks' images.
        rng_state: the state of ``changes_rng`` after this batch.
    """

    pixels: Tensor
    rows: Tensor
    labels: Tensor
    flipped: Tensor | None
    old: Tensor | None
    sampled: Tensor | None
    whole_batch: NDArray[np.int64]
    rng_state: dict[str, Any]

    def map(self, function: Callable[[Tensor], Tensor]) -> "LoadedBatch":
        """Return the batch with a function applied to each tensor."""
        tensors = {
            field.name: function(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


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

"""Gradients averaged over the ranks while the backward pass goes on.

torch's DistributedDataParallel regroups its buckets after the first step, so that a run that was
stopped and goes on adds in another order than one that was not. Here the groups are fixed: with
the same ranks the result is the same to the bit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unibct.distributed.ranks import Ranks

_BUCKET_BYTES = 25 << 20


@dataclass
class _Bucket:
    """Parameters whose gradients travel together."""

    parameters: list[nn.Parameter] = field(default_factory=list[nn.Parameter])
    size: int = 0
    arrived: int = 0
    sent: Tensor | None = None
    work: Any = None


class AveragedGradients:
    """Sends the gradients of parameters as they arrive; the last layers' come first."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], ranks: Ranks, bucket_bytes: int = _BUCKET_BYTES
    ) -> None:
        self._ranks = ranks
        self._buckets: list[_Bucket] = []
        self._next = 0
        if ranks.world == 1:
            return
        for parameter in reversed(list(parameters)):
            size = parameter.numel() * parameter.element_size()
            if not self._buckets or self._buckets[-1].size + size > bucket_bytes:
                self._buckets.append(_Bucket())
            bucket = self._buckets[-1]
            bucket.parameters.append(parameter)
            bucket.size += size
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))

    def _arrived(self, bucket: _Bucket, parameter: Tensor) -> None:
        bucket.arrived += 1
        # In a fixed order, the same in every rank.
        while self._next < len(self._buckets):
            first = self._buckets[self._next]
            if first.arrived < len(first.parameters):
                return
            self._send(first)

    def _send(self, bucket: _Bucket) -> None:
        self._next += 1
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket.parameters
        ]
        bucket.sent = torch.cat(parts)
        bucket.work = dist.all_reduce(bucket.sent, async_op=True)

    def finish(self) -> None:
        """After the backward pass: wait, and put the means in place."""
        while self._next < len(self._buckets):  # parameters that had no part in the loss
            self._send(self._buckets[self._next])
        for bucket in self._buckets:
            bucket.work.wait()
            assert bucket.sent is not None
            means, begin = bucket.sent.div_(self._ranks.world), 0
            for parameter in bucket.parameters:
                end = begin + parameter.numel()
                if parameter.grad is not None:
                    parameter.grad.copy_(means[begin:end].view_as(parameter.grad))
                begin = end
            bucket.arrived, bucket.sent, bucket.work = 0, None, None
        self._next = 0

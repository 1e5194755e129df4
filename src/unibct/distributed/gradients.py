"""Gradients averaged over the ranks during the backward pass.

torch's DistributedDataParallel regroups its buckets after the first step, so a resumed run adds in
another order than one that was never stopped. Here the groups are fixed: with the same number of
ranks the result is identical to the bit.
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
    """Parameters whose gradients are sent together.

    Attributes:
        parameters: the parameters.
        size: of their gradients, in bytes.
        ready: how many gradients the backward pass has computed.
        sums: the gradients in one vector, then a 1 for each that there is and a 0 for each that
            there is not; it becomes their sum over the ranks.
        work: the running transfer.
    """

    parameters: list[nn.Parameter] = field(default_factory=list[nn.Parameter])
    size: int = 0
    ready: int = 0
    sums: Tensor | None = None
    work: Any = None


class AveragedGradients:
    """Averages the gradients of parameters over the ranks.

    A bucket is sent as soon as all its gradients are computed; the last layers come first.
    Call ``finish`` after each backward pass.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], ranks: Ranks, bucket_bytes: int = _BUCKET_BYTES
    ) -> None:
        self._ranks = ranks
        self._buckets: list[_Bucket] = []
        self._next_bucket = 0
        if ranks.world == 1:
            return
        for parameter in reversed(list(parameters)):
            size = parameter.numel() * parameter.element_size()
            if not self._buckets or self._buckets[-1].size + size > bucket_bytes:
                self._buckets.append(_Bucket())
            bucket = self._buckets[-1]
            bucket.parameters.append(parameter)
            bucket.size += size
            parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, bucket))

    def _gradient_ready(self, bucket: _Bucket, parameter: Tensor) -> None:
        bucket.ready += 1
        # Send in a fixed order, which is the same on every rank.
        while self._next_bucket < len(self._buckets):
            first = self._buckets[self._next_bucket]
            if first.ready < len(first.parameters):
                return
            self._send(first)

    def _send(self, bucket: _Bucket) -> None:
        self._next_bucket += 1
        gradients = [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket.parameters
        ]
        is_used = [float(p.grad is not None) for p in bucket.parameters]
        bucket.sums = torch.cat([*gradients, gradients[0].new_tensor(is_used)])
        bucket.work = dist.all_reduce(bucket.sums, async_op=True)

    def finish(self) -> None:
        """Wait for the transfers and replace each gradient by its mean over the ranks."""
        while self._next_bucket < len(self._buckets):  # of parameters that the loss does not use
            self._send(self._buckets[self._next_bucket])
        for bucket in self._buckets:
            bucket.work.wait()
            assert bucket.sums is not None
            means, begin = bucket.sums.div_(self._ranks.world), 0
            uses = means[-len(bucket.parameters) :]
            for place, parameter in enumerate(bucket.parameters):
                end = begin + parameter.numel()
                mean = means[begin:end].view_as(parameter)
                if parameter.grad is not None:
                    parameter.grad.copy_(mean)
                elif uses[place]:  # another rank has used it; only here the host waits
                    parameter.grad = mean.clone()
                begin = end
            bucket.ready, bucket.sums, bucket.work = 0, None, None
        self._next_bucket = 0

"""What the ranks do together in a step: average gradients, and normalise their batches as one.

torch's DistributedDataParallel regroups its buckets after the first step, so a resumed run adds in
another order than one that was never stopped. Here the groups are fixed: with the same number of
ranks the result is identical to the bit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from unibct.distributed.ranks import Ranks

_BUCKET_BYTES = 25 << 20


@dataclass
class _Bucket:
    """Parameters whose gradients are sent together."""

    parameters: list[nn.Parameter] = field(default_factory=list[nn.Parameter])
    size: int = 0  # of their gradients, in bytes
    ready: int = 0  # how many gradients the backward pass has computed
    # The gradients in one vector, then a 1 for each that there is and a 0 for each that there is
    # not; it becomes their sum over the ranks.
    sums: Tensor | None = None
    work: Any = None  # the running transfer


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


_aten: Any = torch.ops.aten
_FOLLOWING = ("drop", "act")  # what timm's BatchNormAct2d applies to its result


class SyncedBatchNorm(_BatchNorm):
    """Batch normalisation with the mean and variance over all ranks.

    torch's own ``SyncBatchNorm`` needs a GPU. The parameters and buffers of ``norm`` are shared.
    If ``norm`` goes on with drop-out and an activation, as timm's layers do, so does this.
    """

    def __init__(self, norm: _BatchNorm, ranks: Ranks) -> None:
        super().__init__(
            norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
        )
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self._ranks = ranks
        self._followed_by = [name for name in _FOLLOWING if hasattr(norm, name)]
        for name in self._followed_by:
            setattr(self, name, getattr(norm, name))

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise as if the batches of all ranks were one: (batch, channels, …) -> same shape."""
        values = self._normalised(input) if self.training else super().forward(input)
        for name in self._followed_by:
            values = getattr(self, name)(values)
        return values

    def _normalised(self, input: Tensor) -> Tensor:
        normalised, mean, variance = cast(
            tuple[Tensor, Tensor, Tensor],
            _Normalised.apply(input, self.weight, self.bias, self.eps, self._ranks),
        )
        if self.running_mean is None or self.running_var is None:
            return normalised
        with torch.no_grad():
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
            momentum = self.momentum
            if momentum is None:  # the mean over all batches
                momentum = 1 / float(self.num_batches_tracked)
            count = input.numel() // input.shape[1] * self._ranks.world
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), momentum)
        return normalised


def synced(network: nn.Module, ranks: Ranks) -> nn.Module:
    """Replace (in place) a network's batch normalisation by one over all ranks."""
    if ranks.world == 1:
        return network
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    plain = not any(hasattr(norm, name) for norm in norms for name in _FOLLOWING)
    if plain and next(network.parameters()).is_cuda:
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(network))
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, SyncedBatchNorm(child, ranks))
    return network


class _Normalised(torch.autograd.Function):
    """torch's own kernels on this rank's images, corrected for those of the other ranks."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        x, weight, bias, eps, ranks = args
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        own_moments = _aten.batch_norm_update_stats(wide, None, None, 0)
        means, variances = ranks.gathered(torch.stack(own_moments)[None]).unbind(dim=1)
        mean = means.mean(dim=0)
        variance = variances.mean(dim=0) + means.var(dim=0, correction=0)
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.ranks, ctx.eps = ranks, eps
        ctx.mark_non_differentiable(mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, eps=eps), mean, variance

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        # With z = (x − mean)·inverse, the gradient of x is
        # weight·inverse·(g − mean(g) − z·mean(g·z)). torch's kernel takes these two means over
        # this rank's images; the correction to those over all ranks is linear in x.
        for_input, for_weight, for_bias = _aten.native_batch_norm_backward(
            grad_outputs[0], x, weight, None, None, mean, inverse, True, ctx.eps, [True] * 3
        )
        own_means = torch.stack([for_bias, for_weight]) / (x.numel() // x.shape[1])
        all_means = ctx.ranks.summed(own_means.clone()) / ctx.ranks.world
        gap, slope = (own_means - all_means) * (inverse if weight is None else weight * inverse)
        slope *= inverse
        shape = [1, -1, *[1] * (x.ndim - 2)]
        slopes, offsets = (part.to(x.dtype).view(shape) for part in (slope, gap - slope * mean))
        for_input.addcmul_(x, slopes).add_(offsets)
        scaled, shifted = ctx.needs_input_grad[1:3]
        return for_input, for_weight if scaled else None, for_bias if shifted else None, None, None

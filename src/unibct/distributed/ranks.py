"""The processes of one run: which of them this is, and what they tell each other.

Alone, everything here costs nothing. Started by ``torchrun`` the processes speak over NCCL on
GPUs and over gloo on CPUs.
"""

import atexit
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from unibct.distributed.device import local_rank
from unibct.errors import UserError

_WAIT = timedelta(hours=2)  # the first rank may read a large file while the others wait


@dataclass(frozen=True)
class Ranks:
    """This process among ``world`` of them; without arguments, alone."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this one speaks and writes for all."""
        return self.rank == 0

    def share(self, total: int) -> range:
        """This rank's part of ``range(total)``: consecutive, and of like size for all ranks."""
        return share_of(total, self.rank, self.world)

    def batch_slice(self, batch: int) -> slice:
        """This rank's part of a batch that the ranks divide evenly."""
        own = batch // self.world
        return slice(self.rank * own, (self.rank + 1) * own)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier()

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in place; no gradients."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """The largest of all ranks' values, in place; no gradients."""
        if self.world > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is up in any rank."""
        if self.world == 1:
            return flag
        return bool(self.largest(torch.tensor(int(flag), device=device)))

    def gathered(self, tensor: Tensor) -> Tensor:
        """All ranks' tensors of one shape, one behind the other; no gradients."""
        if self.world == 1:
            return tensor
        tensor = tensor.contiguous()
        whole = tensor.new_empty((self.world * len(tensor), *tensor.shape[1:]))
        dist.all_gather(list(whole.chunk(self.world)), tensor)
        return whole

    def gathered_rows(self, rows: Tensor) -> Tensor:
        """All ranks' rows, one behind the other, with gradients.

        For a loss that every rank computes from all rows and that is meant once: the gradient of
        the own rows is summed over the ranks' computations, then multiplied by their number,
        because the gradients of the network are averaged over the ranks afterwards.
        """
        if self.world == 1:
            return rows
        return cast(Tensor, _GatheredRows.apply(rows, self))

    def broadcast_from_first(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor, in place, everywhere."""
        if self.world > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def broadcast_numbers(self, *numbers: int) -> list[int]:
        """The first rank's numbers, so that all take one branch whatever each sees on its disk."""
        if self.world == 1:
            return list(numbers)
        own = torch.tensor(numbers, dtype=torch.int64, device=_speaking_device())
        return cast(list[int], self.broadcast_from_first(own).tolist())

    def summed_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """The sum of all ranks' arrays, by way of the device that they speak over."""
        if self.world == 1:
            return array
        return self.summed(torch.from_numpy(array).to(_speaking_device())).cpu().numpy()


ALONE = Ranks()


def share_of(total: int, rank: int, world: int) -> range:
    """The part of ``range(total)`` that falls to a rank."""
    return range(total * rank // world, total * (rank + 1) // world)


def current_ranks() -> Ranks:
    """The ranks that ``torchrun`` started, or this process alone."""
    if dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    world = os.environ.get("WORLD_SIZE", "1")
    if world == "1":
        return ALONE
    if not dist.is_torchelastic_launched() and "MASTER_ADDR" not in os.environ:
        raise UserError(
            f"WORLD_SIZE is {world}, but MASTER_ADDR is not set: start with "
            "`torchrun --nproc-per-node=N -m unibct …`, or unset WORLD_SIZE"
        )
    if local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(local_rank())
    # Both where there are GPUs: a run may still be told to use the CPU.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_WAIT)
    atexit.register(_leave)
    return Ranks(dist.get_rank(), dist.get_world_size())


def _speaking_device() -> str:
    """Where a tensor must be that belongs to no device; a script may have begun with NCCL alone."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class _GatheredRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        rows, ctx.ranks = args
        return ctx.ranks.gathered(rows)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        ranks: Ranks = ctx.ranks
        gradient = ranks.summed(grad_outputs[0].contiguous())
        return gradient[ranks.batch_slice(len(gradient))] * ranks.world, None

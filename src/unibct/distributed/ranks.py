"""The processes of one run, called ranks, and how they exchange tensors.

In a single process all of this does nothing. Processes started by ``torchrun`` communicate over
NCCL on GPUs and over gloo on CPUs.
"""

import atexit
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from unibct.distributed.device import local_rank
from unibct.errors import UserError

_TIMEOUT = timedelta(hours=2)  # the first rank may read a large file while the others wait

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process as one of ``world`` processes. By default it is the only one."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes files."""
        return self.rank == 0

    def share(self, total: int) -> range:
        """Return this rank's part of ``range(total)``.

        Parts are consecutive and differ by at most 1.
        """
        return range(total * self.rank // self.world, total * (self.rank + 1) // self.world)

    def batch_slice(self, batch: int) -> slice:
        """Return this rank's part of a batch whose size the number of ranks divides."""
        size = batch // self.world
        return slice(self.rank * size, (self.rank + 1) * size)

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        if self.world > 1:
            dist.barrier()

    def summed(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place and without gradients."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """Take each element's largest value over all ranks, in place and without gradients."""
        if self.world > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is set on any rank."""
        if self.world == 1:
            return flag
        return bool(self.largest(torch.tensor(int(flag), device=device)))

    def gathered(self, tensor: Tensor) -> Tensor:
        """Concatenate the tensors of all ranks, without gradients.

        The shapes are (n, …), the same on each rank, -> (world · n, …).
        """
        if self.world == 1:
            return tensor
        tensor = tensor.contiguous()
        result = tensor.new_empty((self.world * len(tensor), *tensor.shape[1:]))
        dist.all_gather(list(result.chunk(self.world)), tensor)
        return result

    def gathered_rows(self, rows: Tensor) -> Tensor:
        """Concatenate the rows of all ranks, with gradients: (n, dim) -> (world · n, dim).

        For a loss that every rank computes from all rows, but that counts once. The gradient of
        this rank's rows is the sum over all ranks, multiplied by the number of ranks: the
        gradients of the network are averaged over the ranks afterwards, which divides by it.
        """
        if self.world == 1:
            return rows
        return cast(Tensor, _GatheredRows.apply(rows, self))

    def broadcast_from_first(self, tensor: Tensor) -> Tensor:
        """Copy the first rank's tensor to all ranks, in place."""
        if self.world > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def broadcast_numbers(self, *numbers: int) -> list[int]:
        """Return the first rank's numbers on every rank.

        All ranks then take the same branch, even if they see different files.
        """
        if self.world == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64, device=_communication_device())
        return cast(list[int], self.broadcast_from_first(tensor).tolist())

    def broadcast_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the first rank's NumPy array on every rank. The shapes must be the same."""
        if self.world == 1:
            return array
        tensor = torch.from_numpy(array.copy()).to(_communication_device())
        return self.broadcast_from_first(tensor).cpu().numpy()

    def ask_first(self, question: Callable[[], T]) -> T:
        """Ask a question on the first rank, and return its answer, plain JSON, on every rank.

        For questions about the disk: all ranks then take the same branch, even if they see
        different files. If the question raises a ``UserError``, every rank raises it.
        """
        if self.world == 1:
            return question()
        reply: dict[str, Any] = {}
        if self.first:
            try:
                reply = {"answer": question()}
            except UserError as error:
                reply = {"error": str(error)}
        reply = json.loads(self._broadcast_text(json.dumps(reply)))
        if "error" in reply:
            raise UserError(reply["error"])
        return reply["answer"]

    def _broadcast_text(self, text: str) -> str:
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        size = self.broadcast_numbers(len(data))[0]
        return bytes(self.broadcast_array(np.resize(data, size))).decode()

    def summed_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of a NumPy array over all ranks."""
        if self.world == 1:
            return array
        return self.summed(torch.from_numpy(array).to(_communication_device())).cpu().numpy()


ALONE = Ranks()


def current_ranks() -> Ranks:
    """Return this process's rank if ``torchrun`` started it, else ``ALONE``."""
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
    # With GPUs, set up both backends: the run may still use the CPU.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)
    atexit.register(_leave_group)
    return Ranks(dist.get_rank(), dist.get_world_size())


def _communication_device() -> str:
    """Return a device whose tensors can be sent; a caller may have set up NCCL alone."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class _GatheredRows(torch.autograd.Function):
    """``Ranks.gathered_rows`` with its gradient."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        rows, ctx.ranks = args
        return ctx.ranks.gathered(rows)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        ranks: Ranks = ctx.ranks
        gradient = ranks.summed(grad_outputs[0].contiguous())
        return gradient[ranks.batch_slice(len(gradient))] * ranks.world, None


@dataclass(frozen=True)
class ClassesInUse:
    """The classes that this rank uses in a step: those that it holds, or a sample of them.

    With sampling (Partial FC, An et al., 2022) a step uses the classes of the batch and some random
    others of each rank's range, which saves time and memory.
    """

    classes: int  # all of them
    ranks: Ranks = ALONE  # share them
    sampled: Tensor | None = None  # (rows,) ascending rows of this rank's range; None for all

    @property
    def range(self) -> range:
        """The classes that this rank holds."""
        return self.ranks.share(self.classes)

    @property
    def whole(self) -> bool:
        """Whether this rank uses every class."""
        return self.ranks.world == 1 and self.sampled is None

    def rows(self, class_vectors: Tensor) -> Tensor:
        """Select the rows in use: (own classes, dim) -> (rows in use, dim)."""
        return class_vectors if self.sampled is None else class_vectors[self.sampled]

    def columns(self, labels: Tensor) -> Tensor:
        """Return each label's index among the rows in use, or −1 for other ranks' classes.

        Every label of this rank must be among the rows in use.
        """
        index = labels - self.range.start
        is_own = (index >= 0) & (index < len(self.range))
        if self.sampled is not None:
            index = torch.searchsorted(self.sampled, index.clamp(0, len(self.range) - 1))
        return torch.where(is_own, index, -1)


def sampled_classes(
    labels: NDArray[np.int64], own_classes: range, rate: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the rows of a step: those of the whole batch's (batch,) labels, and random others.

    They are the share ``rate`` of this rank's range of classes, or more if the labels alone are
    more. Returns (rows,) ascending, counted from the beginning of ``own_classes``.
    """
    if not 0 < rate <= 1:
        raise UserError(f"sample_rate must lie in (0, 1], not {rate}")
    first, end = own_classes.start, own_classes.stop
    present = np.unique(labels[(labels >= first) & (labels < end)]) - first
    missing = max(round(rate * len(own_classes)), 1) - len(present)
    keys = rng.random(len(own_classes), dtype=np.float32)  # drawn in any case: the same use of rng
    if missing <= 0:
        return present
    keys[present] = 2.0  # never among the smallest
    negatives = np.argpartition(keys, missing - 1)[:missing]
    return np.sort(np.concatenate([present, negatives]))


def step_rows(
    weights: Tensor,
    momentum_buffer: Tensor,
    rows: Tensor,
    gradient: Tensor,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Make a step of ``torch.optim.SGD`` on some rows, in place. The others stay.

    The weights and their momentum are (own classes, dim), the rows to change (rows,), and their
    gradient (rows, dim).
    """
    before = weights[rows]
    velocity = momentum * momentum_buffer[rows] + gradient + weight_decay * before
    momentum_buffer[rows] = velocity
    weights[rows] = before - lr * velocity

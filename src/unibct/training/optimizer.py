"""The optimiser of a run: what it trains at which rates, clipping, and the scale of the loss."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from unibct.distributed.ranks import ALONE, Ranks
from unibct.models.old_space import MODULE
from unibct.training.recipe import Recipe

_VECTOR_HEAD = ("layers.weight", "layers.bias", "layers.3.")  # of networks for finished vectors
# The last layers of every network, by their names, and the projection into the old space.
HEAD = ("head.", "fc.", "features.", *_VECTOR_HEAD, f"{MODULE}.")
_FACTOR = "factor"  # of a group's learning rate
# What torch keeps for each parameter, and its name in a checkpoint.
_KEPT = {
    "momentum_buffer": "momentum",
    "exp_avg": "mean",
    "exp_avg_sq": "square",
    "step": "updates",
}
_SECOND_BETA = 0.999
_aten: Any = torch.ops.aten
_SMALLEST, _LARGEST = 1.0, 2.0**24  # scales of the loss
_GROWTH_INTERVAL = 2000  # steps without an overflow before the scale doubles


def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[Any]:
    """Return the same optimiser without the wrappers that import torch's compiler.

    They keep `torch.compile` out of these methods and do nothing else, but the import takes a
    second of each process. We compile the network only, so they are not needed.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict", "step")
    plain: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    plain["step"] = torch.no_grad()(plain["step"])  # the wrapper's other half
    return type(kind.__name__, (kind,), plain)


SGD, AdamW = _without_compiler(torch.optim.SGD), _without_compiler(torch.optim.AdamW)


def make_optimizer(
    recipe: Recipe, network: nn.Module, class_weights: nn.Parameter | None
) -> torch.optim.Optimizer:
    """Return the optimiser of a network, whose layers before the head may have their own rate.

    ``class_weights`` is None if they are trained in another way.
    """
    trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    others = [] if class_weights is None else [class_weights]
    if recipe.backbone_lr == 1:
        groups = [{"params": [p for _, p in trained] + others}]
    else:
        head = [p for name, p in trained if name.startswith(HEAD)]
        backbone = [p for name, p in trained if not name.startswith(HEAD)]
        groups = [{"params": backbone, _FACTOR: recipe.backbone_lr}, {"params": head + others}]
        groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "adamw":
        betas = (recipe.momentum, _SECOND_BETA)
        return AdamW(groups, lr=recipe.lr, betas=betas, weight_decay=recipe.weight_decay)
    return SGD(groups, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(_FACTOR, 1.0)


def kept_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """Return what the optimiser keeps for some parameters, such as ``momentum.NAME``."""
    return {
        f"{name}.{key}": optimizer.state[parameter][field]
        for key, parameter in parameters.items()
        for field, name in _KEPT.items()
        if optimizer.state.get(parameter, {}).get(field) is not None
    }


def restore_kept(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
) -> None:
    """Put back what ``kept_tensors`` returned."""
    for key, parameter in parameters.items():
        for field, name in _KEPT.items():
            saved = tensors.get(f"{name}.{key}")
            if saved is None:
                continue
            if field == "step":  # torch keeps the count of updates on the host
                optimizer.state[parameter][field] = saved.clone().cpu()
            else:
                optimizer.state[parameter][field] = torch.empty_like(parameter).copy_(saved)


def is_count(name: str) -> bool:
    """Return whether a kept tensor is one number, and not as large as its parameter."""
    return name.startswith(f"{_KEPT['step']}.")


def gradients_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that the backward pass has computed."""
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def clip_gradients(
    shared: Sequence[Tensor], class_weights: Sequence[Tensor], largest: float, ranks: Ranks = ALONE
) -> None:
    """Scale gradients down (in place) if their common norm is above ``largest``.

    torch's own norm is that of one process. Here the gradients of ``shared`` are the same on every
    rank, but each has ``class_weights`` of its own, whose gradients belong to the same norm. The
    host never waits for the device.
    """
    squares = ranks.summed(get_total_norm(gradients_of(class_weights)).square())
    norm = (squares + get_total_norm(gradients_of(shared)).square()).sqrt()
    clip_grads_with_norm_([*shared, *class_weights], largest, norm)


# torch's ``GradScaler`` knows the gradients of one optimiser in one process. Here all ranks must
# agree on an overflow, and sampled class weights belong to no optimiser; so the rule is ours, and
# the arithmetic is the function that ``GradScaler`` itself uses.


@dataclass
class LossScale:
    """The factor on the loss that keeps half-precision gradients from becoming zero."""

    value: float = 2.0**16  # a power of two, so that scaling and unscaling are exact
    good_steps: int = 0  # without an overflow, since the scale last changed

    def unscale(self, gradients: Sequence[Tensor], ranks: Ranks = ALONE) -> bool:
        """Divide gradients by the scale, in place; return whether those of all ranks are finite.

        This is the one place of a step where the host waits for the device.
        """
        device = gradients[0].device
        overflow = torch.zeros(1, device=device)
        inverse = torch.full((1,), 1 / self.value, device=device)
        _aten._amp_foreach_non_finite_check_and_unscale_(list(gradients), overflow, inverse)
        return not bool(ranks.largest(overflow))

    def update(self, finite: bool) -> None:
        """Halve the scale after an overflow; double it after 2000 steps without one."""
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2, _SMALLEST)
        elif self.good_steps == _GROWTH_INTERVAL:
            self.value, self.good_steps = min(self.value * 2, _LARGEST), 0

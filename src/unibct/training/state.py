"""The state of a run: everything that changes, from the first weights to a checkpoint and back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unibct.distributed.gradients import synced
from unibct.distributed.ranks import ALONE, Ranks
from unibct.methods.base import Method
from unibct.models.architectures import build_network
from unibct.models.model import Model
from unibct.models.model_folder import tensors_under
from unibct.models.old_space import add_projection
from unibct.training.network import freeze_layers
from unibct.training.optimizer import (
    LossScale,
    is_count,
    kept_tensors,
    make_optimizer,
    restore_kept,
)
from unibct.training.plan import RunContext
from unibct.training.run_folder import Checkpoint, save_checkpoint, write_metrics

_CLASSES = "class_weights"
_CHUNK = 1 << 16  # rows of class weights that are drawn at a time


@dataclass
class TrainingState:
    """Everything that changes during a run."""

    network: nn.Module  # (batch, channels, height, width) -> (batch, dim)
    class_weights: nn.Parameter  # (own classes, dim) the rows of this rank's classes
    # (own classes, dim) in a run that samples classes; otherwise (0, dim), because the optimiser
    # holds the momentum.
    class_momentum: Tensor
    optimizer: torch.optim.Optimizer  # of network, method, and class weights unless sampled
    loss_sums: Tensor  # (2,) this epoch's sums of classification and compatibility loss
    method: Method = field(default_factory=Method)
    epoch: int = 0  # the current one, counted from 0
    step: int = 0  # steps of this epoch that are done
    # States of the random generators after the last step; empty between epochs.
    generators: dict[str, Any] = field(default_factory=dict[str, Any])
    loss_scale: LossScale = field(default_factory=LossScale)  # in half precision
    metrics: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # a row per epoch

    def network_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the network that are trained."""
        return [p for p in self.network.parameters() if p.requires_grad]

    def use_method(self, method: Method) -> None:
        """Replace the method, and train its parameters."""
        self.method = method
        if method.parameters():
            self.optimizer.add_param_group({"params": method.parameters()})

    def steps_done(self, context: RunContext) -> int:
        """Return the number of steps of the whole run that are done."""
        return self.epoch * context.steps_per_epoch + self.step

    def start_next_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.epoch, self.step, self.generators = self.epoch + 1, 0, {}
        self.loss_sums.zero_()

    def optimized_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters other than class weights, by their names in a checkpoint."""
        network = {f"network.{i}": p for i, p in enumerate(self.network_parameters())}
        return network | {f"method.{i}": p for i, p in enumerate(self.method.parameters())}


def initial_state(context: RunContext) -> TrainingState:
    """Build network and class weights from the seed, the same on each rank."""
    run, recipe, ranks = context.run, context.recipe, context.ranks
    architecture = context.run.architecture
    network: Any = build_network(architecture, context.run.input, run.dim, seed=run.seed)
    if architecture.start is not None:
        architecture.start(network)
    if run.projected_dim is not None:
        add_projection(network, run.dim, run.projected_dim, seed=run.seed)
    network = network.to(context.device, memory_format=torch.channels_last)
    network = synced(network, ranks) if recipe.sync_batch_norm else network
    rows = initial_class_weights(
        len(context.images.class_names), run.dim, run.seed + 1, context.own_classes
    )
    class_weights = nn.Parameter(rows.to(context.device))
    sampled_rows = class_weights if context.samples_classes else class_weights[:0]
    freeze_layers(network, recipe.freeze)
    optimizer = make_optimizer(recipe, network, None if context.samples_classes else class_weights)
    for tensor in network.state_dict().values():
        ranks.broadcast_from_first(tensor)
    return TrainingState(
        network=network,
        class_weights=class_weights,
        class_momentum=torch.zeros_like(sampled_rows, requires_grad=False),
        optimizer=optimizer,
        loss_sums=torch.zeros(2, device=context.device),
    )


def initial_class_weights(classes: int, dim: int, seed: int, own_classes: range) -> Tensor:
    """Draw (own classes, dim) rows of a (classes, dim) matrix that depends only on the seed.

    The matrix is drawn in chunks, so that no rank holds all of it.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.empty(len(own_classes), dim)
    for begin in range(0, classes, _CHUNK):
        chunk = torch.randn(min(_CHUNK, classes - begin), dim, generator=generator) * 0.01
        low = max(begin, own_classes.start)
        high = min(begin + len(chunk), own_classes.stop)
        if low < high:
            own_rows = slice(low - own_classes.start, high - own_classes.start)
            weights[own_rows] = chunk[low - begin : high - begin]
    return weights


def copy_known_classes(
    class_weights: Tensor,
    class_identities: Sequence[str],
    own_classes: range,
    old: Model,
    ranks: Ranks = ALONE,
) -> None:
    """Overwrite the rows of classes that the old model knows with its class weights, if any.

    ``class_weights`` are (own classes, dim), changed in place; ``class_identities`` are those of
    all new classes.
    """
    old_class_weights = class_weights_on_every_rank(old, class_weights.device, ranks)
    if old_class_weights is None:
        return
    old_rows = {identity: row for row, identity in enumerate(old.class_identities)}
    known = [i for i in own_classes if class_identities[i] in old_rows]
    own_rows = [i - own_classes.start for i in known]
    with torch.no_grad():
        old_weights = old_class_weights[[old_rows[class_identities[i]] for i in known]]
        class_weights[own_rows] = old_weights.to(class_weights)


def class_weights_on_every_rank(old: Model, device: torch.device, ranks: Ranks) -> Tensor | None:
    """Return the old class weights. Those of a model just trained are on the first rank only."""
    if not ranks.any(old.class_weights is None, device):
        return old.class_weights
    known = ranks.broadcast_numbers(0 if old.class_weights is None else 1)[0]
    if not known:
        return None
    whole = torch.empty(len(old.class_identities), old.dim, device=device)
    if old.class_weights is not None:
        whole.copy_(old.class_weights)
    return ranks.broadcast_from_first(whole)


def current_model(context: RunContext, state: TrainingState) -> Model:
    """Return the network as it is now, as a model."""
    architecture = context.run.architecture
    return Model(
        state.network,
        architecture.name,
        context.run.input,
        context.run.dim,
        architecture_config=architecture.config,
    )


def share_buffers(context: RunContext, state: TrainingState) -> None:
    """Give all ranks the first rank's running means, which each took over its own images."""
    if not context.recipe.sync_batch_norm:
        for buffer in state.network.buffers():
            context.ranks.broadcast_from_first(buffer)


def save_state(context: RunContext, state: TrainingState, folder: Path) -> None:
    """Write a checkpoint and the metrics of the epochs so far. Every rank calls this."""
    share_buffers(context, state)
    values = {
        "described": context.description,
        "epoch": state.epoch,
        "step": state.step,
        "generators": state.generators,
        "loss_scale": [state.loss_scale.value, state.loss_scale.good_steps],
        "metrics": state.metrics,
    }
    checkpoint = Checkpoint(values, *_checkpoint_tensors(context, state))
    place, classes = (state.epoch, state.step), len(context.images.class_names)
    save_checkpoint(folder, place, checkpoint, classes=classes, ranks=context.ranks)
    if context.ranks.first:
        write_metrics(folder, state.metrics)


def _checkpoint_tensors(
    context: RunContext, state: TrainingState
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors that are the same on each rank, and the rows of this rank's classes."""
    of_classes = kept_tensors(state.optimizer, {_CLASSES: state.class_weights})
    tensors = {f"network.{name}": value for name, value in state.network.state_dict().items()}
    tensors["sums"] = context.ranks.gathered(state.loss_sums[None])
    tensors |= kept_tensors(state.optimizer, state.optimized_parameters())
    tensors |= {name: value for name, value in of_classes.items() if is_count(name)}
    tensors |= {f"method.{name}": value for name, value in state.method.state().items()}
    rows = {_CLASSES: state.class_weights.detach()}
    if context.samples_classes:
        rows["class_momentum"] = state.class_momentum
    rows |= {
        f"class_{name.removesuffix(f'.{_CLASSES}')}": value
        for name, value in of_classes.items()
        if not is_count(name)
    }
    return tensors, rows | {f"method.{k}": v for k, v in state.method.class_state().items()}


def restore_state(
    context: RunContext, state: TrainingState, checkpoint: Checkpoint, *, with_method: bool = True
) -> None:
    """Continue from a checkpoint; to the bit if the number of ranks is the same.

    The checkpoint has the rows of this rank's classes. ``with_method`` is False for one of another
    run's warm-up, whose method may be another one.
    """
    tensors, class_tensors = checkpoint.tensors, checkpoint.class_tensors
    state.network.load_state_dict(tensors_under("network.", tensors))
    with torch.no_grad():
        state.class_weights.copy_(class_tensors["class_weights"])
        sums = tensors["sums"]  # (ranks, 2)
        same_ranks = len(sums) == context.ranks.world
        state.loss_sums.copy_(sums[context.ranks.rank] if same_ranks else sums.mean(dim=0))
    restore_kept(state.optimizer, state.optimized_parameters(), tensors)
    if context.samples_classes:
        state.class_momentum.copy_(class_tensors["class_momentum"])
    else:
        moments = {name: tensor for name, tensor in tensors.items() if is_count(name)} | {
            f"{name.removeprefix('class_')}.{_CLASSES}": tensor
            for name, tensor in class_tensors.items()
        }
        restore_kept(state.optimizer, {_CLASSES: state.class_weights}, moments)
    if with_method:
        method_state = tensors_under("method.", tensors) | tensors_under("method.", class_tensors)
        state.method.load_state({k: v.to(context.device) for k, v in method_state.items()})
    values = checkpoint.state
    state.epoch, state.step = values["epoch"], values["step"]
    state.generators, state.metrics = values["generators"], values["metrics"]
    state.loss_scale = LossScale(*values["loss_scale"])

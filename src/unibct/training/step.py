"""One training step: forward, losses, backward, and the update of all weights."""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unibct.distributed.gradients import AveragedGradients
from unibct.distributed.ranks import ClassesInUse, step_rows
from unibct.losses import sharded_arcface
from unibct.methods.base import Batch
from unibct.models.input import normalised
from unibct.models.old_space import projection_weight
from unibct.training.batches import LoadedBatch
from unibct.training.network import autocast, seed_step
from unibct.training.optimizer import clip_gradients, gradients_of, set_rate
from unibct.training.plan import RunContext
from unibct.training.state import TrainingState


@dataclass(frozen=True)
class StepResult:
    """The numbers of one step, for curves."""

    loss: Tensor  # the one that was minimised, a scalar on the device
    loss_cls: Tensor  # its classification part
    lr: float


class TrainingStep:
    """A step of a run; make it once, when the state has its method, and call ``take`` per batch."""

    def __init__(self, context: RunContext, state: TrainingState) -> None:
        self.context = context
        self.state = state
        network, compiled = state.network, context.recipe.compile
        self._forward = cast(nn.Module, torch.compile(network)) if compiled else network
        averaged = [*state.method.parameters(), *state.network_parameters()]
        self._averaged_gradients = AveragedGradients(averaged, context.ranks)
        # Networks of others may draw random numbers, in layers that we do not know.
        self._draws_numbers = context.run.architecture.config is not None

    def take(self, loaded: LoadedBatch, method_rng: np.random.Generator) -> StepResult:
        """Train on one batch, and add its losses to the sums of the epoch."""
        context, recipe, state = self.context, self.context.recipe, self.state
        epochs_done = state.epoch + (state.step + 0.5) / context.steps_per_epoch
        lr = recipe.learning_rate(epochs_done)
        set_rate(state.optimizer, lr)
        if self._draws_numbers:
            seed_step(context.run.seed, state.epoch, state.step, context.ranks.rank)
        with autocast(recipe.precision, context.device):
            embeddings = self._forward(normalised(loaded.pixels, context.run.input))
        part = ClassesInUse(len(context.images.class_names), context.ranks, loaded.sampled)
        class_weights: Tensor = state.class_weights
        if loaded.sampled is not None:  # a leaf for the gradients of the classes in use
            class_weights = part.rows(class_weights.detach()).requires_grad_()
        batch = Batch(
            embeddings=embeddings.float(),
            labels=loaded.labels,
            rows=loaded.rows,
            class_weights=class_weights,
            progress=epochs_done / recipe.epochs,
            rng=method_rng,
            flipped=loaded.flipped,
            part=part,
            old=loaded.old,
            whole_batch=torch.from_numpy(loaded.whole_batch),
        )
        loss, loss_cls = self._losses(batch, class_weights, part)
        state.optimizer.zero_grad()
        (loss * state.loss_scale.value if recipe.precision == "float16" else loss).backward()
        self._averaged_gradients.finish()
        self._update(class_weights, loaded.sampled, lr)
        state.loss_sums[0] += loss_cls.detach()
        return StepResult(loss.detach(), loss_cls.detach(), lr)

    def _losses(
        self, batch: Batch, class_weights: Tensor, part: ClassesInUse
    ) -> tuple[Tensor, Tensor]:
        """Return L = L_cls + η·L_comp, and L_cls."""
        recipe, method = self.context.recipe, self.state.method
        compatible = self.state.epoch >= self.context.run.method_start
        loss_cls = sharded_arcface(
            method.classified(batch) if compatible else batch.embeddings,
            class_weights,
            batch.labels,
            part,
            scale=recipe.scale,
            margin=recipe.margin,
        )
        if not compatible or recipe.eta == 0:
            return loss_cls, loss_cls
        if self.context.run.projected_dim is not None:  # the method works in the old space
            weight = projection_weight(self.state.network)
            assert weight is not None
            # The projection learns from the embeddings only: each rank holds other class weights,
            # so the mean over ranks would not be their gradient.
            batch = replace(
                batch,
                embeddings=F.linear(batch.embeddings, weight),
                class_weights=F.linear(class_weights, weight.detach()),
                projected=True,
            )
        loss_comp = method.loss(batch)
        self.state.loss_sums[1] += loss_comp.detach()
        return loss_cls + recipe.eta * loss_comp, loss_cls

    def _update(self, class_weights: Tensor, sampled: Tensor | None, lr: float) -> None:
        """Update everything that is trained; ``class_weights`` are those of the classes in use."""
        ranks, recipe, state = self.context.ranks, self.context.recipe, self.state
        shared = [*state.network_parameters(), *state.method.parameters()]
        if recipe.precision == "float16":
            finite = state.loss_scale.unscale(gradients_of([*shared, class_weights]), ranks)
            state.loss_scale.update(finite)
            if not finite:  # of any rank
                return
        if recipe.clip:
            clip_gradients(shared, [class_weights], recipe.clip, ranks)
        state.optimizer.step()
        # The optimiser would also decay and move the rows of classes that were not sampled.
        if sampled is not None and class_weights.grad is not None:
            step_rows(
                state.class_weights.data,
                state.class_momentum,
                sampled,
                class_weights.grad,
                lr=lr,
                momentum=recipe.momentum,
                weight_decay=recipe.weight_decay,
            )

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
from unibct.training.context import RunContext
from unibct.training.network import autocast, seed_step
from unibct.training.optimizer import clip_gradients, gradients_of, set_rate
from unibct.training.state import TrainingState


@dataclass(frozen=True)
class StepResult:
    """The numbers of one step, for curves.

    Attributes:
        loss: the loss that was minimised, a scalar on the device.
        loss_cls: its classification part.
        lr: the learning rate.
    """

    loss: Tensor
    loss_cls: Tensor
    lr: float


class TrainingStep:
    """A step of a run; make it once, when the state has its method, and call ``take`` per batch."""

    def __init__(self, context: RunContext, state: TrainingState) -> None:
        self.context = context
        self.state = state
        network = state.network
        compiled = context.recipe.compile
        self._forward = cast(nn.Module, torch.compile(network)) if compiled else network
        averaged = [*state.method.parameters(), *state.network_parameters()]
        self._averaged_gradients = AveragedGradients(averaged, context.ranks)
        # Networks of others may draw random numbers, in layers that we do not know.
        self._draws_numbers = context.architecture.config is not None

    def take(self, loaded: LoadedBatch, method_rng: np.random.Generator) -> StepResult:
        """Train on one batch, and add its losses to the sums of the epoch."""
        context, state = self.context, self.state
        epochs_done = state.epoch + (state.step + 0.5) / context.steps_per_epoch
        lr = context.recipe.learning_rate(epochs_done)
        set_rate(state.optimizer, lr)
        place = (context.run.seed, state.epoch, state.step)
        if state.dropout is not None:
            state.dropout.set_place(*place)
        if self._draws_numbers:
            seed_step(*place, context.ranks.rank)
        batch = self._embedded(loaded, method_rng, epochs_done / context.recipe.epochs)
        loss, loss_cls = self._losses(batch)
        self._add_gradients(loss)
        if self._ends_update:
            self._update(batch, lr)
        state.loss_sums[0] += loss_cls.detach()
        return StepResult(loss.detach(), loss_cls.detach(), lr)

    @property
    def _ends_update(self) -> bool:
        """Whether this batch's gradients are the last of an update."""
        done = self.state.step + 1
        return done % self.context.recipe.accumulate == 0 or done == self.context.steps_per_epoch

    def _embedded(
        self, loaded: LoadedBatch, method_rng: np.random.Generator, progress: float
    ) -> Batch:
        """Run the forward pass and collect what the losses need."""
        with autocast(self.context.recipe.precision, self.context.device):
            embeddings = self._forward(normalised(loaded.pixels, self.context.input))
        part, class_weights = self._classes_in_use(loaded)
        return Batch(
            embeddings=embeddings.float(),
            labels=loaded.labels,
            rows=loaded.rows,
            class_weights=class_weights,
            progress=progress,
            rng=method_rng,
            flipped=loaded.flipped,
            part=part,
            old=loaded.old,
            whole_batch=torch.from_numpy(loaded.whole_batch),
        )

    def _classes_in_use(self, loaded: LoadedBatch) -> tuple[ClassesInUse, Tensor]:
        """Return the classes that this step uses, and their weights as a leaf for gradients."""
        context, class_weights = self.context, self.state.class_weights
        part = ClassesInUse(len(context.class_names), context.ranks, loaded.sampled)
        if loaded.sampled is None:
            return part, class_weights
        return part, part.rows(class_weights.detach()).requires_grad_()

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return L = L_cls + η·L_comp, and L_cls."""
        recipe, method = self.context.recipe, self.state.method
        assert batch.class_weights is not None
        assert batch.part is not None
        compatible = self.state.epoch >= self.context.run.method_start
        loss_cls = sharded_arcface(
            method.classified(batch) if compatible else batch.embeddings,
            batch.class_weights,
            batch.labels,
            batch.part,
            scale=recipe.scale,
            margin=recipe.margin,
        )
        if not compatible or recipe.eta == 0:
            return loss_cls, loss_cls
        loss_comp = method.loss(self._in_old_space(batch))
        self.state.loss_sums[1] += loss_comp.detach()
        return loss_cls + recipe.eta * loss_comp, loss_cls

    def _in_old_space(self, batch: Batch) -> Batch:
        """Return the batch as the method sees it: projected, if the dimensions differ.

        The class weights are projected too. The projection learns from the embeddings only: each
        rank holds other class weights, so the mean over ranks would not be their gradient.
        """
        network = self.state.network
        if self.context.run.projected_dim is None:
            return batch
        weight = projection_weight(network)
        assert weight is not None
        assert batch.class_weights is not None
        return replace(
            batch,
            embeddings=F.linear(batch.embeddings, weight),
            class_weights=F.linear(batch.class_weights, weight.detach()),
            projected=True,
        )

    def _add_gradients(self, loss: Tensor) -> None:
        """Run the backward pass; several batches may add up to one update."""
        recipe, state = self.context.recipe, self.state
        first = state.step - state.step % recipe.accumulate
        if state.step == first:
            state.optimizer.zero_grad()
        batches = min(recipe.accumulate, self.context.steps_per_epoch - first)
        if batches > 1:
            loss = loss / batches
        (loss * state.loss_scale.value if recipe.precision == "float16" else loss).backward()
        self._averaged_gradients.finish()

    def _update(self, batch: Batch, lr: float) -> None:
        """Update everything that is trained."""
        context, recipe, state = self.context, self.context.recipe, self.state
        assert batch.class_weights is not None
        assert batch.part is not None
        if recipe.precision == "float16" and not self._unscale_gradients(batch.class_weights):
            return
        if recipe.clip:
            shared = [*state.network_parameters(), *state.method.parameters()]
            clip_gradients(shared, [batch.class_weights], recipe.clip, context.ranks)
        state.optimizer.step()
        # The optimiser would also decay and move the rows of classes that were not sampled.
        if batch.part.sampled is not None and batch.class_weights.grad is not None:
            step_rows(
                state.class_weights.data,
                state.class_momentum,
                batch.part.sampled,
                batch.class_weights.grad,
                lr=lr,
                momentum=recipe.momentum,
                weight_decay=recipe.weight_decay,
            )
        if state.average is not None:
            updates = state.steps_done(context) // recipe.accumulate
            state.average.update(state.network, state.class_weights, updates)

    def _unscale_gradients(self, class_weights: Tensor) -> bool:
        """Take the loss scale out of the gradients; return False if any rank's overflowed."""
        state = self.state
        trained = [*state.network_parameters(), class_weights, *state.method.parameters()]
        finite = state.loss_scale.unscale(gradients_of(trained), self.context.ranks)
        state.loss_scale.update(finite)
        return finite

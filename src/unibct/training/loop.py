"""The training loop: epochs, batches, refreshes of the method, checkpoints, metrics, stopping."""

import time

from unibct.progress import Advance
from unibct.training.batches import EpochDraws, draw_epoch, remaining_batches
from unibct.training.best_state import keep_best
from unibct.training.context import RunContext
from unibct.training.divergence import require_finite
from unibct.training.frozen_layers import train_mode
from unibct.training.metrics import EpochMetrics
from unibct.training.options import TrainOptions
from unibct.training.shared_warmup import save_shared_warmup
from unibct.training.state import TrainingState, save_state
from unibct.training.step import StepResult, TrainingStep
from unibct.training.stopping import StopRequest, stop_request
from unibct.training.tracking import Tracker
from unibct.training.training_set_embeddings import refresh_method
from unibct.training.validation_recall import note_epoch, row_strength, validated

_AGREE_EVERY = 8  # steps; on a GPU, asking all ranks whether to stop delays the next step
_TRACK_EVERY = 20  # steps between two points of a curve


class TrainingLoop:
    """The epochs that are left of a run.

    Attributes:
        context: the run.
        state: changed in place; it may be in the middle of an epoch.
        options: workers, checkpoints and progress.
        tracker: records curves.
    """

    def __init__(
        self,
        context: RunContext,
        state: TrainingState,
        options: TrainOptions,
        tracker: Tracker | None = None,
    ) -> None:
        self.context = context
        self.state = state
        self.options = options
        self.tracker = tracker
        self._step = TrainingStep(context, state)

    def run(self) -> None:
        """Train to the end, with a checkpoint after each epoch and where the options ask for one.

        Raises:
            KeyboardInterrupt: after a checkpoint, if someone asked the run to stop.
        """
        context, state, progress = self.context, self.state, self.options.progress
        per_epoch, recipe = context.images_per_epoch, context.recipe
        done = per_epoch * state.epoch + recipe.batch_size * state.step
        with progress.task(self.options.label, per_epoch * recipe.epochs, done=done) as advance:
            if state.metrics:  # of a run that goes on
                self._show_status(advance)
            while state.epoch < recipe.epochs:
                begin = time.perf_counter()
                if state.step == 0 and context.run.refreshes_at(state.epoch):
                    refresh_method(context, state, progress)
                with stop_request() as stop:
                    self._run_epoch(advance, stop, begin)
                # Asked for after the block: until its end, a signal is only remembered.
                if context.ranks.any(stop.wanted, context.device):
                    raise KeyboardInterrupt

    def _run_epoch(self, advance: Advance, stop: StopRequest, begin: float) -> None:
        """Train to the end of the current epoch, record its metrics, and move to the next one."""
        context, state = self.context, self.state
        images = context.images_per_epoch - state.step * context.recipe.batch_size
        draws = draw_epoch(context, state)
        self.take_steps(draws, advance, stop)
        loss_cls, loss_comp = self._mean_losses()
        first_batch = draws.order[: context.recipe.batch_size]
        require_finite(context, state, loss_cls + loss_comp, first_batch)
        seconds = time.perf_counter() - begin
        validation = validated(context, state)
        compatible = state.epoch >= context.run.method_start
        metrics = EpochMetrics(
            epoch=state.epoch,
            lr=state.optimizer.param_groups[-1]["lr"],
            eta=context.recipe.eta if compatible else 0.0,
            loss_cls=loss_cls,
            loss_comp=loss_comp,
            seconds=seconds,
            images_per_second=images / seconds,
            **validation,
        )
        state.metrics.append(metrics.row())
        note_epoch(context, state.metrics[-1], self.options.progress)
        self._show_status(advance)
        tracked = {"images_per_second": metrics.images_per_second} | validation
        self._track(tracked, state.steps_done(context) - 1)
        state.start_next_epoch()
        save_state(context, state, context.out)
        keep_best(context, state)
        save_shared_warmup(context, state, self.options.progress)

    def _show_status(self, advance: Advance) -> None:
        """Show the last epoch's recall@1 beside the bar, or in the lines, of the next one."""
        if self.context.validation is not None:
            advance(0, str(row_strength(self.context, self.state.metrics[-1])))

    def take_steps(self, draws: EpochDraws, advance: Advance, stop: StopRequest) -> None:
        """Take the steps that are left of the current epoch."""
        context, state, every = self.context, self.state, self.options.checkpoint_every
        train_mode(state.network, context.recipe.freeze)
        uses_method = state.epoch >= context.run.method_start
        old = state.method.old_of_images if uses_method else None
        workers = self.options.workers
        for batch in remaining_batches(context, draws, state.step, workers, old):
            result = self._step.take(batch, draws.method_rng)
            self._track_step(result)
            state.step += 1
            method_rng_state = draws.method_rng.bit_generator.state
            state.generators = {"changes": batch.rng_state, "method": method_rng_state}
            advance(len(batch.whole_batch))
            if state.step == context.steps_per_epoch:
                break  # the checkpoint at the end of the epoch follows
            if state.step % context.recipe.accumulate:
                continue  # half of an update is no state to keep
            if self._should_stop(stop):
                save_state(context, state, context.out)
                raise KeyboardInterrupt
            if every and state.step % every < context.recipe.accumulate:
                save_state(context, state, context.out)

    def _should_stop(self, stop: StopRequest) -> bool:
        ranks, device = self.context.ranks, self.context.device
        if ranks.world == 1:
            return stop.wanted
        asks = device.type == "cpu" or self.state.step % _AGREE_EVERY == 0
        return asks and ranks.any(stop.wanted, device)

    def _mean_losses(self) -> tuple[float, float]:
        """Return the epoch's mean classification and compatibility loss over all ranks."""
        ranks, steps = self.context.ranks, self.context.steps_per_epoch
        sums = ranks.summed(self.state.loss_sums.clone()) / ranks.world
        return float(sums[0]) / steps, float(sums[1]) / steps

    def _track_step(self, result: StepResult) -> None:
        if self.tracker is not None and self.state.step % _TRACK_EVERY == 0:
            values = {"loss": result.loss.item(), "loss_cls": result.loss_cls.item()}
            self._track(values | {"lr": result.lr}, self.state.steps_done(self.context))

    def _track(self, values: dict[str, float], step: int) -> None:
        if self.tracker is not None:
            self.tracker.log(values, step)

"""The loop of a training: epochs, refreshes of the method, checkpoints, metrics, a clean stop."""

import shutil
import signal
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unibct import progress
from unibct.errors import UserError
from unibct.progress import Advance
from unibct.training.batches import EpochDraws, draw_epoch, remaining_batches
from unibct.training.network import train_mode
from unibct.training.plan import RunContext
from unibct.training.run_folder import find_checkpoint, read_checkpoint
from unibct.training.state import TrainingState, current_model, restore_state, save_state
from unibct.training.step import TrainingStep
from unibct.training.tracking import Tracker
from unibct.training.training_set_embeddings import refresh_method
from unibct.training.validation import keep_best, note_epoch, row_recall, validated

_AGREE_EVERY = 8  # steps; on a GPU, asking all ranks whether to stop delays the next step
_TRACK_EVERY = 20  # steps between two points of a curve


@dataclass
class StopRequest:
    """A signal handler that remembers whether someone asked the run to stop."""

    wanted: bool = False

    def __call__(self, number: int, frame: Any) -> None:
        """Remember the request for the next step; a second Ctrl-C stops at once.

        A second SIGTERM does not: a scheduler sends it to ``torchrun`` and to its processes, and
        ``torchrun`` passes it on to them.
        """
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True


@contextmanager
def stop_request() -> Generator[StopRequest]:
    """Handle SIGINT and SIGTERM with a ``StopRequest`` for the duration of a block."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may set signal handlers
        return
    previous = {name: signal.signal(name, request) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)


class TrainingLoop:
    """The epochs that are left of a run; ``state`` may be in the middle of one."""

    def __init__(
        self, context: RunContext, state: TrainingState, trackers: Sequence[Tracker] = ()
    ) -> None:
        self.context = context
        self.state = state
        self.trackers = trackers  # record curves
        self._step = TrainingStep(context, state)

    def run(self) -> None:
        """Train to the end, with a checkpoint after each epoch and where the options ask for one.

        Raises:
            KeyboardInterrupt: after a checkpoint, if someone asked the run to stop.
        """
        context, state = self.context, self.state
        per_epoch, recipe = context.images_per_epoch, context.recipe
        done = per_epoch * state.epoch + recipe.batch_size * state.step
        total = per_epoch * recipe.epochs
        with progress.task(context.options.label, total, done=done) as advance:
            if state.metrics:  # of a run that goes on
                self._show_status(advance)
            while state.epoch < recipe.epochs:
                begin = time.perf_counter()
                if state.step == 0 and context.run.refreshes_at(state.epoch):
                    refresh_method(context, state)
                with stop_request() as stop:
                    self._run_epoch(advance, stop, begin)
                # Asked for after the block: until its end, a signal is only remembered.
                if context.ranks.any(stop.wanted, context.device):
                    raise KeyboardInterrupt

    def _run_epoch(self, advance: Advance, stop: StopRequest, begin: float) -> None:
        """Train to the end of the current epoch, record its metrics, and move to the next one."""
        context, state, ranks = self.context, self.state, self.context.ranks
        images = context.images_per_epoch - state.step * context.recipe.batch_size
        draws = draw_epoch(context, state)
        self.take_steps(draws, advance, stop)
        sums = ranks.summed(state.loss_sums.clone()) / ranks.world
        loss_cls, loss_comp = (float(loss) / context.steps_per_epoch for loss in sums)
        first_batch = draws.order[: context.recipe.batch_size]
        require_finite(context, state, loss_cls + loss_comp, first_batch)
        seconds = time.perf_counter() - begin
        validation = validated(context, state)
        compatible = state.epoch >= context.run.method_start
        row = {
            "epoch": state.epoch,  # counted from 0
            "lr": state.optimizer.param_groups[-1]["lr"],  # of the last step
            "eta": context.recipe.eta if compatible else 0.0,
            "loss_cls": loss_cls,
            "loss_comp": loss_comp,
            "seconds": seconds,  # with a refresh of the method, without the validation
            "images_per_second": images / seconds,
        }
        state.metrics.append(row | validation)
        note_epoch(context, state.metrics[-1])
        self._show_status(advance)
        curves = {"images_per_second": images / seconds} | validation
        self._track(curves, state.steps_done(context) - 1)
        state.start_next_epoch()
        save_state(context, state, context.out)
        keep_best(context, state)
        save_shared_warmup(context, state)

    def _show_status(self, advance: Advance) -> None:
        """Show the last epoch's recall@1 beside the bar, or in the lines, of the next one."""
        if self.context.validation is not None:
            advance(0, str(row_recall(self.context, self.state.metrics[-1])))

    def take_steps(self, draws: EpochDraws, advance: Advance, stop: StopRequest) -> None:
        """Take the steps that are left of the current epoch."""
        context, state, every = self.context, self.state, self.context.options.checkpoint_every
        train_mode(state.network, context.recipe.freeze)
        uses_method = state.epoch >= context.run.method_start
        old = state.method.old_of_images if uses_method else None
        for batch in remaining_batches(context, draws, state.step, old):
            result = self._step.take(batch, draws.method_rng)
            if self.trackers and state.step % _TRACK_EVERY == 0:
                losses = {"loss": result.loss.item(), "loss_cls": result.loss_cls.item()}
                self._track(losses | {"lr": result.lr}, state.steps_done(context))
            state.step += 1
            method_rng_state = draws.method_rng.bit_generator.state
            state.generators = {"changes": batch.rng_state, "method": method_rng_state}
            advance(len(batch.whole_batch))
            if state.step == context.steps_per_epoch:
                break  # the checkpoint at the end of the epoch follows
            if self._should_stop(stop):
                save_state(context, state, context.out)
                raise KeyboardInterrupt
            if every and state.step % every == 0:
                save_state(context, state, context.out)

    def _track(self, values: dict[str, float], step: int) -> None:
        for tracker in self.trackers:
            tracker.log(values, step)

    def _should_stop(self, stop: StopRequest) -> bool:
        ranks, device = self.context.ranks, self.context.device
        if ranks.world == 1:
            return stop.wanted
        asks = device.type == "cpu" or self.state.step % _AGREE_EVERY == 0
        return asks and ranks.any(stop.wanted, device)


def require_finite(
    context: RunContext, state: TrainingState, mean_loss: float, batch: NDArray[np.int64]
) -> None:
    """Refuse to continue with a loss, embeddings or class weights that are not finite.

    The losses of an epoch were computed before its last step, whose result shows only in new
    embeddings: those of ``batch``, (batch,) rows of images, of all ranks together.
    """
    ranks = context.ranks
    own_rows = batch[ranks.batch_slice(len(batch))]
    pixels = next(context.pixels.batches(own_rows, len(batch)))
    finite = np.isfinite(current_model(context, state).embed_pixels(pixels)).all()
    finite &= bool(torch.isfinite(state.class_weights).all())
    finite &= bool(np.isfinite(mean_loss))
    if ranks.any(not finite, context.device):
        raise UserError(
            f"training diverged in epoch {state.epoch}: loss or embeddings are not finite; "
            f"lower lr (now {context.recipe.lr}) or raise lr_warmup_epochs"
        )


# The state at the end of a warm-up, which runs that differ only afterwards share in a cache.


def restore_shared_warmup(context: RunContext, state: TrainingState) -> None:
    """Start where another run with the same warm-up was at its end, if the cache has it."""
    folder = _shared_folder(context)
    path = None if folder is None else find_checkpoint(folder, context.ranks)
    if path is None:
        return
    checkpoint = None
    with suppress(UserError):
        checkpoint = read_checkpoint(path, context.own_classes)
    if context.ranks.any(checkpoint is None, context.device):  # damaged: this run writes it again
        if context.ranks.first:
            shutil.rmtree(path, ignore_errors=True)
        return
    assert checkpoint is not None
    restore_state(context, state, checkpoint, with_method=False)
    save_state(context, state, context.out)


def save_shared_warmup(context: RunContext, state: TrainingState) -> None:
    """Put the state into the cache, if the warm-up has just ended and can be shared."""
    folder = _shared_folder(context)
    if folder is None or state.epoch != context.run.method_start:
        return
    try:
        save_state(context, state, folder)
    except (OSError, UserError) as error:  # for example a full disk
        if context.ranks.world > 1:  # stops all of them, because none may continue alone
            raise
        progress.note(f"{folder} cannot be written ({error}): the next run warms up by itself")


def _shared_folder(context: RunContext) -> Path | None:
    cache, pixels = context.options.cache, context.pixels.digest
    if context.validation is not None:  # the metrics of the warm-up have its recall@1
        if context.run.first_usable_epoch < context.run.method_start:
            return None  # its best state may be one of the warm-up, which a cache does not keep
        pixels = f"{pixels} {context.validation.digest}"
    digest = context.run.warmup_digest(pixels)
    return None if cache is None or digest is None else cache / f"warmup-{digest[:24]}"

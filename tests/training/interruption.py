"""Runs that are stopped where a test wants it."""

from contextlib import contextmanager

import pytest

from unibct.training.loop import TrainingLoop


@contextmanager
def stopped_before_epoch(epoch):
    """Expect a run inside the block, and stop it before the first step of an epoch."""
    take_steps = TrainingLoop.take_steps

    def stopping(self, *arguments):
        if self.state.epoch == epoch:
            raise KeyboardInterrupt
        take_steps(self, *arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingLoop, "take_steps", stopping)
        yield

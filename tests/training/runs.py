"""Runs that take seconds on a processor: their recipes, and what they leave behind."""

import csv
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from tests.conftest import TINY
from unibct.data.loader import read_pixels
from unibct.distributed.ranks import ALONE
from unibct.models.model_folder import load_model
from unibct.training.loop import TrainingLoop
from unibct.training.network import recipe_input
from unibct.training.options import TrainOptions
from unibct.training.plan import RunContext, plan_run
from unibct.training.recipe import load_recipe
from unibct.training.run_folder import find_checkpoint, read_checkpoint
from unibct.training.train import train as train_anywhere

train = partial(train_anywhere, device="cpu")

RECIPE = load_recipe("glyphs", TINY)
AUGMENTED = load_recipe("glyphs", [*TINY, "flip=true", "crop=0.1", "colour=0.1"])
SMALL = RECIPE.updated(epochs=2, batch_size=8, refresh_epochs=())
SHORT = SMALL.updated(epochs=1, warmup_epochs=0)
FINISHED = ["classifier.safetensors", "metrics.csv", "model.json", "model.safetensors"]


def small_context(images, recipe, *, ranks=ALONE, out="nowhere", workers=None, **options):
    """A run's context without a run around it; options are those of ``plan_run``."""
    run = plan_run(images, recipe, **options)
    pixels = read_pixels(images, recipe_input(recipe).frame)
    asked = TrainOptions(images, recipe, out, workers=workers)
    return RunContext(run, pixels, torch.device("cpu"), ranks, asked)


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


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def metrics(folder):
    """The rows of metrics.csv."""
    return list(csv.DictReader((folder / "metrics.csv").open()))


def losses(folder):
    """The losses of each epoch, as they are written."""
    return [(row["loss_cls"], row["loss_comp"]) for row in metrics(folder)]


def last_checkpoint(folder):
    """All that the last checkpoint holds, but the times."""
    checkpoint = read_checkpoint(find_checkpoint(folder))
    for row in checkpoint.state["metrics"]:
        del row["seconds"], row["images_per_second"]
    return checkpoint


def require_same(first, second):
    """Two runs have the same last checkpoint and the same model, to the bit."""
    one, other = last_checkpoint(first), last_checkpoint(second)
    assert one.state == other.state
    for ours, theirs in ((one.tensors, other.tensors), (one.class_tensors, other.class_tensors)):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name
    assert load_model(first).fingerprint == load_model(second).fingerprint

"""Contexts of small runs, without a run around them."""

import torch

from unibct.data.loader import read_pixels
from unibct.distributed.ranks import ALONE
from unibct.training.network import recipe_input
from unibct.training.options import TrainOptions
from unibct.training.plan import RunContext, plan_run


def small_context(images, recipe, *, ranks=ALONE, out="nowhere", workers=None, **options):
    """A run's context on the CPU; options are those of ``plan_run``."""
    run = plan_run(images, recipe, **options)
    pixels = read_pixels(images, recipe_input(recipe).frame)
    asked = TrainOptions(images, recipe, out, workers=workers)
    return RunContext(run, pixels, torch.device("cpu"), ranks, asked)

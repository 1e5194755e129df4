"""Contexts of small runs, without a run around them."""

from pathlib import Path

import torch

from unibct.data.loader import read_pixels
from unibct.distributed.ranks import ALONE
from unibct.training.context import RunContext
from unibct.training.network import recipe_input
from unibct.training.plan import plan_run


def small_context(images, recipe, *, ranks=ALONE, out=Path("nowhere"), **options):
    """A run's context on the CPU; options are those of ``plan_run``."""
    run = plan_run(images, recipe, **options)
    pixels = read_pixels(images, recipe_input(recipe).frame)
    return RunContext(run, pixels, torch.device("cpu"), ranks, out)

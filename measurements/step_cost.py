"""The cost of a compatible training step against a plain one, side by side in one run.

    python measurements/step_cost.py

About a minute on two cores. The methods take turns on the same batch of the embedded images. The
table shows the median time of a step and its ratio to a plain step. Below it is the ratio of two
epochs: one of `unibct` that begins with a refresh (embed every image, compute every prototype),
and a plain one. Goal: a step of `unibct` and of `unibct-plus` costs at most 1.05 plain steps. The
last line gives the machine's load: with other work beside it, the ratios say little.
"""

import os
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches, read_pixels
from unibct.data.readers import open_images
from unibct.distributed.cpus import usable_cpus
from unibct.distributed.ranks import ClassesInUse
from unibct.embeddings.extraction import embed_pixel_batches
from unibct.losses import sharded_arcface
from unibct.methods import METHODS
from unibct.methods.base import Batch, Method, OldEmbeddings, Settings
from unibct.models.architectures import build_network, find_architecture
from unibct.models.input import to_input
from unibct.models.model import Model
from unibct.training.recipe import Recipe, load_recipe

ROUNDS, WARMUP_ROUNDS = 60, 5


@dataclass(frozen=True)
class Setup:
    """What the steps of all methods share.

    Attributes:
        recipe: the default recipe.
        model: the network that is trained.
        class_weights: (classes, dim) of the classifier.
        optimizer: of both.
        images: the training set.
        pixels: its pixels.
        inputs: (batch, channels, height, width) one batch.
        rows: (batch,) its rows in the training set.
        labels: (batch,) its classes.
        methods: every method, after a refresh with random old embeddings.
    """

    recipe: Recipe
    model: Model
    class_weights: nn.Parameter
    optimizer: torch.optim.Optimizer
    images: ImageSet
    pixels: PixelBatches
    inputs: Tensor
    rows: Tensor
    labels: Tensor
    methods: dict[str, Method]


def make_setup() -> Setup:
    """Read the embedded images and make the network, the classifier and the methods."""
    recipe = load_recipe("glyphs")
    architecture = find_architecture(recipe.architecture)
    images = open_images("glyphs:train")
    pixels = read_pixels(images, architecture.input.frame)
    classes, dim = len(images.class_names), architecture.dim
    network = build_network(recipe.architecture, architecture.input, dim)
    class_weights = nn.Parameter(torch.randn(classes, dim) * 0.01)
    optimizer = torch.optim.SGD([*network.parameters(), class_weights], lr=1e-3, momentum=0.9)
    labels = torch.from_numpy(images.labels)
    old = OldEmbeddings(
        nn.functional.normalize(torch.randn(len(images), dim), dim=1),
        labels,
        images.class_names,
        images.class_names,
        torch.randn(classes, dim),
    )
    settings = Settings(
        scale=recipe.scale, margin=recipe.margin, tau=recipe.tau, lam=recipe.lam, drop=recipe.drop
    )
    methods = {name: entry.make(old, settings) for name, entry in METHODS.items()}
    for method in methods.values():
        method.refresh(old.embeddings if method.needs_new_embeddings else None)
    order = np.random.default_rng(0).permutation(len(images))[: recipe.batch_size]
    rows = torch.from_numpy(order)
    inputs = to_input(next(pixels.batches(order, len(order))), architecture.input, rows.device)
    network.train()
    return Setup(
        recipe,
        Model(network, recipe.architecture, architecture.input, dim),
        class_weights,
        optimizer,
        images,
        pixels,
        inputs,
        rows,
        labels[rows],
        methods,
    )


def step(setup: Setup, name: str) -> None:
    """Run one training step of a method."""
    batch = Batch(setup.model.network(setup.inputs), setup.labels, setup.rows, setup.class_weights)
    loss = sharded_arcface(
        setup.methods[name].classified(batch),
        setup.class_weights,
        setup.labels,
        ClassesInUse(len(setup.class_weights)),
        scale=setup.recipe.scale,
        margin=setup.recipe.margin,
    )
    if name != "none":
        loss = loss + setup.methods[name].loss(batch)
    setup.optimizer.zero_grad()
    loss.backward()
    setup.optimizer.step()


def step_seconds(setup: Setup) -> dict[str, float]:
    """Return the median time of a step of each method."""
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for round_number in range(WARMUP_ROUNDS + ROUNDS):
        for name in METHODS:
            begin = time.perf_counter()
            step(setup, name)
            if round_number >= WARMUP_ROUNDS:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_epoch(setup: Setup, unibct_step: float, plain_step: float) -> None:
    """Time a refresh of `unibct`, and print what an epoch with a refresh costs."""
    begin = time.perf_counter()
    new = np.asarray(embed_pixel_batches(setup.model, setup.pixels).vectors)
    embedding = time.perf_counter() - begin
    setup.methods["unibct"].refresh(torch.from_numpy(new))
    refresh = time.perf_counter() - begin
    steps = len(setup.images) // setup.recipe.batch_size
    epoch = steps * unibct_step + refresh
    print(
        f"an epoch of {steps} steps with a refresh ({embedding:.1f} s of embedding, "
        f"{refresh - embedding:.2f} s of refinement): {epoch / (steps * plain_step):.3f} plain ones"
    )
    print(
        f"load {os.getloadavg()[0]:.1f} on {usable_cpus()} CPUs, of which "
        f"{torch.get_num_threads()} threads are this measurement's"
    )


def main() -> None:
    """Time every method, then a refresh."""
    setup = make_setup()
    medians = step_seconds(setup)
    print(f"{'method':<16} {'ms a step':>10} {'against plain':>14}")
    for name, median in medians.items():
        print(f"{name:<16} {1000 * median:>10.2f} {median / medians['none']:>14.3f}")
    print_epoch(setup, medians["unibct"], medians["none"])


if __name__ == "__main__":
    main()

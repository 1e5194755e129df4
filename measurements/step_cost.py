"""The cost of a compatible training step against a plain one, side by side in one run.

    python measurements/step_cost.py

A minute on two cores. Each method takes turns with the plain step on the same batch of the
embedded images; the table gives the median time and the ratio to the plain one. Below it: an epoch
of `unibct` that begins with a refresh (every image embedded, every prototype refined) against a
plain epoch. Goal: a step of `unibct` and of `unibct-plus` costs at most 1.05 plain ones. The last
line gives the machine's load during the measurement: with more than this measurement's own threads
at work, the ratios say little.
"""

import os
import statistics
import time

import numpy as np
import torch

from unibct.data.loader import read_pixels
from unibct.data.readers.table import open_images
from unibct.distributed.class_shards import ClassPart
from unibct.distributed.cpus import usable_cpus
from unibct.embeddings.extraction import embed_pixel_batches
from unibct.losses.sharded_arcface import sharded_arcface
from unibct.methods.base import Batch, OldKnowledge, Settings
from unibct.methods.table import METHODS
from unibct.models.architectures.table import build_network, find_architecture
from unibct.models.input import to_input
from unibct.models.model import Model
from unibct.training.recipe import load_recipe

ROUNDS = 60


def main() -> None:
    """Time every method."""
    recipe = load_recipe("glyphs")
    architecture = find_architecture(recipe.architecture)
    images = open_images("glyphs:train")
    size = (architecture.input.height, architecture.input.width, architecture.input.channels)
    pixels = read_pixels(images, *size)
    classes, dim = len(images.class_names), architecture.dim
    network = build_network(recipe.architecture, architecture.input, dim)
    class_weights = torch.nn.Parameter(torch.randn(classes, dim) * 0.01)
    optimizer = torch.optim.SGD([*network.parameters(), class_weights], lr=1e-3, momentum=0.9)
    labels = torch.from_numpy(images.labels)
    knowledge = OldKnowledge(
        torch.nn.functional.normalize(torch.randn(len(images), dim), dim=1),
        labels,
        images.class_names,
        images.class_names,
        torch.randn(classes, dim),
    )
    settings = Settings(recipe.scale, recipe.margin, recipe.tau, recipe.lam, recipe.drop)
    order = np.random.default_rng(0).permutation(len(images))[: recipe.batch_size]
    rows = torch.from_numpy(order)
    batch_labels = labels[rows]
    inputs = to_input(next(pixels.batches(order, len(order))), architecture.input, rows.device)
    network.train()

    methods = {name: entry.make(knowledge, settings) for name, entry in METHODS.items()}
    for method in methods.values():
        method.refresh(knowledge.embeddings if method.needs_new_embeddings else None)

    def step(name: str) -> None:
        batch = Batch(network(inputs), batch_labels, rows, class_weights)
        loss = sharded_arcface(
            methods[name].classified(batch),
            class_weights,
            batch_labels,
            ClassPart(classes),
            scale=recipe.scale,
            margin=recipe.margin,
        )
        if name != "none":
            loss = loss + methods[name].loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for round_ in range(ROUNDS + 5):
        for name in METHODS:
            begin = time.perf_counter()
            step(name)
            if round_ >= 5:
                seconds[name].append(time.perf_counter() - begin)
    plain = statistics.median(seconds["none"])
    print(f"{'method':<16} {'ms a step':>10} {'against plain':>14}")
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:<16} {1000 * median:>10.2f} {median / plain:>14.3f}")

    model = Model(network, recipe.architecture, architecture.input, dim)
    begin = time.perf_counter()
    new = np.asarray(embed_pixel_batches(model, pixels).vectors)
    embedded = time.perf_counter() - begin
    methods["unibct"].refresh(torch.from_numpy(new))
    refreshed = time.perf_counter() - begin
    steps = len(images) // recipe.batch_size
    epoch = steps * statistics.median(seconds["unibct"]) + refreshed
    print(
        f"an epoch of {steps} steps with a refresh ({embedded:.1f} s of embedding, "
        f"{refreshed - embedded:.2f} s of refinement): {epoch / (steps * plain):.3f} plain ones"
    )
    print(
        f"load {os.getloadavg()[0]:.1f} on {usable_cpus()} CPUs, of which "
        f"{torch.get_num_threads()} threads are this measurement's"
    )


if __name__ == "__main__":
    main()

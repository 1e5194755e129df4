"""What each process of a distributed test does; started by ``torchrun``, writes its findings."""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from unibct.data.readers import open_images
from unibct.distributed.gradients import AveragedGradients, synced
from unibct.distributed.ranks import ClassesInUse, Ranks, current_ranks, sampled_classes
from unibct.embeddings import extraction
from unibct.embeddings import extraction as store_plan
from unibct.losses import (
    class_weight_gap,
    contrast,
    mixed_contrast,
    neighbour_contrast,
    outside_cone,
    point_to_set,
    regress,
    sharded_arcface,
    unit_rows,
)
from unibct.models.model_folder import load_model
from unibct.training import run_folder
from unibct.training.recipe import load_recipe
from unibct.training.step import TrainingStep
from unibct.training.train import train

CLASSES, DIM, BATCH = 23, 8, 12


def problem():
    """The same inputs in each process."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 3, 6, 6, generator=generator)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    labels[:3] = torch.tensor([0, 0, CLASSES - 1])
    weights = torch.randn(CLASSES, DIM, generator=generator)
    frozen = torch.randn(CLASSES, DIM, generator=generator)
    old = torch.randn(BATCH, DIM, generator=generator)
    return images, labels, weights, frozen, old


def network():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        convolution = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten())
        return nn.Sequential(*convolution, nn.Linear(80, DIM), nn.BatchNorm1d(DIM))


def look(sample: bool) -> dict[str, torch.Tensor]:
    """Losses and gradients of one step, whatever the number of ranks."""
    ranks = current_ranks()
    images, labels, weights, frozen, old = problem()
    own = ranks.batch_slice(BATCH)
    model = synced(network(), ranks)
    averaged = AveragedGradients(list(model.parameters()), ranks, bucket_bytes=1000)
    classes = ranks.share(CLASSES)
    part = ClassesInUse(CLASSES, ranks)
    if sample:  # the same classes, however they are spread
        chosen = sampled_classes(labels.numpy(), range(CLASSES), 0.7, np.random.default_rng(3))
        mine = chosen[(chosen >= classes.start) & (chosen < classes.stop)] - classes.start
        part = ClassesInUse(CLASSES, ranks, torch.from_numpy(mine))
    shard = weights[classes.start : classes.stop].clone().requires_grad_()
    embeddings = model(images[own])
    labels, old = labels[own], old[own]
    frozen = frozen[classes.start : classes.stop]
    centres = unit_rows(part.rows(frozen))
    largest = torch.full((len(centres),), 1.2)
    parts = {
        "trained": sharded_arcface(embeddings, part.rows(shard), labels, part),
        "frozen": sharded_arcface(embeddings, part.rows(frozen), labels, part),
        "shared": sharded_arcface(old, part.rows(shard), labels, part),
        "contrast": contrast(labels, new=embeddings, old=old, ranks=ranks),
        "mixed": mixed_contrast(labels, new=embeddings, old=old, tau=0.2, ranks=ranks),
        "cone": outside_cone(embeddings, labels, part, centres=centres, largest=largest),
        "gap": class_weight_gap(part.rows(shard), centres, ranks=ranks),
        "regress": regress(new=embeddings, old=old),
        "nccl": neighbour_contrast(
            embeddings,
            labels,
            own_old=old,
            others=ranks.gathered(old)[:7],
            other_labels=ranks.gathered(labels)[:7],
            ranks=ranks,
        ),
        "set": point_to_set(embeddings, old, torch.ones(len(old)), ranks=ranks),
    }
    sum(parts.values()).backward()
    averaged.finish()
    found = {f"loss.{k}": ranks.summed(v.detach().clone()) / ranks.world for k, v in parts.items()}
    found |= {f"gradient.{n}": p.grad for n, p in model.named_parameters()}
    found |= {f"buffer.{n}": b for n, b in model.named_buffers()}
    found["shard"] = shard.grad
    return found


# Small images and two steps per epoch: what costs time is the number of messages.
SETTINGS = ["batch_size=48", "lr=0.03", "lr_warmup_epochs=0", "flip=true", "size=16"]
LONGER = [*SETTINGS, "epochs=3", "warmup_epochs=1", "refresh_epochs=[2]"]


def moved_run():
    """What the run that is stopped in the middle trains on."""
    rows = [row for row in range(160) if row % 5 < 3]
    return open_images("glyphs:val").select(rows), load_recipe("glyphs", LONGER)


def one_old_model(out: Path, ranks: Ranks) -> Path:
    """The old model of the run in one process, which comes first, for the runs in several.

    After one epoch its embeddings lie in a narrow cone. From the cone's centre, what rounding
    changes in the old model looks large.
    """
    folder = out.parent / "old"
    if ranks.world == 1:
        shutil.copytree(out / "old", folder)
    return folder


def trained(out: Path, ranks: Ranks) -> None:
    """Whole runs, one that is stopped and goes on, and one that stays so, by all ranks together."""
    images, plain = moved_run()
    short = load_recipe("glyphs", [*SETTINGS, "batch_size=24", "epochs=1"])
    known = images.select(range(58))  # not all classes
    old = train(known, short, out / "old")
    same_old = load_model(one_old_model(out, ranks))
    for name in runs_of(ranks.world):
        recipe = load_recipe("glyphs", [*LONGER, *RUNS[name]])
        shared = {"method": name.split(",")[0], "cache": out / "cache"}
        learnt = known if name == "bct" else images
        train(learnt, recipe, out / name, old=same_old if name == PLUS else old, **shared)
    run_folder.remove_checkpoints = lambda folder: None
    # A loss that differs between the ranks, what the method learns, and a sample of the classes.
    recipe = load_recipe("glyphs", [*LONGER, "sample_rate=0.6"])
    options = {"old": old, "method": "advbct", "resume": True}
    train(images, recipe, out / "whole", **options)
    take, stop_at = TrainingStep.take, 0

    def stopping(self, *arguments):
        result, ranks = take(self, *arguments), self.context.ranks
        if self.state.steps_done(self.context) + 1 == stop_at and ranks.rank == ranks.world - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    TrainingStep.take = stopping
    for stop_at in (1, 5, 0):
        try:
            train(images, recipe, out / "part", **options)
        except KeyboardInterrupt:
            assert stop_at, "nobody asked"
    stop_at = 3
    with suppress(KeyboardInterrupt):
        train(images, plain, out / "moved", old=old, method="unibct")


PLUS = "unibct-plus"
GENTLE = ["lr=0.001"]  # the loss is at work from the first step, where rounding tells most
RUNS = {
    "none": [],
    "none,changed": ["augment='python:tests.training.test_network:salted'"],
    "unibct": [],
    "unibct,warm": ["warm_start=true", "lr=0.001"],  # only the first rank has the old class weights
    "unibct,own": ["sync_batch_norm=false"],
    "unibct,half": ["precision='bfloat16'"],
    PLUS: GENTLE,
    "unibct-plus,wide": ["dim=160"],
    "contrast": [],
    "bct": [],  # the same
    "mixbct": GENTLE,
    "nccl": GENTLE,
    "advbct": GENTLE,
    "advbct@released=true": GENTLE,
    "lce": GENTLE,
    "ndpp": GENTLE,
    "regress": [],
}
WITH_TWO_ONLY = ("unibct,own", "unibct,half")


def runs_of(world: int) -> list[str]:
    """The runs that so many processes make."""
    return [name for name in RUNS if world == 2 or name not in WITH_TWO_ONLY]


if __name__ == "__main__":
    ranks = current_ranks()
    out = Path(sys.argv[1]) / str(ranks.world)
    if ranks.first:
        out.mkdir()
    ranks.barrier()
    torch.set_num_threads(1)
    store_plan._FEWEST_SHARD_ROWS = 16  # so that each rank has some
    for name in ("all", "sample"):
        tensors = look(name == "sample")
        safetensors.torch.save_file(
            {k: v.contiguous() for k, v in tensors.items()}, out / f"{name}-{ranks.rank}"
        )
    trained(out, ranks)
    model = load_model(out / "none")
    images = open_images("glyphs:val").select(range(160))
    extraction.embed(model, images, out=out / "store", ranks=ranks)

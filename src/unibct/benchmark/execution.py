"""One job of a benchmark: train its model, embed the test images, make its tests, write the result.

A job's folder holds ``model/`` (if it trained one), ``embeddings/`` of the test images,
``samples.safetensors`` (each metric's bootstrap values, class draws the same in every job) and,
last, ``result.json``: a job that has it is finished and never runs again.
"""

import csv
import os
import platform
import shutil
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
import torch

from unibct.benchmark.jobs import Adaptation, Grid, Job, Training, training_rows
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.distributed.device import pick_device
from unibct.embeddings.extraction import cached_embeddings, embed_images, embeddings_folder
from unibct.embeddings.store import Embeddings, open_embeddings, save_embeddings
from unibct.errors import UserError
from unibct.evaluation.evaluate import (
    Protocol,
    carried_fars,
    class_draws,
    headline_far,
    headline_metrics,
    make_protocol,
    sampled_metrics,
    search_test,
)
from unibct.evaluation.metrics import Floats
from unibct.files import atomic_file, read_json, write_json
from unibct.maps.adapter import fit_adapter
from unibct.models.architectures.table import find_architecture
from unibct.models.model import Model, load_model, save_model
from unibct.progress import Progress, Silent
from unibct.training.metrics import METRICS_FILE
from unibct.training.train import train

RESULT_FILE = "result.json"
SAMPLES_FILE = "samples.safetensors"
MODEL = "model"
EMBEDDINGS = "embeddings"
SETTINGS_FILE = "benchmark.json"
CACHE = "cache"
JOB_FOLDERS = ("models", "cells", "chains", CACHE)


@dataclass(frozen=True)
class Bench:
    """A grid with its images and its folder: what every job of a process uses."""

    grid: Grid
    out: Path
    device: str = "auto"

    @cached_property
    def images(self) -> tuple[ImageSet, ImageSet]:
        """Training and test images."""
        return self.grid.open()

    @cached_property
    def protocol(self) -> Protocol:
        """Templates and queries: the same in every test."""
        return make_protocol(self.images[1].labels)

    @cached_property
    def far(self) -> float:
        """The headline's false accept rate."""
        return headline_far(len(self.images[1].class_names))

    def training_images(self, images: str, seed: int) -> ImageSet:
        """The part of the training images that a job names."""
        return self.images[0].select(training_rows(self.images[0].labels, images, seed))

    def model(self, folder: str) -> Model:
        """The model that another job trained."""
        return load_model(self.out / folder / MODEL, device=pick_device(self.device))

    def embeddings(self, folder: str) -> Embeddings:
        """The test embeddings that another job left."""
        return open_embeddings(self.out / folder / EMBEDDINGS)

    def vectors(self, folder: str) -> Floats:
        """Their vectors, in the order of the test images."""
        return self.embeddings(folder).rows_of(self.images[1])

    def read_all(self, progress: Progress | None = None) -> dict[str, str]:
        """Read every image once; an unreadable one is refused. What names all their pixels."""
        size = find_architecture(self.grid.recipe.architecture).input.size
        digests = [
            read_pixels(images, *size, memory=0, progress=progress).digest for images in self.images
        ]
        return dict(zip(("pixels", "test_pixels"), digests, strict=True))


def is_finished(out: Path, job: Job) -> bool:
    """Whether a job's result is there."""
    return (out / job.folder / RESULT_FILE).is_file()


def run_job(bench: Bench, job: Job, progress: Progress | None = None) -> None:
    """Do what is left of a job."""
    progress = progress or Silent()
    folder = bench.out / job.folder
    if is_finished(bench.out, job):
        return
    described: dict[str, Any] = {"job": job.folder, "seed": job.seed, "made_by": made_by()}
    if job.training is not None:
        described |= _train(bench, job, job.training, progress)
    elif job.adapter is not None:
        described |= _adapt(bench, job, job.adapter, progress)
    tests: dict[str, dict[str, Any]] = {}
    samples: dict[str, Floats] = {}
    fars = carried_fars(len(bench.images[1].class_names))
    for name, query, gallery in job.tests:
        sides = [bench.embeddings(folder) for folder in (query, gallery)]
        new, old = (side.rows_of(bench.images[1]) for side in sides)
        test = search_test(new, old, bench.protocol)
        tests[name] = {
            "query": query,
            "gallery": gallery,
            "fingerprints": [side.fingerprint for side in sides],
            "metrics": headline_metrics(test, bench.far),
            "tar_at_far": {f"{far:g}": test.tar(far) for far in fars},
        }
        sampled = sampled_metrics(test, class_draws(test), bench.far)
        samples[name] = np.stack(list(sampled.values())).astype(np.float32)
    with atomic_file(folder / SAMPLES_FILE) as temporary:
        safetensors.numpy.save_file(samples, temporary)
    write_json(
        folder / RESULT_FILE,
        described
        | {
            "far": bench.far,
            "queries": len(bench.protocol.query),
            "templates": len(bench.images[1].class_names),
            "tests": tests,
        },
    )


def _train(bench: Bench, job: Job, training: Training, progress: Progress) -> dict[str, Any]:
    folder = bench.out / job.folder
    images = bench.training_images(training.images, job.seed)
    model = train(
        images,
        training.recipe,
        folder / MODEL,
        old=None if training.old is None else bench.model(training.old),
        method=training.method,
        resume=True,
        cache=None if training.images.startswith("old:") else bench.out / CACHE,
        device=bench.device,
        label=job.folder,
        progress=progress,
    )
    _save_again(embed_images(model, bench.images[1]), folder / EMBEDDINGS)
    return {
        "method": training.method,
        "images": len(images),
        "classes": len(images.class_names),
        "architecture": model.architecture,
        "dim": model.dim,
        "fingerprint": model.fingerprint,
        "cost": training_cost(folder / MODEL / METRICS_FILE),
    }


def _adapt(bench: Bench, job: Job, adapter: Adaptation, progress: Progress) -> dict[str, Any]:
    """Map the free model's embeddings into the old space, by a map fitted on the new set."""
    folder = bench.out / job.folder
    images = bench.training_images(adapter.images, job.seed)
    new, old = bench.model(adapter.new), bench.model(adapter.old)
    pixels = read_pixels(images, *new.input.size)

    def view(model: Model) -> Floats:
        cache = embeddings_folder(bench.out / CACHE, model, pixels)
        return np.array(cached_embeddings(model, pixels, cache, progress=progress).vectors)

    fitted = fit_adapter(adapter.kind, view(new), view(old), images.labels, seed=job.seed)
    model = new.adapted(fitted, old)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    save_model(model, folder / MODEL)
    _save_again(embed_images(model, bench.images[1], progress=progress), folder / EMBEDDINGS)
    return {
        "method": adapter.kind,
        "images": len(images),
        "classes": len(images.class_names),
        "architecture": model.architecture,
        "dim": model.dim,
        "fingerprint": model.fingerprint,
    }


def _save_again(embeddings: Embeddings, folder: Path) -> None:
    """Write embeddings over what a killed run may have left."""
    shutil.rmtree(folder, ignore_errors=True)
    save_embeddings(embeddings, folder)


def made_by() -> dict[str, str]:
    """The versions and the machine that make a result."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {
        "unibct": metadata.version("unibct"),
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "machine": machine + (", CUDA" if torch.cuda.is_available() else ""),
    }


def training_cost(log: Path) -> dict[str, float]:
    """Seconds of all epochs, and the rate of the second half, where most methods are at work.

    The rate is the median, which a pause of the machine does not move.
    """
    with log.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rates = [float(row["images_per_second"]) for row in rows[len(rows) // 2 :]]
    return {
        "seconds": sum(float(row["seconds"]) for row in rows),
        "images_per_second": float(np.median(rates)),
    }


def benchmark_settings(bench: Bench) -> dict[str, Any]:
    """What all results of a folder have in common; ``Bench.read_all`` adds the pixels."""
    return bench.grid.settings() | {
        "images": bench.images[0].digest,
        "test_images": bench.images[1].digest,
    }


def require_same_benchmark(bench: Bench, wanted: dict[str, Any]) -> None:
    """Refuse a folder that is about something else."""
    path = bench.out / SETTINGS_FILE
    if not path.is_file():
        return
    kept = _flat(read_json(path))
    for key, value in _flat(wanted).items():
        if key not in kept:
            raise UserError(
                f"{bench.out} was made by an earlier version, which did not keep the {key}; choose "
                "another --out or remove it"
            )
        if kept[key] != value:
            differs = f"its {key} is {kept[key]!r}, not {value!r}"
            if "images" in key:
                differs = "it was made from other images, or other classes"
            elif "pixels" in key:
                differs = "some of its images have changed since"
            raise UserError(
                f"{bench.out} holds another benchmark: {differs}; choose another --out or remove it"
            )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    recipe = cast(dict[str, Any], settings.get("recipe", {}))
    return {f"recipe.{k}": v for k, v in recipe.items()} | {
        k: v for k, v in settings.items() if k != "recipe"
    }

"""One job of a benchmark: train its model, embed the test images, make its tests, write the result.

A job's folder holds ``model/`` (if it trained one), ``embeddings/`` of the test images,
``samples.safetensors`` (each metric's bootstrap values, class draws the same in every job) and,
last, ``result.json``: a job that has it is finished and never runs again.
"""

import csv
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
import torch

from unibct.adapters import fit_adapter
from unibct.benchmark.grid import Adaptation, Grid, Job, Training, training_rows
from unibct.data.sets import ImageSet
from unibct.embeddings import Embeddings, embed_images, open_embeddings, save_embeddings
from unibct.errors import UserError
from unibct.evaluate import (
    Protocol,
    carried_fars,
    class_draws,
    headline_far,
    headline_metrics,
    make_protocol,
    sampled_metrics,
    search_test,
)
from unibct.files import atomic_file, read_json, write_json
from unibct.metrics import Floats
from unibct.models.model import Model, load_model
from unibct.progress import Progress, Silent
from unibct.train import METRICS_FILE, pick_device, train

RESULT_FILE = "result.json"
SAMPLES_FILE = "samples.safetensors"
MODEL = "model"
EMBEDDINGS = "embeddings"
CACHE = "cache"


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

    def vectors(self, folder: str) -> Floats:
        """The test embeddings that another job left."""
        return open_embeddings(self.out / folder / EMBEDDINGS).rows_of(self.images[1])


def is_finished(out: Path, job: Job) -> bool:
    """Whether a job's result is there."""
    return (out / job.folder / RESULT_FILE).is_file()


def run_job(bench: Bench, job: Job, progress: Progress | None = None) -> None:
    """Do what is left of a job."""
    progress = progress or Silent()
    folder = bench.out / job.folder
    if is_finished(bench.out, job):
        return
    described: dict[str, Any] = {"job": job.folder, "seed": job.seed}
    if job.training is not None:
        described |= _train(bench, job, job.training, progress)
    elif job.adapter is not None:
        _adapt(bench, job, job.adapter, progress)
    tests: dict[str, dict[str, Any]] = {}
    samples: dict[str, Floats] = {}
    fars = carried_fars(len(bench.images[1].class_names))
    for name, query, gallery in job.tests:
        test = search_test(bench.vectors(query), bench.vectors(gallery), bench.protocol)
        tests[name] = {
            "query": query,
            "gallery": gallery,
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
        cache=bench.out / CACHE,
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
        "torch": torch.__version__,
        "cost": training_cost(folder / MODEL / METRICS_FILE),
    }


def _adapt(bench: Bench, job: Job, adapter: Adaptation, progress: Progress) -> None:
    """Map the free model's embeddings into the old space, by a map fitted on the new set."""
    free = next(query for _, query, _ in job.tests if query != job.folder)
    images = bench.training_images(adapter.images, job.seed)
    new, old = (
        embed_images(bench.model(name), images, progress=progress).vectors
        for name in (free, adapter.old)
    )
    fitted = fit_adapter(adapter.kind, new, old, images.labels, seed=job.seed)
    kept = open_embeddings(bench.out / free / EMBEDDINGS)
    mapped = Embeddings(
        fitted(np.array(kept.vectors)), kept.ids, kept.labels, kept.class_names, kept.fingerprint
    )
    _save_again(mapped, bench.out / job.folder / EMBEDDINGS)


def _save_again(embeddings: Embeddings, folder: Path) -> None:
    """Write embeddings over what a killed run may have left."""
    shutil.rmtree(folder, ignore_errors=True)
    save_embeddings(embeddings, folder)


def training_cost(metrics: Path) -> dict[str, float]:
    """Seconds of all epochs, and the rate of the second half, where every method is at work.

    The rate is the median, which a pause of the machine does not move.
    """
    with metrics.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rates = [float(row["images_per_second"]) for row in rows[len(rows) // 2 :]]
    return {
        "seconds": sum(float(row["seconds"]) for row in rows),
        "images_per_second": float(np.median(rates)),
    }


def require_same_benchmark(bench: Bench, *, note: bool = False) -> None:
    """Refuse a folder that is about something else; ``note`` writes down what it is about."""
    path = bench.out / "benchmark.json"
    wanted = bench.grid.settings() | {
        "images": bench.images[0].digest,
        "test_images": bench.images[1].digest,
    }
    if not path.is_file():
        if note:
            write_json(path, wanted)
        return
    kept = _flat(read_json(path))
    for key, value in _flat(wanted).items():
        if kept.get(key) != value:
            raise UserError(
                f"{bench.out} holds another benchmark: its {key} is {kept.get(key)!r}, not "
                f"{value!r}; choose another --out or remove it"
            )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    recipe = cast(dict[str, Any], settings.get("recipe", {}))
    return {f"recipe.{k}": v for k, v in recipe.items()} | {
        k: v for k, v in settings.items() if k != "recipe"
    }

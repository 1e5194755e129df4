"""One job of a benchmark: train its model, embed the test images, make its tests, write the result.

A job's folder holds ``model/`` (if it trained one), ``embeddings/`` of the test images,
``samples.safetensors`` (each metric's bootstrap values, class draws the same in every job) and,
last, ``result.json``: a job that has it is finished and never runs again.
"""

import csv
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from unibct.arrays import Floats
from unibct.benchmark.jobs import Adaptation, Job, Training
from unibct.benchmark.workspace import CACHE, EMBEDDINGS, MODEL, RESULT_FILE, Workspace, is_finished
from unibct.data.loader import read_pixels
from unibct.distributed.cpus import usable_cpus
from unibct.embeddings.cache import cached_embeddings, embeddings_folder
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.folder import Embeddings
from unibct.embeddings.writing import save_embeddings
from unibct.evaluation.bootstrap import class_draws
from unibct.evaluation.metrics.table import measured_metrics, sampled_metrics
from unibct.evaluation.resolution import carried_fars
from unibct.evaluation.search_test import search_test
from unibct.files import atomic_file, write_json
from unibct.maps.adapter import fit_adapter
from unibct.models.folder import save_model
from unibct.models.model import Model
from unibct.progress import Progress, Silent
from unibct.training.metrics import METRICS_FILE
from unibct.training.train import train

SAMPLES_FILE = "samples.safetensors"


def run_job(workspace: Workspace, job: Job, progress: Progress | None = None) -> None:
    """Do what is left of a job."""
    progress = progress or Silent()
    folder = workspace.out / job.folder
    if is_finished(workspace.out, job):
        return
    described: dict[str, Any] = {"job": job.folder, "seed": job.seed, "made_by": made_by()}
    if job.training is not None:
        described |= _train(workspace, job, job.training, progress)
    elif job.adapter is not None:
        described |= _adapt(workspace, job, job.adapter, progress)
    tests: dict[str, dict[str, Any]] = {}
    samples: dict[str, Floats] = {}
    fars = carried_fars(len(workspace.images[1].class_names))
    for name, query, gallery in job.tests:
        sides = [workspace.embeddings(folder) for folder in (query, gallery)]
        new, old = (side.rows_of(workspace.images[1]) for side in sides)
        test = search_test(new, old, workspace.split)
        tests[name] = {
            "query": query,
            "gallery": gallery,
            "fingerprints": [side.fingerprint for side in sides],
            "metrics": measured_metrics(test, [workspace.far]),
            "tar_at_far": {f"{far:g}": test.tar(far) for far in fars},
        }
        for metric, values in sampled_metrics(test, class_draws(test), workspace.far).items():
            samples[sample_name(name, metric)] = values.astype(np.float32)
    with atomic_file(folder / SAMPLES_FILE) as temporary:
        safetensors.numpy.save_file(samples, temporary)
    write_json(
        folder / RESULT_FILE,
        described
        | {
            "far": workspace.far,
            "queries": len(workspace.split.query),
            "templates": len(workspace.images[1].class_names),
            "tests": tests,
        },
    )


def sample_name(test: str, metric: str) -> str:
    """Return the name under which a job keeps a metric's bootstrap values."""
    return f"{test}/{metric}"


def _train(
    workspace: Workspace, job: Job, training: Training, progress: Progress
) -> dict[str, Any]:
    folder = workspace.out / job.folder
    images = workspace.training_images(training.images, job.seed)
    model = train(
        images,
        training.recipe,
        folder / MODEL,
        old=None if training.old is None else workspace.model(training.old),
        method=training.method,
        resume=True,
        cache=None if training.images.startswith("old:") else workspace.out / CACHE,
        device=workspace.device,
        label=job.folder,
        progress=progress,
    )
    _save_again(embed_images(model, workspace.images[1]), folder / EMBEDDINGS)
    return {
        "method": training.method,
        "images": len(images),
        "classes": len(images.class_names),
        "architecture": model.architecture,
        "dim": model.dim,
        "fingerprint": model.fingerprint,
        "cost": training_cost(folder / MODEL / METRICS_FILE),
    }


def _adapt(
    workspace: Workspace, job: Job, adapter: Adaptation, progress: Progress
) -> dict[str, Any]:
    """Map the free model's embeddings into the old space, by a map fitted on the new set."""
    folder = workspace.out / job.folder
    images = workspace.training_images(adapter.images, job.seed)
    new, old = workspace.model(adapter.new), workspace.model(adapter.old)
    pixels = read_pixels(images, *new.input.size)

    def view(model: Model) -> Floats:
        cache = embeddings_folder(workspace.out / CACHE, model, pixels)
        return np.array(cached_embeddings(model, pixels, cache, progress=progress).vectors)

    fitted = fit_adapter(adapter.kind, view(new), view(old), images.labels, seed=job.seed)
    model = new.adapted(fitted, old)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    save_model(model, folder / MODEL)
    _save_again(embed_images(model, workspace.images[1], progress=progress), folder / EMBEDDINGS)
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
    machine = f"{platform.system()} {platform.machine()}, {usable_cpus()} cores"
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

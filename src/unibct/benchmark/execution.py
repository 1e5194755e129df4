"""Run one job of a benchmark: train its model, embed the test images, run the tests."""

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
from unibct.benchmark.cells import measure_job
from unibct.benchmark.jobs import Job, MapFitting, Training
from unibct.benchmark.workspace import (
    CACHE,
    EMBEDDINGS,
    MODEL,
    RESULT_FILE,
    SAMPLES_FILE,
    VALIDATION,
    Workspace,
    is_finished,
)
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.distributed.cpus import usable_cpus
from unibct.embeddings.extraction import cached_embeddings, embed, embeddings_folder
from unibct.embeddings.score_scale import mapped_score_scale
from unibct.embeddings.store import save_embeddings
from unibct.evaluation.pixel_baseline import old_model_recall
from unibct.evaluation.search_test import OLD_SELF
from unibct.files import atomic_file, write_json
from unibct.maps.vector_map import fit_vector_map
from unibct.models.model import Model
from unibct.models.model_folder import save_model
from unibct.training.network import recipe_input
from unibct.training.run_folder import METRICS_FILE
from unibct.training.train import train


def run_job(workspace: Workspace, job: Job) -> None:
    """Run a job, or what is left of it. The jobs that it needs must be finished."""
    folder = workspace.out / job.folder
    if is_finished(workspace.out, job):
        return
    result = {"job": job.folder, "seed": job.seed, "made_by": software_and_machine()}
    if job.training is not None:
        result |= _train(workspace, job, job.training)
    elif job.map_fitting is not None:
        result |= _fit_map(workspace, job, job.map_fitting)
    measurements = measure_job(workspace, job)
    result |= _old_model(workspace, job)
    with atomic_file(folder / SAMPLES_FILE) as temporary:
        safetensors.numpy.save_file(measurements.samples, temporary)
    facts = {
        "far": workspace.far,
        "queries": len(workspace.split.query),
        "templates": len(workspace.test_images.class_names),
        "compared_classes": workspace.split.compared_classes,
        "query_classes": workspace.split.query_classes,
    }
    write_json(folder / RESULT_FILE, result | facts | measurements.content)


def _old_model(workspace: Workspace, job: Job) -> dict[str, Any]:
    """Compare an old model with raw pixels; other jobs have none."""
    if job.training is None or OLD_SELF not in {test.name for test in job.tests}:
        return {}
    images, frame = workspace.test_images, recipe_input(job.training.recipe).frame
    vectors = workspace.vectors(job.folder)
    strength = old_model_recall(vectors, images.labels, images, frame=frame)
    return {"old_model": None if strength is None else strength.as_json()}


def _train(workspace: Workspace, job: Job, training: Training) -> dict[str, Any]:
    """Train the job's model, embed the images of the tests, and describe the model."""
    folder = workspace.out / job.folder
    images = workspace.training_images(training.part, job.seed)
    model = train(
        images,
        training.recipe,
        folder / MODEL,
        old=None if training.old is None else workspace.model(training.old),
        method=training.method,
        resume=True,
        validation=0,
        cache=None if training.part.startswith("old:") else workspace.out / CACHE,
        device=workspace.device,
        label=job.folder,
    )
    _embed(workspace, job, model)
    cost = training_cost(folder / MODEL / METRICS_FILE)
    return _described(training.method, images, model) | {"cost": cost}


def _fit_map(workspace: Workspace, job: Job, map_fitting: MapFitting) -> dict[str, Any]:
    """Fit a map on the new set, save the free model with that map, and describe it."""
    folder = workspace.out / job.folder
    images = workspace.training_images(map_fitting.part, job.seed)
    new, old = workspace.model(map_fitting.new), workspace.model(map_fitting.old)
    pixels = read_pixels(images, new.input.frame)

    def training_embeddings(model: Model) -> Floats:
        cache = embeddings_folder(workspace.out / CACHE, model, pixels)
        return np.array(cached_embeddings(model, pixels, cache).vectors)

    pairs = training_embeddings(new), training_embeddings(old), images.labels
    fitted = fit_vector_map(
        map_fitting.kind, new=pairs[0], old=pairs[1], labels=pairs[2], seed=job.seed
    )
    scale = mapped_score_scale(fitted, *pairs)
    model = new.adapted(fitted, old, images).with_score_scale(scale)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    save_model(model, folder / MODEL)
    _embed(workspace, job, model)
    return _described(map_fitting.kind, images, model)


def _embed(workspace: Workspace, job: Job, model: Model) -> None:
    """Keep the model's embeddings of the test images, and of the validation images if any.

    What a killed run may have left there is removed first.
    """
    sets = {EMBEDDINGS: workspace.test_images, VALIDATION: workspace.validation_images}
    for name, images in sets.items():
        folder = workspace.out / job.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        if images is not None:
            save_embeddings(embed(model, images), folder)


def _described(method: str, images: ImageSet, model: Model) -> dict[str, Any]:
    return {
        "method": method,
        "images": len(images),
        "classes": len(images.class_names),
        "architecture": model.architecture,
        "dim": model.dim,
        "fingerprint": model.fingerprint,
    }


def software_and_machine() -> dict[str, str]:
    """Return the versions and the machine with which a result is made.

    The machine has its vector instructions, such as AVX2: with others the same seed gives another
    model, because sums are rounded in another order.
    """
    instructions = torch.backends.cpu.get_cpu_capability()
    machine = f"{platform.system()} {platform.machine()} {instructions}, {usable_cpus()} cores"
    return {
        "unibct": metadata.version("unibct"),
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "machine": machine + (", CUDA" if torch.cuda.is_available() else ""),
    }


def training_cost(log: Path) -> dict[str, float]:
    """Return the seconds of all epochs, and the images per second of a typical later epoch.

    The rate is the median over the second half of the epochs. Most methods have started by then,
    and a pause of the machine does not change a median.
    """
    with log.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rates = [float(row["images_per_second"]) for row in rows[len(rows) // 2 :]]
    return {
        "seconds": sum(float(row["seconds"]) for row in rows),
        "images_per_second": float(np.median(rates)),
    }

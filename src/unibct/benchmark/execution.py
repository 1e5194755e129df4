"""Run one job of a benchmark: train its model, embed the test images, run the tests.

The folder of a job holds ``model/`` (if it made a model), ``embeddings/`` of the test images,
``validation/`` of the validation images if there are any, ``samples.safetensors`` (the bootstrap
values of each metric and flip rate; all jobs draw the same classes) and ``result.json``.
``result.json`` is written last: a job that has it is finished and never runs again, unless its
tests are to be measured again.
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
from unibct.benchmark.cells import (
    AT_OLD_THRESHOLD,
    measure_job,
    model_elsewhere,
    require_model_origins,
    validation_vectors,
)
from unibct.benchmark.jobs import Job, MapFitting, Training
from unibct.benchmark.workspace import (
    CACHE,
    EMBEDDINGS,
    MODEL,
    RESULT_FILE,
    VALIDATION_PIXELS,
    Workspace,
    is_finished,
    read_result,
    validation_pixels,
)
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.distributed.cpus import usable_cpus
from unibct.embeddings.extraction import cached_embeddings, embed_images, embeddings_folder
from unibct.embeddings.score_scale import mapped_score_scale
from unibct.embeddings.store import Embeddings, save_embeddings
from unibct.errors import UserError
from unibct.evaluation.pixel_baseline import old_model_strength
from unibct.evaluation.search_test import OLD_SELF
from unibct.files import atomic_file, write_json
from unibct.maps.vector_map import fit_vector_map
from unibct.models.model import Model
from unibct.models.model_folder import MODEL_DESCRIPTION, save_model
from unibct.training.network import recipe_input
from unibct.training.tracking import METRICS_FILE
from unibct.training.train import train

SAMPLES_FILE = "samples.safetensors"


def run_job(workspace: Workspace, job: Job) -> None:
    """Run a job, or what is left of it. The jobs that it needs must be finished."""
    folder = workspace.out / job.folder
    if not workspace.has_work(job):
        return
    result: dict[str, Any] = {
        "job": job.folder,
        "seed": job.seed,
        "made_by": software_and_machine(),
    }
    earlier: dict[str, Any] | None = None
    if is_finished(workspace.out, job):  # it is to be measured again
        earlier = read_result(workspace.out, job.folder)
        result = earlier | {"measured_again_by": software_and_machine()}
    elif (elsewhere := model_elsewhere(workspace, job)) is not None:
        result = _take_model(workspace, job, elsewhere)
    elif job.training is not None:
        result |= _train(workspace, job, job.training)
    elif job.map_fitting is not None:
        result |= _adapt(workspace, job, job.map_fitting)
    require_model_origins(workspace.out, job)
    validation = workspace.validation_images
    if validation is not None and (job.training is not None or job.map_fitting is not None):
        validation_vectors(workspace, job.folder, validation)  # before other jobs need them
    measurements = measure_job(workspace, job)
    if earlier is not None:
        _require_nothing_lost(workspace, job, earlier, measurements.content)
    result |= _old_model(workspace, job)
    with atomic_file(folder / SAMPLES_FILE) as temporary:
        safetensors.numpy.save_file(measurements.samples, temporary)
    write_json(
        folder / RESULT_FILE,
        result
        | {
            "far": workspace.far,
            "queries": len(workspace.split.query),
            "templates": len(workspace.test_images.class_names),
            "compared_classes": workspace.split.compared_classes,
            "query_classes": workspace.split.query_classes,
            VALIDATION_PIXELS: validation_pixels(workspace.out),
        }
        | measurements.content,
    )


def _require_nothing_lost(
    workspace: Workspace, job: Job, earlier: dict[str, Any], now: dict[str, Any]
) -> None:
    """Raise an error if a value cannot be measured again because a model is gone.

    Args:
        workspace: grid, images and folder.
        job: that was measured again.
        earlier: what its result file holds.
        now: what would replace it.
    """
    gone = [
        workspace.out / folder
        for folder in (job.folder, *job.needs)
        if not (workspace.out / folder / MODEL / MODEL_DESCRIPTION).is_file()
    ]
    lost = sorted(earlier["tests"].keys() - now["tests"].keys())
    scales = [values.get(AT_OLD_THRESHOLD, {}).get("score_scale") for values in (earlier, now)]
    if scales[0] is not None and scales[1] is None:
        lost.append("the score scale")
    if gone and lost:
        removed = dict.fromkeys((gone[0], workspace.out / job.folder))
        raise UserError(
            f"{gone[0] / MODEL} is gone, and without it these cannot be measured again: "
            f"{', '.join(lost)}; the earlier values are kept. Put the model back, or remove "
            f"{' and '.join(map(str, removed))} and train again"
        )


def _old_model(workspace: Workspace, job: Job) -> dict[str, Any]:
    """Compare an old model with raw pixels; other jobs have none."""
    if job.training is None or OLD_SELF not in {test.name for test in job.tests}:
        return {}
    images, frame = workspace.test_images, recipe_input(job.training.recipe).frame
    vectors = workspace.vectors(job.folder)
    strength = old_model_strength(vectors, images.labels, images, frame=frame)
    return {"old_model": None if strength is None else strength.as_json()}


def _take_model(workspace: Workspace, job: Job, elsewhere: Path) -> dict[str, Any]:
    """Copy a model that another benchmark has trained, embed the test images, and describe it."""
    folder = workspace.out / job.folder
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    shutil.copytree(elsewhere / MODEL, folder / MODEL)
    embeddings = embed_images(workspace.model(job.folder), workspace.test_images)
    _replace_embeddings(embeddings, folder / EMBEDDINGS)
    result = read_result(elsewhere, "")
    return result | {"measured_again_by": software_and_machine()}


def _train(workspace: Workspace, job: Job, training: Training) -> dict[str, Any]:
    """Train the job's model, embed the test images, and describe the model."""
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
    _replace_embeddings(embed_images(model, workspace.test_images), folder / EMBEDDINGS)
    return _described(training.method, images, model) | {
        "cost": training_cost(folder / MODEL / METRICS_FILE)
    }


def _adapt(workspace: Workspace, job: Job, map_fitting: MapFitting) -> dict[str, Any]:
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
    test_embeddings = embed_images(model, workspace.test_images)
    _replace_embeddings(test_embeddings, folder / EMBEDDINGS)
    return _described(map_fitting.kind, images, model)


def _described(method: str, images: ImageSet, model: Model) -> dict[str, Any]:
    return {
        "method": method,
        "images": len(images),
        "classes": len(images.class_names),
        "architecture": model.architecture,
        "dim": model.dim,
        "fingerprint": model.fingerprint,
    }


def _replace_embeddings(embeddings: Embeddings, folder: Path) -> None:
    """Save embeddings, and first remove what a killed run may have left there."""
    shutil.rmtree(folder, ignore_errors=True)
    save_embeddings(embeddings, folder)


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

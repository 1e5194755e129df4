"""The folder and the images of a benchmark, which its jobs share.

The names of the files in the folder are here too, and the check that a folder belongs to the
benchmark that wants to use it.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from unibct.arrays import Floats
from unibct.benchmark.grid import Grid
from unibct.benchmark.jobs import Job, training_rows
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.distributed.device import pick_device
from unibct.embeddings.store import STORE_DESCRIPTION as EMBEDDINGS_DESCRIPTION
from unibct.embeddings.store import Embeddings, open_embeddings
from unibct.errors import UserError
from unibct.evaluation.templates import GallerySplit, split_gallery
from unibct.evaluation.verification import headline_far
from unibct.files import read_json, write_json
from unibct.models.model import Model
from unibct.models.model_folder import load_model
from unibct.training.network import recipe_input
from unibct.training.recipe import with_flat_recipe

RESULT_FILE = "result.json"
MODEL = "model"
EMBEDDINGS = "embeddings"
VALIDATION = "validation"
SETTINGS_FILE = "benchmark.json"
CACHE = "cache"
_VALIDATION_KEY = f"{VALIDATION}_images"
VALIDATION_PIXELS = f"{VALIDATION}_pixels"  # of the settings, and of each result
_MEASURE_AGAIN = "--measure-again runs its tests again without training"
JOB_FOLDERS = ("models", "cells", "chains", CACHE)


@dataclass(frozen=True)
class Workspace:
    """A grid with its folder and its images. Each process opens the images when it needs them.

    Attributes:
        grid: what is compared.
        out: the benchmark's folder.
        device: ``auto``, ``cpu``, ``cuda``, …
        measure_again: run the tests of finished jobs again, from their models and embeddings.
        models_from: the folder of a benchmark with the same training images and recipe, whose
            models are taken instead of training them again; None if there is none.
    """

    grid: Grid
    out: Path
    device: str = "auto"
    measure_again: bool = False
    models_from: Path | None = None

    @cached_property
    def _image_sets(self) -> tuple[ImageSet, ImageSet]:
        return self.grid.open()

    @property
    def all_training_images(self) -> ImageSet:
        """The images from which every job takes its part."""
        return self._image_sets[0]

    @property
    def test_images(self) -> ImageSet:
        """The images of every test; no model has seen their classes."""
        return self._image_sets[1]

    @cached_property
    def validation_images(self) -> ImageSet | None:
        """The images of other classes on which cells choose, if there are any."""
        return self.grid.open_validation(*self._image_sets)

    def has_work(self, job: Job) -> bool:
        """Return whether a job has to run: it has no result, or is to be measured again."""
        return self.measure_again or not is_current(self.out, job)

    @cached_property
    def split(self) -> GallerySplit:
        """The gallery's images and the queries, the same in every test."""
        return split_gallery(self.test_images.labels)

    @cached_property
    def far(self) -> float:
        """The false accept rate of the headline TAR."""
        return headline_far(self.split.compared_classes)

    def training_images(self, part: str, seed: int) -> ImageSet:
        """Return the training images of a part; see ``training_rows`` for its name."""
        images = self.all_training_images
        return images.select(training_rows(images.labels, part, seed))

    def model(self, folder: str) -> Model:
        """Load the model of a finished job."""
        return load_model(self.out / folder / MODEL, device=pick_device(self.device))

    def embeddings(self, folder: str) -> Embeddings:
        """Open the test embeddings of a finished job."""
        return open_embeddings(self.out / folder / EMBEDDINGS)

    def vectors(self, folder: str) -> Floats:
        """Return (test images, dim) embeddings of a finished job, in the order of the images."""
        return self.embeddings(folder).rows_of(self.test_images)

    def pixel_digests(self) -> dict[str, str]:
        """Read every image once and return a digest of all pixels, per image set.

        An unreadable image raises an error.
        """
        frame = recipe_input(self.grid.recipe).frame
        names = ("pixels", "test_pixels", VALIDATION_PIXELS)
        sets = (*self._image_sets, self.validation_images)
        return {
            name: read_pixels(images, frame, memory=0).digest
            for name, images in zip(names, sets, strict=True)
            if images is not None
        }


def is_finished(out: Path, job: Job) -> bool:
    """Return whether a job has written its result."""
    return (out / job.folder / RESULT_FILE).is_file()


def is_current(out: Path, job: Job) -> bool:
    """Return whether a job has a result, measured with the folder's validation images.

    A ``measure_again`` that was stopped leaves results with others, or without any.
    """
    if not is_finished(out, job):
        return False
    pixels = validation_pixels(out)
    return read_result(out, job.folder).get(VALIDATION_PIXELS, pixels) == pixels


def read_result(out: Path, folder: str) -> dict[str, Any]:
    """Read what a finished job has written; an error says what to do with a damaged file."""
    path = out / folder / RESULT_FILE
    again = "remove that file and run the benchmark again"
    try:
        content: Any = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {again}") from error
    if not isinstance(content, dict) or not {"tests", "templates"} <= content.keys():
        raise UserError(f"{path} does not hold the result of a job; {again}")
    return cast(dict[str, Any], content)


def validation_pixels(out: Path) -> str | None:
    """Return the digest of a folder's validation images, from its settings; None without any."""
    path = out / SETTINGS_FILE
    return read_json(path).get(VALIDATION_PIXELS) if path.is_file() else None


def record_validation(out: Path) -> None:
    """Let results and validation embeddings say from which validation images they were made.

    Those of earlier versions do not say it: they belong to the settings. So this comes before other
    settings are written.
    """
    pixels = validation_pixels(out)
    for folder in JOB_FOLDERS:
        for path in (out / folder).rglob(RESULT_FILE):
            result = read_json(path)
            if VALIDATION_PIXELS not in result:
                write_json(path, result | {VALIDATION_PIXELS: pixels})
        for path in (out / folder).rglob(f"{VALIDATION}/{EMBEDDINGS_DESCRIPTION}"):
            description = read_json(path)
            if description["source"] is None:
                write_json(path, description | {"source": pixels or "unknown"})


def benchmark_settings(workspace: Workspace) -> dict[str, Any]:
    """Return the settings that all results of a folder share, without the pixel digests."""
    validation = workspace.validation_images
    chosen_on = {} if validation is None else {_VALIDATION_KEY: validation.digest}
    return workspace.grid.settings() | {
        "images": workspace.all_training_images.digest,
        "test_images": workspace.test_images.digest,
        **chosen_on,
    }


def require_same_benchmark(workspace: Workspace, settings: dict[str, Any]) -> None:
    """Raise an error if the folder holds a benchmark with other settings, or with unknown ones."""
    path = workspace.out / SETTINGS_FILE
    if not path.is_file():
        if any(any((workspace.out / name).rglob(RESULT_FILE)) for name in JOB_FOLDERS):
            raise UserError(
                f"{workspace.out} holds results but no {SETTINGS_FILE}, which says what they were "
                "made from: copy that file too from one of the folders that they come from"
            )
        return
    stored_settings = with_flat_recipe(read_json(path))
    _require_same_validation(workspace, stored_settings, settings)
    for key, value in with_flat_recipe(settings).items():
        if key.startswith(VALIDATION) and workspace.measure_again:
            continue
        if key not in stored_settings:
            raise UserError(
                f"{workspace.out} was made by an earlier version, which did not record the {key}; "
                "choose another --out or remove it"
            )
        if stored_settings[key] != value:
            difference = f"its {key} is {stored_settings[key]!r}, not {value!r}"
            if "images" in key:
                difference = "it was made from other images, or other classes"
            elif "pixels" in key:
                difference = "some of its images have changed since"
            remedy = "choose another --out or remove it"
            if key == VALIDATION_PIXELS:
                difference = "some of its validation images have changed since"
                remedy = f"{_MEASURE_AGAIN}, or choose another --out"
            raise UserError(f"{workspace.out} holds another benchmark: {difference}; {remedy}")


def require_same_training(workspace: Workspace, settings: dict[str, Any]) -> None:
    """Raise an error if the models of ``models_from`` are not those that would be trained."""
    if workspace.models_from is None:
        return
    path = workspace.models_from / SETTINGS_FILE
    if not path.is_file():
        raise UserError(f"{workspace.models_from} holds no benchmark: it has no {SETTINGS_FILE}")
    stored = with_flat_recipe(read_json(path))
    for key, value in with_flat_recipe(settings).items():
        if key.startswith((VALIDATION, "test_")) or stored.get(key) == value:
            continue
        difference = f"their {key} is {stored.get(key)!r}, not {value!r}"
        if key in ("images", "pixels"):
            difference = "they were trained on other images"
        raise UserError(f"the models of {workspace.models_from} cannot be taken: {difference}")


def _require_same_validation(
    workspace: Workspace, stored: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Refuse other validation images than those of the folder, unless it is measured again."""
    before, now = stored.get(_VALIDATION_KEY), settings.get(_VALIDATION_KEY)
    if before == now or workspace.measure_again:
        return
    made = "without validation images" if before is None else "with other validation images"
    if now is None:
        made = "with validation images; give them with --validation"
    raise UserError(f"{workspace.out} was made {made}; {_MEASURE_AGAIN}, or choose another --out")

"""The folder and the images of a benchmark, which its jobs share.

A job's folder holds ``model/`` (if it makes one), ``embeddings/`` of the test images and
``validation/`` of the validation images, if there are any, by that model, ``samples.safetensors``
(the bootstrap values of each metric and flip rate; all jobs draw the same classes) and
``result.json``. The last is written last: a job that has it is finished and never runs again.
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
from unibct.embeddings.store import Embeddings, open_embeddings
from unibct.errors import UserError
from unibct.evaluation.templates import GallerySplit, split_gallery
from unibct.evaluation.verification import headline_far
from unibct.files import read_json
from unibct.models.model import Model
from unibct.models.model_folder import load_model
from unibct.training.network import recipe_input
from unibct.training.recipe import with_flat_recipe

MODEL, EMBEDDINGS, VALIDATION = "model", "embeddings", "validation"
RESULT_FILE, SAMPLES_FILE = "result.json", "samples.safetensors"
SETTINGS_FILE = "benchmark.json"
CACHE = "cache"
JOB_FOLDERS = ("models", "cells", "chains", CACHE)


@dataclass(frozen=True)
class Workspace:
    """A grid with its folder and its images. Each process opens the images when it needs them."""

    grid: Grid
    out: Path
    device: str = "auto"

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

    def validation_vectors(self, folder: str) -> Floats:
        """Return (validation images, dim) embeddings of a finished job that made a model."""
        assert self.validation_images is not None
        return open_embeddings(self.out / folder / VALIDATION).rows_of(self.validation_images)

    def settings(self) -> dict[str, Any]:
        """Return the settings that all results of the folder share, without the pixel digests."""
        images = {f"{name}images": images.digest for name, images in self._named_sets().items()}
        return self.grid.settings() | images

    def pixel_digests(self) -> dict[str, str]:
        """Read every image once and return a digest of all pixels, per image set.

        An unreadable image raises an error.
        """
        frame = recipe_input(self.grid.recipe).frame
        return {
            f"{name}pixels": read_pixels(images, frame, memory=0).digest
            for name, images in self._named_sets().items()
        }

    def _named_sets(self) -> dict[str, ImageSet]:
        sets = {"": self.all_training_images, "test_": self.test_images}
        if self.validation_images is not None:
            sets[f"{VALIDATION}_"] = self.validation_images
        return sets

    def require_same_benchmark(self, settings: dict[str, Any]) -> None:
        """Raise an error if the folder holds a benchmark with other or with unknown settings."""
        path = self.out / SETTINGS_FILE
        if not path.is_file():
            if any(any((self.out / name).rglob(RESULT_FILE)) for name in JOB_FOLDERS):
                raise UserError(
                    f"{self.out} holds results but no {SETTINGS_FILE}, which says what they were "
                    "made from: copy that file too from one of the folders that they come from"
                )
            return
        stored, current = with_flat_recipe(read_json(path)), with_flat_recipe(settings)
        chosen_on = f"{VALIDATION}_images"
        if chosen_on in stored and chosen_on not in current:
            difference = "it was made with validation images; give them as validation"
        elif chosen_on in current and chosen_on not in stored:
            difference = "it was made without validation images"
        else:
            key = next((k for k, v in current.items() if stored.get(k) != v), None)
            if key is None:
                return
            difference = f"its {key} is {stored.get(key)!r}, not {current[key]!r}"
            kind = f"{VALIDATION} " if key.startswith(VALIDATION) else ""
            if "images" in key:
                difference = f"it was made from other {kind}images, or other classes"
            elif "pixels" in key:
                difference = f"some of its {kind}images have changed since"
        raise UserError(
            f"{self.out} holds another benchmark: {difference}; choose another folder (out) or "
            "remove it"
        )


def is_finished(out: Path, job: Job) -> bool:
    """Return whether a job has written its result."""
    return (out / job.folder / RESULT_FILE).is_file()


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

"""A benchmark's folder and images: what every job of a process uses."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from unibct.arrays import Floats
from unibct.benchmark.jobs import Job, training_rows
from unibct.benchmark.plan import Grid
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.distributed.device import pick_device
from unibct.embeddings.store import Embeddings, open_embeddings
from unibct.errors import UserError
from unibct.evaluation.gallery_split import GallerySplit, split_gallery
from unibct.evaluation.resolution import headline_far
from unibct.files import read_json
from unibct.models.architectures.table import find_architecture
from unibct.models.model import Model, load_model
from unibct.progress import Progress

RESULT_FILE = "result.json"
MODEL = "model"
EMBEDDINGS = "embeddings"
SETTINGS_FILE = "benchmark.json"
CACHE = "cache"
JOB_FOLDERS = ("models", "cells", "chains", CACHE)


@dataclass(frozen=True)
class Workspace:
    """A grid with its images and its folder: what every job of a process uses."""

    grid: Grid
    out: Path
    device: str = "auto"

    @cached_property
    def images(self) -> tuple[ImageSet, ImageSet]:
        """Training and test images."""
        return self.grid.open()

    @cached_property
    def split(self) -> GallerySplit:
        """The gallery's images and the queries: the same in every test."""
        return split_gallery(self.images[1].labels)

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


def benchmark_settings(workspace: Workspace) -> dict[str, Any]:
    """What all results of a folder have in common; ``Workspace.read_all`` adds the pixels."""
    return workspace.grid.settings() | {
        "images": workspace.images[0].digest,
        "test_images": workspace.images[1].digest,
    }


def require_same_benchmark(workspace: Workspace, wanted: dict[str, Any]) -> None:
    """Refuse a folder that is about something else."""
    path = workspace.out / SETTINGS_FILE
    if not path.is_file():
        return
    kept = _flat(read_json(path))
    for key, value in _flat(wanted).items():
        if key not in kept:
            raise UserError(
                f"{workspace.out} was made by an earlier version, which did not keep the {key}; "
                "choose another --out or remove it"
            )
        if kept[key] != value:
            differs = f"its {key} is {kept[key]!r}, not {value!r}"
            if "images" in key:
                differs = "it was made from other images, or other classes"
            elif "pixels" in key:
                differs = "some of its images have changed since"
            raise UserError(
                f"{workspace.out} holds another benchmark: {differs}; "
                "choose another --out or remove it"
            )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    recipe = cast(dict[str, Any], settings.get("recipe", {}))
    return {f"recipe.{k}": v for k, v in recipe.items()} | {
        k: v for k, v in settings.items() if k != "recipe"
    }

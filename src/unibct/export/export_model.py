"""A model to an ONNX file, which is checked against the model in torch before it gets its name."""

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import VECTORS, Pixels
from unibct.data.image_set import ImageSet
from unibct.data.loader import unread_pixels
from unibct.data.readers import open_images
from unibct.errors import UserError
from unibct.export.graph import (
    Exportable,
    ExportedModel,
    add_metadata,
    input_description,
    require_onnx,
    write_graph,
)
from unibct.export.int8 import Int8Loss, calibration_split, measure_int8_loss, write_int8
from unibct.files import atomic_file, write_json
from unibct.models.embedder import Embedder
from unibct.models.old_space import OldSpaceModel

IMAGES = 1000
LOWEST_COSINE = 0.99999
_BATCH = 64
_CALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class Agreement:
    """The cosines between the embeddings of the file and of the model."""

    images: int
    lowest: float
    mean: float
    worst: str  # the image with the smallest cosine

    @property
    def is_enough(self) -> bool:
        """Whether the file may stand for the model."""
        return self.lowest >= LOWEST_COSINE


def sample_pixels(
    model: Exportable, images: ImageSet | None, count: int = IMAGES
) -> tuple[Pixels, tuple[str, ...]]:
    """Return ``count`` images in the form that a model takes, and their names.

    They are taken evenly from ``images``. What is missing is made up half by embedded images
    (characters) and half by noise.
    """
    parts: list[Pixels] = []
    names: list[str] = []
    for source, wanted in ((images, count), (open_images("glyphs:test"), count // 2)):
        wanted = min(wanted, count - len(names))
        if source is None or wanted < 1:
            continue
        rows = np.unique(np.linspace(0, len(source) - 1, wanted).astype(np.int64))
        parts += unread_pixels(source, model.input.frame).batches(rows, _BATCH)
        names += [source.ids[row] for row in rows.tolist()]
    missing = count - len(names)
    noise = np.random.default_rng(0).integers(0, 256, (missing, *model.input.frame.shape))
    parts.append(noise.astype(np.uint8))
    names += [f"noise image {number}" for number in range(missing)]
    return np.concatenate(parts), tuple(names)


def embeddings_in_torch(model: Exportable, pixels: Pixels) -> NDArray[np.float32]:
    """Map (images, height, width, channels) -> (images, dim), a batch at a time."""
    starts = range(0, len(pixels), _BATCH)
    return np.concatenate([model.embed_pixels(pixels[i : i + _BATCH]) for i in starts])


def agreement(
    model: Exportable, exported: ExportedModel, pixels: Pixels, names: tuple[str, ...]
) -> Agreement:
    """Compare the embeddings of the same images; NaN counts as a cosine of −1."""
    ours, theirs = embeddings_in_torch(model, pixels), exported.embed_pixels(pixels)
    pairs = (vectors.astype(np.float64) for vectors in (ours, theirs))
    ours, theirs = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in pairs)
    cosines = np.nan_to_num((ours * theirs).sum(axis=1), nan=-1.0)
    worst = int(cosines.argmin())
    return Agreement(len(cosines), float(cosines[worst]), float(cosines.mean()), names[worst])


@dataclass(frozen=True)
class Export:
    """What was written, and how it was checked."""

    path: Path
    agreement: Agreement  # of the exact file with the model in torch
    int8: str | None = None  # ``static`` or ``dynamic`` for an int8 file
    loss: Int8Loss | None = None  # what the int8 file loses
    space: str = "own"  # ``old`` if the embeddings are projected into the old model's space

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        values: dict[str, Any] = {
            "file": self.path.name,
            "bytes": self.path.stat().st_size,
            "space": self.space,
            "agreement": asdict(self.agreement),
        }
        if self.loss is not None:
            values |= {"int8": self.int8, "loss": self.loss.as_json()}
        return values


def export_model(
    model: Exportable,
    path: str | Path,
    *,
    images: ImageSet | None = None,
    int8: bool = False,
    old: Embedder | None = None,
) -> Export:
    """Write a model as an ONNX file; see ``export.graph`` for what the file takes and gives.

    The exact file must give the same embeddings as torch on 1,000 images, cosine ≥ 0.99999, or
    nothing is written. Beside the file, ``FILE.json`` keeps what was measured.

    Args:
        model: the model, on the CPU; an ``OldSpaceModel`` gives embeddings in the old space.
        path: the file to write.
        images: for the check; by default embedded images and noise.
        int8: write the int8 variant instead, and measure what it loses; needs ``images``.
        old: the model whose gallery int8 queries are tested in; by default the exact file's own.
    """
    path = Path(path)
    require_onnx()
    _require_exportable(model, path, has_images=images is not None, int8=int8, old=old)
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "exact.onnx"
        write_graph(model, result)
        agreed = agreement(model, ExportedModel(result), *sample_pixels(model, images))
        if not agreed.is_enough:
            raise UserError(
                f"nothing was written: the exported graph gives other embeddings than the model, "
                f"cosine {agreed.lowest:.6f} on {agreed.worst}, and {LOWEST_COSINE} is needed"
            )
        kind, loss = None, None
        if int8 and images is not None:
            exact, result = result, Path(scratch) / "int8.onnx"
            kind = write_int8(exact, result, _calibration_pixels(model, images))
            files = (ExportedModel(exact), ExportedModel(result))
            loss = measure_int8_loss(files, model, images, old=old)
            add_metadata(result, {"unibct.int8": json.dumps({"kind": kind} | loss.as_json())})
        with atomic_file(path, alone=True) as temporary:
            shutil.copyfile(result, temporary)
    space = "old" if isinstance(model, OldSpaceModel) else "own"
    export = Export(path, agreed, kind, loss, space)
    described = {
        "fingerprint": model.fingerprint,
        "dim": model.dim,
        "input": input_description(model),
    }
    write_json(path.with_name(f"{path.name}.json"), described | export.as_json())
    return export


def _require_exportable(
    model: Exportable, path: Path, *, has_images: bool, int8: bool, old: Embedder | None
) -> None:
    """Refuse what cannot work before anything is computed."""
    if model.input.fit == VECTORS:
        raise UserError(
            f"{model.name} takes finished vectors; only models of images can be exported"
        )
    if int8 and not has_images:
        raise UserError(
            "int8 needs images with classes, to calibrate it and to measure what it loses"
        )
    if old is not None and not int8:
        raise UserError("the old model is for measuring int8: ask for int8, or leave old out")
    if path.is_dir() or path.suffix != ".onnx":
        raise UserError(f"{path}: the name of the file must end with .onnx")


def default_file(model: Exportable, *, int8: bool = False) -> str:
    """Return the name of the exported file in the model's folder."""
    space = ".old-space" if isinstance(model, OldSpaceModel) else ""
    return f"model{space}{'.int8' if int8 else ''}.onnx"


def _calibration_pixels(model: Exportable, images: ImageSet) -> Pixels:
    """Return some images that are no queries in the test."""
    rows = calibration_split(images).gallery
    chosen = np.unique(np.linspace(0, len(rows) - 1, _CALIBRATION_IMAGES).astype(np.int64))
    pixels = unread_pixels(images, model.input.frame)
    return next(pixels.batches(rows[chosen], len(chosen)))

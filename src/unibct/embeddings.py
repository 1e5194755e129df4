"""Embeddings with ids, labels and the fingerprint of the model that made them."""

import hashlib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.augment import mirrored
from unibct.data.batches import PixelBatches, read_pixels
from unibct.data.sets import ImageSet
from unibct.errors import UserError
from unibct.files import atomic_folder, read_json, write_json, write_text
from unibct.models.model import Model
from unibct.progress import Advance, Progress, Silent

FORMAT = 1
DESCRIPTION_FILE = "embeddings.json"
VECTORS_FILE = "vectors.npy"
LABELS_FILE = "labels.npy"
IDS_FILE = "ids.txt"
_BATCH = 256


@dataclass(frozen=True)
class Embeddings:
    """The vectors of an image set by one model; checks itself on construction.

    Attributes:
        vectors: (images, dim) float32, L2-normalised; a memory map if it was opened from disk.
        ids: one per image.
        labels: (images,) int64, indices into ``class_names``.
        class_names: one per class.
        fingerprint: of the model.
    """

    vectors: NDArray[np.float32]
    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    fingerprint: str

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        rows = len(self.vectors)
        if self.vectors.ndim != 2 or self.vectors.dtype != np.float32:
            raise UserError(
                f"vectors must be float32 of shape (images, dim), not {self.vectors.dtype} of "
                f"shape {self.vectors.shape}"
            )
        if len(self.ids) != rows or self.labels.shape != (rows,):
            raise UserError(
                f"{rows} vectors, {len(self.ids)} ids and {len(self.labels)} labels do not match"
            )
        if rows and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            raise UserError(f"labels go beyond the {len(self.class_names)} class names")

    def __len__(self) -> int:
        return len(self.vectors)

    def rows_of(self, images: ImageSet) -> NDArray[np.float32]:
        """The vectors of ``images``, in their order."""
        if self.ids == images.ids:
            return self.vectors
        position = {image_id: row for row, image_id in enumerate(self.ids)}
        missing = [image_id for image_id in images.ids if image_id not in position]
        if missing:
            raise UserError(
                f"{len(missing)} images of {images.name} have no embedding, first {missing[0]!r}; "
                "make them with `unibct embed`"
            )
        return self.vectors[[position[image_id] for image_id in images.ids]]


def embed_images(
    model: Model, images: ImageSet, *, skip_bad: bool = False, progress: Progress | None = None
) -> Embeddings:
    """Embed every image of a set; unreadable ones are refused, or left out with ``skip_bad``."""
    pixels = read_pixels(images, *model.input.size, skip_bad=skip_bad, progress=progress)
    return embed_pixel_batches(model, pixels, progress=progress)


def embed_pixel_batches(
    model: Model,
    pixels: PixelBatches,
    *,
    flip: bool = False,
    label: str = "embedding",
    progress: Progress | None = None,
) -> Embeddings:
    """Embed images whose pixels are read already, with ``flip`` their mirror images."""
    images = pixels.images
    vectors = np.empty((len(images), model.dim), dtype=np.float32)
    # A third of a training step: forward only.
    with (progress or Silent()).task(label, len(images), weight=1 / 3) as advance:
        row = 0
        for batch in pixels.batches(np.arange(len(images)), _BATCH):
            found = model.embed_pixels(mirrored(batch) if flip else batch)
            if not np.isfinite(found).all():
                bad = row + int(np.isfinite(found).all(axis=1).argmin())
                raise UserError(f"the model gives no finite embedding for {images.ids[bad]}")
            vectors[row : row + len(batch)] = found
            row += len(batch)
            advance(len(batch))
    return Embeddings(vectors, images.ids, images.labels, images.class_names, model.fingerprint)


def raw_embeddings(
    model: Model,
    pixels: PixelBatches,
    *,
    flip_test: bool = True,
    rows: range | None = None,
    advance: Advance = lambda count: None,
) -> NDArray[np.float32]:
    """(images, dim) of some rows, not normalised; see ``Model.raw_embeddings``."""
    rows = range(len(pixels.images)) if rows is None else rows
    vectors = np.empty((len(rows), model.dim), dtype=np.float32)
    done = 0
    for batch in pixels.batches(np.arange(rows.start, rows.stop), _BATCH):
        vectors[done : done + len(batch)] = model.raw_embeddings(batch, flip_test=flip_test)
        done += len(batch)
        advance(len(batch))
    return vectors


def cached_embeddings(
    model: Model,
    pixels: PixelBatches,
    folder: Path,
    *,
    flip: bool = False,
    label: str = "embedding",
    progress: Progress | None = None,
) -> Embeddings:
    """The embeddings in ``folder`` if they are of this model and these pixels, else new ones.

    A cache that is damaged, or that cannot be written, costs time and nothing else.
    """
    note = folder / "pixels.txt"  # of which images they are
    with suppress(UserError, OSError):
        if note.read_text(encoding="utf-8") == pixels.digest:
            kept = open_embeddings(folder / "embeddings")
            if kept.fingerprint == model.fingerprint:
                return kept
    fitting = pixels
    if (pixels.height, pixels.width, pixels.channels) != model.input.size:
        fitting = read_pixels(pixels.images, *model.input.size, progress=progress)
    embeddings = embed_pixel_batches(model, fitting, flip=flip, label=label, progress=progress)
    with suppress(UserError, OSError):  # a full disk, or another process that was as fast
        shutil.rmtree(folder, ignore_errors=True)
        write_text(note, pixels.digest)
        save_embeddings(embeddings, folder / "embeddings")
    return embeddings


def save_embeddings(embeddings: Embeddings, folder: str | Path) -> None:
    """Write an embeddings folder, whole or not at all."""
    with atomic_folder(Path(folder)) as temporary:
        np.save(temporary / VECTORS_FILE, embeddings.vectors, allow_pickle=False)
        np.save(temporary / LABELS_FILE, embeddings.labels, allow_pickle=False)
        text = "".join(f"{image_id}\n" for image_id in embeddings.ids)
        (temporary / IDS_FILE).write_text(text, encoding="utf-8", newline="\n")
        write_json(
            temporary / DESCRIPTION_FILE,
            {
                "format": FORMAT,
                "images": len(embeddings),
                "dim": embeddings.vectors.shape[1],
                "dtype": "float32",
                "normalised": True,
                "model": embeddings.fingerprint,
                "sha256": {
                    name: _digest(temporary / name)
                    for name in (VECTORS_FILE, LABELS_FILE, IDS_FILE)
                },
                "classes": list(embeddings.class_names),
            },
        )


def open_embeddings(folder: str | Path, *, verify: bool = True) -> Embeddings:
    """Open an embeddings folder; the vectors stay on disk, memory-mapped.

    Args:
        folder: what ``save_embeddings`` wrote.
        verify: read all files once and compare their checksums; without it only the sizes,
            types and counts are checked.
    """
    folder = Path(folder)
    if not (folder / DESCRIPTION_FILE).is_file():
        raise UserError(f"{folder} is not an embeddings folder: no {DESCRIPTION_FILE} in it")
    described: dict[str, Any] = read_json(folder / DESCRIPTION_FILE)
    try:
        if described["format"] != FORMAT:
            raise UserError(
                f"{folder} has format {described['format']}; this unibct reads {FORMAT}"
            )
        if verify:
            for name, expected in described["sha256"].items():
                if _digest(folder / name) != expected:
                    raise UserError(
                        f"{folder / name} is damaged (its checksum differs); embed the images again"
                    )
        vectors = np.load(folder / VECTORS_FILE, mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / LABELS_FILE, allow_pickle=False)
        ids = (folder / IDS_FILE).read_text(encoding="utf-8").split("\n")[:-1]
        if vectors.shape != (described["images"], described["dim"]):
            raise UserError(
                f"{folder / VECTORS_FILE} has shape {vectors.shape}, but {DESCRIPTION_FILE} says "
                f"({described['images']}, {described['dim']})"
            )
        return Embeddings(
            vectors, tuple(ids), labels, tuple(described["classes"]), described["model"]
        )
    except KeyError as error:
        raise UserError(f"{folder / DESCRIPTION_FILE} lacks the entry {error}") from error
    except UserError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder} cannot be opened: {error}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

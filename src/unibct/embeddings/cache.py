"""Embeddings that are kept on disk for the next run, and when they may be used again."""

import shutil
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import cast

from filelock import FileLock

from unibct.data.loader import PixelBatches, read_pixels
from unibct.distributed.ranks import ALONE, Ranks
from unibct.embeddings.extraction import embed_rest_in_memory, embed_to_store
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.store_plan import (
    StorePlan,
    is_finished,
    plan_store,
    require_new_or_unfinished,
)
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.progress import Progress, Silent


def cached_embeddings(
    model: Embedder,
    pixels: PixelBatches,
    folder: Path,
    *,
    flip: bool = False,
    label: str = "embedding",
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> Embeddings:
    """Return the embeddings in ``folder``, or make them if they do not fit this model and pixels.

    An unfinished store is completed; a damaged one, or one of another model, is made again. If
    several runs want the same store, one makes it and the others wait. A single process that
    cannot write there says so, takes the rows that are written already, and keeps the others in
    memory.

    Args:
        model: the model.
        pixels: the images' pixels; read again if the model takes them in another form.
        folder: the cached store.
        flip: embed the mirror images.
        label: the name of the progress bar.
        progress: reports the images that this process embeds.
        ranks: the run's processes.
    """
    if isinstance(model, StoredEmbeddings):
        model.note_surplus(pixels.images, progress or Silent())
        model.require_all(pixels.images)
    plan = plan_store(model, pixels, flip=flip)
    progress = progress or Silent()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock") if ranks.first else nullcontext()
        with lock:
            if ranks.first and not _is_usable(folder, plan):
                shutil.rmtree(folder, ignore_errors=True)
            ranks.barrier()
            if ranks.ask_first(lambda: is_finished(folder, plan)):
                return open_embeddings(folder, verify=False)
            pixels = _fitting(model, pixels, progress, ranks)
            return embed_to_store(
                model, pixels, folder, plan, ranks=ranks, label=label, progress=progress
            )
    except OSError as error:  # for example a full disk
        if ranks.world > 1:
            raise
        why = f"{folder} cannot be written ({error.strerror or error})"
        pixels = _fitting(model, pixels, progress, ranks)
        return embed_rest_in_memory(
            model, pixels, folder, plan, why=why, label=label, progress=progress
        )


def embeddings_folder(
    cache: Path, model: Embedder, pixels: PixelBatches, *, flip: bool = False
) -> Path:
    """Return where runs that share a cache keep a model's embeddings of a training set."""
    view = "-flipped" if flip else ""
    return cache / f"embeddings-{model.fingerprint[:12]}-{pixels.digest[:12]}{view}"


def _fitting(
    model: Embedder, pixels: PixelBatches, progress: Progress, ranks: Ranks
) -> PixelBatches:
    """Return the pixels in the size that the model takes; read them again if it is another."""
    if isinstance(model, StoredEmbeddings):
        return pixels
    frame = cast(ImageEmbedder, model).input.frame
    if pixels.frame == frame:
        return pixels
    return read_pixels(pixels.images, frame, progress=progress, ranks=ranks)


def _is_usable(folder: Path, plan: StorePlan) -> bool:
    """Return whether a cached store is complete and undamaged, or can be completed."""
    with suppress(UserError, OSError):
        if is_finished(folder, plan):
            open_embeddings(folder)
        else:
            require_new_or_unfinished(folder, plan)
        return True
    return False

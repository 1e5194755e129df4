"""Images through a model: embeddings in memory, or into a store by one or several processes."""

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from unibct.data.augmentation import mirrored
from unibct.data.checked_set import find_checked_set, source_stamp
from unibct.data.decoding import Frame
from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches, fits_in_memory, read_pixels, unread_pixels
from unibct.distributed.ranks import ALONE, Ranks
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.layout import vectors_file
from unibct.embeddings.network_pass import EMBEDDING_WEIGHT, NETWORK_BATCH, finite_embeddings
from unibct.embeddings.single_pass import SinglePass, has_begun
from unibct.embeddings.store_plan import (
    StorePlan,
    is_finished,
    noted_shards,
    plan_store,
    remove_shard_notes,
    require_new_or_unfinished,
    shard_is_done,
    write_shard_note,
)
from unibct.embeddings.stored import StoredEmbeddings
from unibct.embeddings.writing import stored_classes, write_description, write_shard
from unibct.files import mapped_array, sweep
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.progress import Advance, Progress, Silent, ignore


def embed_images(
    model: Embedder, images: ImageSet, *, skip_bad: bool = False, progress: Progress | None = None
) -> Embeddings:
    """Embed every image of a set; raise an error for unreadable ones, or skip them.

    Stored embeddings are looked up by id; ``skip_bad`` then skips images that have none.
    """
    if isinstance(model, StoredEmbeddings):
        return model.of(_stored_images(model, images, skip_bad, progress))
    model = cast(ImageEmbedder, model)
    pixels = read_pixels(images, model.input.frame, skip_bad=skip_bad, progress=progress)
    return embed_pixel_batches(model, pixels, progress=progress)


def embed_pixel_batches(
    model: Embedder,
    pixels: PixelBatches,
    *,
    flip: bool = False,
    label: str = "embedding",
    progress: Progress | None = None,
) -> Embeddings:
    """Embed images whose pixels are read already; with ``flip``, embed their mirror images."""
    if isinstance(model, StoredEmbeddings):
        return model.of(pixels.images)
    images = pixels.images
    with (progress or Silent()).task(label, len(images), weight=EMBEDDING_WEIGHT) as advance:
        vectors = _vectors(model, pixels, range(len(images)), flip=flip, advance=advance)
    return _in_memory(model, images, vectors)


def _in_memory(model: Embedder, images: ImageSet, vectors: NDArray[np.float32]) -> Embeddings:
    return Embeddings(
        vectors,
        images.ids,
        images.labels,
        images.class_names,
        model.fingerprint,
        class_source=images.class_source,
        training_classes=model.training_classes,
    )


def embed_images_to_store(
    model: Embedder,
    images: ImageSet,
    folder: str | Path,
    *,
    skip_bad: bool = False,
    dtype: str = "float32",
    shard_rows: int | None = None,
    ranks: Ranks = ALONE,
    progress: Progress | None = None,
) -> Embeddings:
    """Embed every image of a set into a folder, shard by shard. Each image is decoded once.

    A run that was killed continues where it stopped when it is started again, even with another
    number of processes. No process holds more than one shard in memory.

    Args:
        model: the model, the same in every rank.
        images: the images, the same in every rank.
        folder: a new folder, or what a killed run with the same arguments left there.
        skip_bad: leave out unreadable images; without it they are an error.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file; by default few enough for about 64 files or more.
        ranks: the processes that divide the shards.
        progress: reports the images that this process embeds.

    Returns:
        The opened folder, with the rows of all ranks.
    """
    folder = Path(folder)
    if isinstance(model, StoredEmbeddings):
        known = _stored_images(model, images, skip_bad, progress)
        pixels = unread_pixels(known, Frame(1, 1, 1))
        plan = plan_store(model, pixels, dtype=dtype, shard_rows=shard_rows)
        return embed_to_store(model, pixels, folder, plan, ranks=ranks, progress=progress)
    model = cast(ImageEmbedder, model)
    frame = model.input.frame
    if ranks.ask_first(lambda: _takes_single_pass(images, frame, folder)):
        single_pass = SinglePass(
            model,
            images,
            folder,
            dtype=dtype,
            shard_rows=shard_rows,
            ranks=ranks,
            progress=progress,
        )
        return single_pass.run(skip_bad=skip_bad)
    pixels = read_pixels(images, frame, skip_bad=skip_bad, progress=progress, ranks=ranks)
    plan = plan_store(model, pixels, dtype=dtype, shard_rows=shard_rows)
    return embed_to_store(model, pixels, folder, plan, ranks=ranks, progress=progress)


def _takes_single_pass(images: ImageSet, frame: Frame, folder: Path) -> bool:
    """Return whether the images are to be checked while they are embedded, see ``SinglePass``.

    Not if they are kept in memory after a check, if an earlier check is still valid, or if the
    folder holds a store that was made after one.
    """
    if has_begun(folder):
        return True
    if (folder.is_dir() and any(folder.iterdir())) or fits_in_memory(len(images), frame):
        return False
    stamp = source_stamp(images)
    return stamp is not None and find_checked_set(images, frame, stamp) is None


def embed_to_store(
    model: Embedder,
    pixels: PixelBatches,
    folder: Path,
    plan: StorePlan,
    *,
    ranks: Ranks = ALONE,
    label: str = "embedding",
    progress: Progress | None = None,
) -> Embeddings:
    """Embed images into a folder as planned; keep the shards that a killed run has finished.

    Rank r makes the shards r, r + world, … and writes them itself, so nothing is gathered.

    Args:
        model: the model, the same in every rank.
        pixels: the images' pixels, the same in every rank.
        folder: a new folder, or what a killed run with the same plan left there.
        plan: what to store, and how.
        ranks: the processes that divide the shards.
        label: the name of the progress bar.
        progress: reports the images that this process embeds.

    Returns:
        The opened folder, with the rows of all ranks.
    """
    if ranks.ask_first(lambda: is_finished(folder, plan)):
        return open_embeddings(folder)
    ranks.ask_first(lambda: require_new_or_unfinished(folder, plan))
    _embed_own_shards(model, pixels, folder, plan, ranks=ranks, label=label, progress=progress)
    ranks.barrier()
    if ranks.first:
        write_description(
            folder,
            noted_shards(folder, plan),
            dim=model.dim,
            dtype=plan.dtype,
            fingerprint=plan.fingerprint,
            classes=stored_classes(pixels.images, model),
            source=plan.key,
        )
        sweep(folder)
        remove_shard_notes(folder)
    ranks.barrier()
    return open_embeddings(folder, verify=False)


def embed_rest_in_memory(
    model: Embedder,
    pixels: PixelBatches,
    folder: Path,
    plan: StorePlan,
    *,
    why: str,
    label: str = "embedding",
    progress: Progress | None = None,
) -> Embeddings:
    """Take the shards that ``embed_to_store`` has finished, and embed the other images in memory.

    Args:
        model: the model.
        pixels: the images' pixels.
        folder: where the store was to be made.
        plan: what it was to hold.
        why: the reason why it cannot be completed, for a note.
        label: the name of the progress bar.
        progress: reports the images, and gets the note.
    """
    progress = progress or Silent()
    is_done = [shard_is_done(folder, n, plan) for n in range(len(plan.shard_ranges))]
    done = sum(len(rows) for rows, known in zip(plan.shard_ranges, is_done, strict=True) if known)
    progress.note(
        f"{why}: {done:,} of {plan.images:,} embeddings are there; the others are kept in memory, "
        "and the next run that needs them makes them again"
    )
    vectors = np.empty((plan.images, model.dim), dtype=np.float32)
    with progress.task(label, plan.images, done=done, weight=EMBEDDING_WEIGHT) as advance:
        for number, (rows, known) in enumerate(zip(plan.shard_ranges, is_done, strict=True)):
            vectors[rows.start : rows.stop] = (
                mapped_array(folder / vectors_file(number))
                if known
                else _vectors(model, pixels, rows, flip=plan.flip, advance=advance)
            )
    return _in_memory(model, pixels.images, vectors)


def raw_embeddings(
    model: ImageEmbedder,
    pixels: PixelBatches,
    *,
    flip_test: bool = True,
    rows: range | None = None,
    advance: Advance = ignore,
) -> NDArray[np.float32]:
    """Return (rows, dim) embeddings that are not normalised; see ``Model.raw_embeddings``."""
    rows = range(len(pixels.images)) if rows is None else rows
    vectors = np.empty((len(rows), model.dim), dtype=np.float32)
    done = 0
    for batch in pixels.batches(np.arange(rows.start, rows.stop), NETWORK_BATCH):
        vectors[done : done + len(batch)] = model.raw_embeddings(batch, flip_test=flip_test)
        done += len(batch)
        advance(len(batch))
    return vectors


def _stored_images(
    model: StoredEmbeddings, images: ImageSet, skip_bad: bool, progress: Progress | None
) -> ImageSet:
    """Return the images to look up: all of them, or with ``skip_bad`` those that are stored."""
    progress = progress or Silent()
    model.note_surplus(images, progress)
    if not skip_bad:
        model.require_all(images)
        return images
    known = model.known_images(images)
    if len(known) < len(images):
        progress.note(
            f"left out {len(images) - len(known)} images without embedding in {model.name}"
        )
    return known


def _vectors(
    model: Embedder, pixels: PixelBatches, rows: range, *, flip: bool, advance: Advance
) -> NDArray[np.float32]:
    """Return (rows, dim) embeddings; an error names the first image with NaN or infinity."""
    if isinstance(model, StoredEmbeddings):
        advance(len(rows))
        return model.vectors_of(pixels.images.ids[rows.start : rows.stop])
    model = cast(ImageEmbedder, model)
    vectors = np.empty((len(rows), model.dim), dtype=np.float32)
    done = 0
    for batch in pixels.batches(np.arange(rows.start, rows.stop), NETWORK_BATCH):
        ids = pixels.images.ids[rows.start + done : rows.start + done + len(batch)]
        view = mirrored(batch) if flip else batch
        vectors[done : done + len(batch)] = finite_embeddings(model, view, ids)
        done += len(batch)
        advance(len(batch))
    return vectors


def _embed_own_shards(
    model: Embedder,
    pixels: PixelBatches,
    folder: Path,
    plan: StorePlan,
    *,
    ranks: Ranks,
    label: str,
    progress: Progress | None,
) -> None:
    """Write this rank's shards that are not done yet, each followed by its note."""
    images = pixels.images
    own_shards = dict(list(enumerate(plan.shard_ranges))[ranks.rank :: ranks.world])
    remaining_shards = {
        number: rows
        for number, rows in own_shards.items()
        if not shard_is_done(folder, number, plan)
    }
    total = sum(map(len, own_shards.values()))
    done = total - sum(map(len, remaining_shards.values()))
    with (progress or Silent()).task(label, total, done=done, weight=EMBEDDING_WEIGHT) as advance:
        for number, rows in remaining_shards.items():
            part = slice(rows.start, rows.stop)
            vectors = _vectors(model, pixels, rows, flip=plan.flip, advance=advance)
            labels, ids = images.labels[part], images.ids[part]
            shard = write_shard(folder, number, rows.start, vectors, labels, ids, plan.dtype)
            write_shard_note(folder, number, plan, shard)

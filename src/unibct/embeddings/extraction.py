"""Images through a model: embeddings in memory, or into a store by one or several processes."""

import hashlib
import re
import shutil
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from unibct.data.augmentation import mirrored
from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches, read_pixels
from unibct.distributed.ranks import ALONE, Ranks
from unibct.embeddings.store import (
    DESCRIPTION_FILE,
    SHARD_ROWS,
    Embeddings,
    Shard,
    open_embeddings,
    read_description,
    shard_from,
    shard_is_whole,
    write_description,
    write_shard,
)
from unibct.errors import UserError
from unibct.files import read_json, require_absent, sweep, write_json
from unibct.models.model import Model
from unibct.progress import Advance, Progress, Silent

_BATCH = 256
_SMALLEST_SHARD = 1024
_OWN_FILES = re.compile(r"(vectors|labels|ids|shard)-\d{6}\.(npy|txt|json)|classes\.txt|\..*\.tmp")


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
    # A third of a training step: forward only.
    with (progress or Silent()).task(label, len(images), weight=1 / 3) as advance:
        vectors = _vectors(model, pixels, range(len(images)), flip=flip, advance=advance)
    return Embeddings(vectors, images.ids, images.labels, images.class_names, model.fingerprint)


def embed_images_to_store(
    model: Model,
    images: ImageSet,
    folder: str | Path,
    *,
    skip_bad: bool = False,
    dtype: str = "float32",
    shard_rows: int | None = None,
    ranks: Ranks = ALONE,
    progress: Progress | None = None,
) -> Embeddings:
    """Embed every image of a set into a folder; see ``embed_to_store``."""
    size = model.input.size
    pixels = read_pixels(images, *size, skip_bad=skip_bad, progress=progress, ranks=ranks)
    return embed_to_store(
        model,
        pixels,
        folder,
        dtype=dtype,
        shard_rows=shard_rows,
        ranks=ranks,
        progress=progress,
    )


def embed_to_store(
    model: Model,
    pixels: PixelBatches,
    folder: str | Path,
    *,
    flip: bool = False,
    dtype: str = "float32",
    shard_rows: int | None = None,
    ranks: Ranks = ALONE,
    digest: str | None = None,
    label: str = "embedding",
    progress: Progress | None = None,
) -> Embeddings:
    """Embed images into a folder, shard by shard; started again, it goes on where it was.

    Shard s is made by rank s mod world and goes to disk from there: nothing is gathered, and no
    process holds more than a shard. The number of ranks may change when it is started again.

    Args:
        model: the model, the same in every rank.
        pixels: the images' pixels, the same in every rank.
        folder: a new folder, or what a killed run with the same arguments left there.
        flip: embed the mirror images.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file; by default so many that there are some 64 files or more.
        ranks: the processes that divide the shards.
        digest: tells these pixels from others; their own by default.
        label: what the progress is called.
        progress: told of each image that this process embeds.

    Returns:
        The opened folder, with all ranks' rows.
    """
    folder, fingerprint = Path(folder), model.fingerprint
    shard_rows = shard_rows or _shard_rows(len(pixels.images))
    key = _source(fingerprint, digest or pixels.digest, flip, dtype, shard_rows)
    if _finished(folder, key):
        return open_embeddings(folder)
    _require_own(folder, key)
    _embed_share(model, pixels, folder, key, flip, dtype, shard_rows, ranks, label, progress)
    ranks.barrier()
    if ranks.first:
        images = pixels.images
        write_description(
            folder,
            [_read_note(folder, n)[1] for n in range(len(_parts(len(images), shard_rows)))],
            dim=model.dim,
            dtype=dtype,
            fingerprint=fingerprint,
            class_names=images.class_names,
            source=key,
        )
        sweep(folder)
        for path in folder.glob("shard-*.json"):
            path.unlink()
    ranks.barrier()
    return open_embeddings(folder, verify=False)


def cached_embeddings(
    model: Model,
    pixels: PixelBatches,
    folder: Path,
    *,
    flip: bool = False,
    label: str = "embedding",
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> Embeddings:
    """The embeddings in ``folder`` if they are of this model and these pixels, else new ones.

    What a killed run left is completed; what is damaged or of another model is made again. Of
    several runs that want the same, one makes it and the others wait. A single process that
    cannot write there keeps its embeddings in memory.

    Args:
        model: the model.
        pixels: the images' pixels; read again if the model takes another size.
        folder: the cache.
        flip: embed the mirror images.
        label: what the progress is called.
        progress: told of each image that this process embeds.
        ranks: the run's processes.
    """
    shard_rows = _shard_rows(len(pixels.images))
    key = _source(model.fingerprint, pixels.digest, flip, "float32", shard_rows)
    fitting = pixels
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock") if ranks.first else nullcontext()
        with lock:
            if ranks.first and not _usable(folder, key):
                shutil.rmtree(folder, ignore_errors=True)
            ranks.barrier()
            if _finished(folder, key):
                return open_embeddings(folder, verify=False)
            if (pixels.height, pixels.width, pixels.channels) != model.input.size:
                fitting = read_pixels(
                    pixels.images, *model.input.size, progress=progress, ranks=ranks
                )
            return embed_to_store(
                model,
                fitting,
                folder,
                digest=pixels.digest,
                flip=flip,
                ranks=ranks,
                label=label,
                progress=progress,
            )
    except OSError:  # a full disk
        if ranks.world > 1:
            raise
        return embed_pixel_batches(model, fitting, flip=flip, label=label, progress=progress)


def embeddings_folder(
    cache: Path, model: Model, pixels: PixelBatches, *, flip: bool = False
) -> Path:
    """Where runs that share a cache keep a model's embeddings of a training set."""
    view = "-flipped" if flip else ""
    return cache / f"embeddings-{model.fingerprint[:12]}-{pixels.digest[:12]}{view}"


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


def _vectors(
    model: Model, pixels: PixelBatches, rows: range, *, flip: bool, advance: Advance
) -> NDArray[np.float32]:
    """(rows, dim) of some images; one that the model gives no finite embedding is named."""
    vectors = np.empty((len(rows), model.dim), dtype=np.float32)
    done = 0
    for batch in pixels.batches(np.arange(rows.start, rows.stop), _BATCH):
        found = model.embed_pixels(mirrored(batch) if flip else batch)
        finite = np.isfinite(found).all(axis=1)
        if not finite.all():
            bad = pixels.images.ids[rows.start + done + int(finite.argmin())]
            raise UserError(f"the model gives no finite embedding for {bad}")
        vectors[done : done + len(batch)] = found
        done += len(batch)
        advance(len(batch))
    return vectors


def _embed_share(
    model: Model,
    pixels: PixelBatches,
    folder: Path,
    key: str,
    flip: bool,
    dtype: str,
    shard_rows: int,
    ranks: Ranks,
    label: str,
    progress: Progress | None,
) -> None:
    """Write this rank's shards, each with a note of what it is; finished ones stay."""
    images = pixels.images
    own = dict(list(enumerate(_parts(len(images), shard_rows)))[ranks.rank :: ranks.world])
    left = {n: rows for n, rows in own.items() if not _made(folder, n, key)}
    total = sum(map(len, own.values()))
    done = total - sum(map(len, left.values()))
    with (progress or Silent()).task(label, total, done=done, weight=1 / 3) as advance:
        for number, rows in left.items():
            part = slice(rows.start, rows.stop)
            vectors = _vectors(model, pixels, rows, flip=flip, advance=advance)
            shard = write_shard(
                folder, number, rows.start, vectors, images.labels[part], images.ids[part], dtype
            )
            write_json(_note_file(folder, number), {"key": key, "shard": asdict(shard)})


def _shard_rows(images: int) -> int:
    """Enough files for as many processes as one would start, whatever their number."""
    return min(SHARD_ROWS, max(_SMALLEST_SHARD, -(-images // 64)))


def _parts(total: int, size: int) -> list[range]:
    return [range(i, min(i + size, total)) for i in range(0, total, size)]


def _source(fingerprint: str, digest: str, flip: bool, dtype: str, shard_rows: int) -> str:
    """What determines a store's files: the model, the pixels and the way they are stored."""
    parts = (fingerprint, digest, str(flip), dtype, str(shard_rows))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _note_file(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06}.json"


def _read_note(folder: Path, number: int) -> tuple[str, Shard]:
    path = _note_file(folder, number)
    try:
        found = read_json(path)
        return found["key"], shard_from(found["shard"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be understood; remove {folder}") from error


def _made(folder: Path, number: int, key: str) -> bool:
    if not _note_file(folder, number).is_file():
        return False
    found, shard = _read_note(folder, number)
    return found == key and shard_is_whole(folder, shard)


def _finished(folder: Path, key: str) -> bool:
    return (folder / DESCRIPTION_FILE).is_file() and read_description(folder).source == key


def _require_own(folder: Path, key: str) -> None:
    """Refuse a folder that holds anything but an unfinished store of the same source."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if not all(_OWN_FILES.fullmatch(name) for name in names):
        require_absent(folder)
    for path in folder.glob("shard-*.json"):
        if _read_note(folder, int(path.stem.removeprefix("shard-")))[0] != key:
            raise UserError(
                f"{folder} holds unfinished embeddings by another model or of other images; "
                "choose another --out or remove it"
            )


def _usable(folder: Path, key: str) -> bool:
    """Whether a cache is whole, or can be completed."""
    with suppress(UserError, OSError):
        if _finished(folder, key):
            open_embeddings(folder)
        else:
            _require_own(folder, key)
        return True
    return False

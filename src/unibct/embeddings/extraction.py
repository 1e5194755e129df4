"""From images to vectors: decode, check, embed, and keep the vectors in memory or in a folder.

``embed`` does it for one model, ``embed_with_models`` for several in one pass over the pixels, and
``cached_embeddings`` keeps in a folder what a training needs again.
"""

import hashlib
import re
import shutil
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from unibct import progress
from unibct.arrays import to_numpy
from unibct.data.augmentation import mirrored
from unibct.data.checked_set import (
    DIGEST_BYTES,
    checked_batches,
    checked_set,
    find_checked_set,
    save_checked_set,
    source_stamp,
)
from unibct.data.decoding import Frame, Pixels
from unibct.data.image_set import ImageSet
from unibct.data.loader import PixelBatches, fits_in_memory, read_pixels, unread_pixels
from unibct.distributed.ranks import ALONE, Ranks
from unibct.embeddings.store import (
    NO_CLASS,
    SHARD_ROWS,
    STORE_DESCRIPTION,
    Embeddings,
    Shard,
    file_digest,
    open_embeddings,
    read_description,
    require_dtype,
    require_shard_rows,
    save_embeddings,
    shard_files,
    shard_from_json,
    shard_is_whole,
    write_array,
    write_description,
    write_shard,
)
from unibct.embeddings.stored import StoredEmbeddings, content_fingerprint
from unibct.errors import UserError
from unibct.files import mapped_array, read_json, require_absent, sweep, write_json
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.progress import Advance, ignore

NETWORK_BATCH = 256  # images that go through the network at a time
EMBEDDING_WEIGHT = 1 / 3  # of the time of a training step: forward only
_FEWEST_SHARD_ROWS = 1024


def embed(
    model: Embedder,
    images: Any,
    *,
    out: str | Path | None = None,
    dtype: str = "float32",
    shard_rows: int | None = None,
    ranks: Ranks = ALONE,
) -> Embeddings:
    """Return a model's L2-normalised embeddings of images; each image is decoded once.

    With ``out`` they are written into a folder, shard by shard, and read from there when they are
    used: no process holds more than one shard in memory. A run that was killed continues where it
    stopped when it is started again, even with another number of processes.

    Args:
        model: the model, the same in every rank. Stored embeddings are looked up by id.
        images: an image set; unreadable images are an error, unless it leaves them out
            (``skip_bad``), and so are images without a stored embedding. Or anything that
            ``Model.embed`` takes, such as (n, height, width, 3) uint8: then the ids are ``0``,
            ``1``, … and no classes are known.
        out: a new folder, or what a killed run with the same arguments left there; by default the
            embeddings stay in memory.
        dtype: ``float32`` or ``float16``, in the folder.
        shard_rows: rows in a file of the folder; by default few enough for about 64 files or more.
        ranks: the processes that divide the shards.
    """
    if not isinstance(images, ImageSet):
        embeddings = _embed_arrays(model, images)
        if out is None:
            return embeddings
        rows = shard_rows or default_shard_rows(len(embeddings))
        save_embeddings(embeddings, out, dtype=dtype, shard_rows=rows)
        return open_embeddings(out)
    if out is None:
        return embed_with_models([model], images)[0]
    folder = Path(out)
    if isinstance(model, StoredEmbeddings):
        pixels = unread_pixels(_stored_images(model, images), Frame(1, 1, 1))
    else:
        frame = cast(ImageEmbedder, model).input.frame
        if ranks.ask_first(lambda: _takes_single_pass(images, frame, folder)):
            # Of all images, and of their names instead of their pixels, which are not known yet.
            unread, rows = f"unread {images.digest}", shard_rows or default_shard_rows(len(images))
            plan = StorePlan(model.fingerprint, unread, len(images), False, dtype, rows)
            return StoreRun(model, images, None, folder, plan, ranks, asked_rows=shard_rows).run()
        pixels = read_pixels(images, frame, ranks=ranks)
    plan = plan_store(model, pixels, dtype=dtype, shard_rows=shard_rows)
    return StoreRun(model, pixels.images, pixels, folder, plan, ranks).run()


def embed_with_models(models: Sequence[Embedder], images: ImageSet) -> list[Embeddings]:
    """Return each model's embeddings of a set, in memory.

    An image is decoded once for all models that take it in the same form. If the set leaves
    unreadable images out, those that one model lacks may be there for another.
    """
    by_place: dict[int, Embeddings] = {}
    by_frame: dict[Frame, dict[int, ImageEmbedder]] = {}
    for place, model in enumerate(models):
        if isinstance(model, StoredEmbeddings):
            by_place[place] = model.of(_stored_images(model, images))
        else:
            model = cast(ImageEmbedder, model)
            by_frame.setdefault(model.input.frame, {})[place] = model
    for frame, alike in by_frame.items():
        pixels = read_pixels(images, frame)
        by_place |= zip(alike, _embed_pixels(list(alike.values()), pixels), strict=True)
    return [by_place[place] for place in range(len(models))]


def embed_pixel_batches(
    model: Embedder, pixels: PixelBatches, *, flip: bool = False, label: str = "embedding"
) -> Embeddings:
    """Embed images whose pixels are read already; with ``flip``, embed their mirror images."""
    if isinstance(model, StoredEmbeddings):
        return model.of(pixels.images)
    return _embed_pixels([cast(ImageEmbedder, model)], pixels, flip=flip, label=label)[0]


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


def finite_embeddings(
    model: ImageEmbedder, pixels: Pixels, image_ids: Sequence[str]
) -> NDArray[np.float32]:
    """Return (batch, dim) embeddings; an error names the first with NaN, infinity or zeros only."""
    vectors = model.embed_pixels(pixels)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        bad_id = image_ids[int(finite.argmin())]
        raise UserError(f"the model gives no finite embedding for {bad_id}")
    is_zero = ~vectors.any(axis=1)
    if is_zero.any():
        bad_id = image_ids[int(is_zero.argmax())]
        raise UserError(f"the model gives a vector of zeros for {bad_id}")
    return vectors


def _embed_arrays(model: Embedder, images: Any) -> Embeddings:
    if isinstance(images, str | Path):
        raise UserError(f"images is the text {str(images)!r}: open it first with open_images")
    if isinstance(model, StoredEmbeddings):
        raise UserError(f"{model.name} knows images by their ids: give an image set")
    vectors = to_numpy(cast(ImageEmbedder, model).embed(images))
    ids = tuple(str(row) for row in range(len(vectors)))
    labels = np.full(len(ids), NO_CLASS, dtype=np.int64)
    return Embeddings(
        vectors, ids, labels, (), model.fingerprint, training_classes=model.training_classes
    )


def _embed_pixels(
    models: Sequence[ImageEmbedder],
    pixels: PixelBatches,
    *,
    flip: bool = False,
    label: str = "embedding",
) -> list[Embeddings]:
    images, weight = pixels.images, len(models) * EMBEDDING_WEIGHT
    with progress.task(label, len(images), weight=weight) as advance:
        all_vectors = _vectors(models, pixels, range(len(images)), flip=flip, advance=advance)
    return [
        _in_memory(model, images, vectors)
        for model, vectors in zip(models, all_vectors, strict=True)
    ]


def _vectors(
    models: Sequence[Embedder], pixels: PixelBatches, rows: range, *, flip: bool, advance: Advance
) -> list[NDArray[np.float32]]:
    """Return (rows, dim) of each model; an error names the first image with NaN or infinity."""
    if isinstance(models[0], StoredEmbeddings):
        assert len(models) == 1
        advance(len(rows))
        return [models[0].embeddings.vectors_of(pixels.images.ids[rows.start : rows.stop])]
    embedders = [cast(ImageEmbedder, model) for model in models]
    all_vectors = [np.empty((len(rows), model.dim), dtype=np.float32) for model in embedders]
    done = 0
    for batch in pixels.batches(np.arange(rows.start, rows.stop), NETWORK_BATCH):
        part = slice(done, done + len(batch))
        ids = pixels.images.ids[rows.start : rows.stop][part]
        view = mirrored(batch) if flip else batch
        for model, vectors in zip(embedders, all_vectors, strict=True):
            vectors[part] = finite_embeddings(model, view, ids)
        done += len(batch)
        advance(len(batch))
    return all_vectors


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


def _stored_images(model: StoredEmbeddings, images: ImageSet) -> ImageSet:
    """Return the images to look up: all of them, or with ``skip_bad`` those that are stored."""
    model.note_surplus(images)
    if not images.skip_bad:
        model.require_all(images)
        return images
    known = model.known_images(images)
    if len(known) < len(images):
        progress.note(
            f"left out {len(images) - len(known)} images without embedding in {model.name}"
        )
    return known


# Making a store: what decides its files, and which of its shards are done.


@dataclass(frozen=True)
class StorePlan:
    """The store to make: a model's embeddings of some pixels, and how they are stored."""

    fingerprint: str  # of the model
    pixel_digest: str  # changes with any of the pixels, or of the stored embeddings
    images: int
    flip: bool  # whether the mirror images are embedded
    dtype: str  # float32 or float16, on disk
    shard_rows: int  # rows in a file

    def __post_init__(self) -> None:
        """Refuse files without rows, and numbers that they cannot hold."""
        require_shard_rows(self.shard_rows)
        require_dtype(self.dtype)

    @property
    def key(self) -> str:
        """A digest of everything that decides the store's files."""
        how = (str(self.flip), self.dtype, str(self.shard_rows))
        parts = (self.fingerprint, self.pixel_digest, *how)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def shard_ranges(self) -> list[range]:
        """The rows of each shard."""
        starts = range(0, self.images, self.shard_rows)
        return [range(start, min(start + self.shard_rows, self.images)) for start in starts]


def plan_store(
    model: Embedder,
    pixels: PixelBatches,
    *,
    flip: bool = False,
    dtype: str = "float32",
    shard_rows: int | None = None,
) -> StorePlan:
    """Return the plan of a store of a model's embeddings; for the arguments see ``embed``."""
    images = len(pixels.images)
    digest = pixels.digest
    if isinstance(model, StoredEmbeddings):  # their fingerprint may be a name that stays
        digest += content_fingerprint(model.embeddings)
    rows = shard_rows or default_shard_rows(images)
    return StorePlan(model.fingerprint, digest, images, flip, dtype, rows)


def default_shard_rows(images: int) -> int:
    """Return rows in a file for 64 files or more: any usual number of processes can divide them."""
    return min(SHARD_ROWS, max(_FEWEST_SHARD_ROWS, -(-images // 64)))


def is_finished(folder: Path, plan: StorePlan) -> bool:
    """Return whether a folder is the complete store of this plan."""
    return (folder / STORE_DESCRIPTION).is_file() and read_description(folder).source == plan.key


_FILES_OF_A_STORE = re.compile(
    r"(vectors|labels|ids|shard|checked)-\d{6}\.(npy|txt|json)"
    r"|(training_)?classes\.txt|\..*\.tmp"
)


@dataclass(frozen=True)
class Note:
    """What is known of a finished shard: a file next to it, until the store is complete."""

    key: str  # of the plan that made it
    shard: Shard  # its first row is counted as if all images were readable
    # The rest is known if the images were checked while they were embedded.
    stamp: str | None = None  # of the files that it was made from
    pixel_digests: bytes = b""  # (readable images, 16)
    problems: tuple[tuple[int, str], ...] = ()  # each unreadable row of the set, and why

    def write(self, path: Path) -> None:
        """Write the note."""
        digests = {"pixel_digests": self.pixel_digests.hex()}
        write_json(path, asdict(self) | digests)

    @staticmethod
    def read(path: Path) -> "Note":
        """Read a note; those of planned stores of earlier versions have key and shard only."""
        note: Any = read_json(path)
        try:
            return Note(
                note["key"],
                shard_from_json(note["shard"]),
                note.get("stamp"),
                bytes.fromhex(note.get("pixel_digests", "")),
                tuple((int(row), str(text)) for row, text in note.get("problems", ())),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{path} cannot be understood; remove {path.parent}") from error


@dataclass(frozen=True)
class StoreRun:
    """Embeds images into a folder by one or several processes, shard by shard.

    Rank r makes the shards r, r + world, … and writes them itself, so nothing is gathered. A run
    that starts again keeps the shards whose notes have the key of its plan, and whose files have
    not changed.

    A set that is too large for memory and was not checked before is checked while it is embedded,
    in one pass: whether an image is readable, and what its pixels are, shows only when it is
    decoded. When all shards are done, their notes together give the digest of the whole set.
    """

    model: Embedder  # the same in every rank, as are the images
    images: ImageSet
    pixels: PixelBatches | None  # of the images; None if they are checked while they are embedded
    folder: Path  # a new one, or what a killed run with the same plan left there
    plan: StorePlan
    ranks: Ranks = ALONE
    label: str = "embedding"  # of the progress bar
    asked_rows: int | None = None  # rows in a file as the user gave them, for a single pass

    def run(self) -> Embeddings:
        """Embed the images that are left, complete the store, and open it: it has all ranks' rows.

        In a single pass, unreadable images are an error in the end, unless the set leaves them
        out; the next run with a set that does has nothing left to embed.
        """
        checks = self.pixels is None
        if not checks and self.ranks.ask_first(lambda: is_finished(self.folder, self.plan)):
            return open_embeddings(self.folder)
        stamp = source_stamp(self.images) if checks and self.ranks.first else None
        self.ranks.ask_first(self.require_own_folder)
        self._embed_own_shards()
        self.ranks.barrier()
        self.ranks.ask_first(lambda: self._complete(stamp))
        return open_embeddings(self.folder, verify=False)

    def rest_in_memory(self, why: str) -> Embeddings:
        """Take the shards that are finished, and embed the other images in memory.

        A note says ``why`` the store cannot be completed.
        """
        assert self.pixels is not None
        plan, ranges = self.plan, self.plan.shard_ranges
        is_done = [self.is_done(number) for number in range(len(ranges))]
        done = sum(len(rows) for rows, known in zip(ranges, is_done, strict=True) if known)
        progress.note(
            f"{why}: {done:,} of {plan.images:,} embeddings are there; the others are kept in "
            "memory, and the next run that needs them makes them again"
        )
        vectors = np.empty((plan.images, self.model.dim), dtype=np.float32)
        task = progress.task(self.label, plan.images, done=done, weight=EMBEDDING_WEIGHT)
        with task as advance:
            for number, (rows, known) in enumerate(zip(ranges, is_done, strict=True)):
                vectors[rows.start : rows.stop] = (
                    mapped_array(self.folder / shard_files(number)[0])
                    if known
                    else _vectors([self.model], self.pixels, rows, flip=plan.flip, advance=advance)[
                        0
                    ]
                )
        return _in_memory(self.model, self.images, vectors)

    def require_own_folder(self) -> None:
        """Refuse a folder that holds anything but an unfinished store of this plan."""
        folder = self.folder
        if any(Note.read(path).key != self.plan.key for path in folder.glob(self._note_name("*"))):
            raise UserError(
                f"{folder} holds unfinished embeddings by another model or of other images; "
                "choose another --out or remove it"
            )
        if self.pixels is None and has_begun(folder):  # killed after it wrote the description
            (folder / STORE_DESCRIPTION).unlink(missing_ok=True)
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if not all(_FILES_OF_A_STORE.fullmatch(name) for name in names):
            require_absent(folder)

    def is_done(self, number: int, stamp: str | None = None) -> bool:
        """Return whether an earlier run finished a shard, of files with this stamp."""
        path = self.note_path(number)
        if not path.is_file():
            return False
        note = Note.read(path)
        is_same = (note.key, note.stamp) == (self.plan.key, stamp)
        return is_same and shard_is_whole(self.folder, note.shard)

    def note_path(self, number: int) -> Path:
        """Return the place of a shard's note."""
        return self.folder / self._note_name(f"{number:06}")

    def _note_name(self, number: str) -> str:
        return f"{'checked' if self.pixels is None else 'shard'}-{number}.json"

    def _embed_own_shards(self) -> None:
        """Write this rank's shards that are not done yet, each followed by its note."""
        own_shards = list(enumerate(self.plan.shard_ranges))[self.ranks.rank :: self.ranks.world]
        ids = self.images.ids
        stamps = {
            number: source_stamp(self.images, ids[rows.start : rows.stop])
            for number, rows in own_shards
            if self.pixels is None
        }
        remaining = [(n, rows) for n, rows in own_shards if not self.is_done(n, stamps.get(n))]
        total = sum(len(rows) for _, rows in own_shards)
        done = total - sum(len(rows) for _, rows in remaining)
        task = progress.task(self.label, total, done=done, weight=EMBEDDING_WEIGHT)
        with task as advance:
            for number, rows in remaining:
                self._embed_shard(number, rows, stamps.get(number), advance)

    def _embed_shard(self, number: int, rows: range, stamp: str | None, advance: Advance) -> None:
        good_rows, digests, problems = list(rows), b"", dict[int, str]()
        if self.pixels is None:
            model = cast(ImageEmbedder, self.model)
            vectors, good_rows, digests, problems = _checked_vectors(
                model, self.images, rows, advance
            )
        else:
            flip = self.plan.flip
            vectors = _vectors([self.model], self.pixels, rows, flip=flip, advance=advance)[0]
        shard = write_shard(
            self.folder,
            number,
            rows.start,
            vectors,
            self.images.labels[good_rows],
            [self.images.ids[row] for row in good_rows],
            self.plan.dtype,
        )
        note = Note(self.plan.key, shard, stamp, digests, tuple(problems.items()))
        note.write(self.note_path(number))

    def _complete(self, stamp: str | None) -> None:
        """Put the notes of all shards together, and write the store's description."""
        notes = [Note.read(self.note_path(n)) for n in range(len(self.plan.shard_ranges))]
        shards, images, key = [note.shard for note in notes], self.images, self.plan.key
        if self.pixels is None:
            images, key = self._checked(notes, stamp)
            shards = self._final_shards(shards, images)
        write_description(
            self.folder,
            shards,
            dim=self.model.dim,
            dtype=self.plan.dtype,
            fingerprint=self.plan.fingerprint,
            class_names=images.class_names,
            class_source=images.class_source,
            training_classes=self.model.training_classes,
            source=key,
        )
        sweep(self.folder)
        for path in self.folder.glob(self._note_name("*")):
            path.unlink()

    def _checked(self, notes: Sequence[Note], stamp: str | None) -> tuple[ImageSet, str]:
        """Return the readable images, and the key of the store as if they had been checked first.

        The check is kept for the next time, unless a file has changed since ``stamp``.
        """
        problems = {row: text for note in notes for row, text in note.problems}
        digests = np.zeros((len(self.images), DIGEST_BYTES), dtype=np.uint8)
        is_readable = np.ones(len(self.images), dtype=np.bool_)
        is_readable[list(problems)] = False
        known = np.frombuffer(b"".join(note.pixel_digests for note in notes), dtype=np.uint8)
        digests[is_readable] = known.reshape(-1, DIGEST_BYTES)
        checked = checked_set(self.images, digests, problems)
        frame = cast(ImageEmbedder, self.model).input.frame
        save_checked_set(self.images, frame, checked, stamp)
        readable = checked.readable(self.images)
        rows = self.asked_rows or default_shard_rows(len(readable))
        plan = replace(
            self.plan, pixel_digest=checked.digest, images=len(readable), shard_rows=rows
        )
        return readable, plan.key

    def _final_shards(self, shards: Sequence[Shard], readable: ImageSet) -> list[Shard]:
        """Return the shards with their first rows among the readable images.

        If a class has lost all of its images, the labels of the others are written again.
        """
        firsts = [0, *accumulate(shard.rows for shard in shards)]
        final: list[Shard] = []
        for number, shard in enumerate(shards):
            first, files = firsts[number], dict(shard.files)
            if readable.class_names != self.images.class_names:
                path = self.folder / shard_files(number)[1]
                write_array(path, readable.labels[first : first + shard.rows])
                files[path.name] = file_digest(path)
            final.append(Shard(first, shard.rows, files))
        return final


def _checked_vectors(
    model: ImageEmbedder, images: ImageSet, rows: range, advance: Advance
) -> tuple[NDArray[np.float32], list[int], bytes, dict[int, str]]:
    """Return vectors, rows and pixel digests of readable images, and what is wrong with others.

    The shapes are (readable, dim), (readable,) and (readable, 16 bytes).
    """
    vectors = np.empty((len(rows), model.dim), dtype=np.float32)
    digests = b""
    good_rows: list[int] = []
    problems: dict[int, str] = {}
    for batch in checked_batches(images, rows, model.input.frame, NETWORK_BATCH):
        batch_rows: list[int] = batch.rows.tolist()
        part = slice(len(good_rows), len(good_rows) + len(batch_rows))
        if batch_rows:
            ids = [images.ids[row] for row in batch_rows]
            vectors[part] = finite_embeddings(model, batch.pixels, ids)
        digests += batch.pixel_digests.tobytes()
        good_rows += batch_rows
        problems |= batch.problems
        advance(len(batch.rows) + len(batch.problems))
    return vectors[: len(good_rows)], good_rows, digests, problems


def has_begun(folder: Path) -> bool:
    """Return whether an unfinished single pass has left shards in a folder."""
    return any(folder.glob("checked-*.json"))


def _takes_single_pass(images: ImageSet, frame: Frame, folder: Path) -> bool:
    """Return whether the images are to be checked while they are embedded, see ``StoreRun``.

    Not if they are kept in memory after a check, if an earlier check is still valid, or if the
    folder holds a store that was made after one.
    """
    if has_begun(folder):
        return True
    if (folder.is_dir() and any(folder.iterdir())) or fits_in_memory(len(images), frame):
        return False
    stamp = source_stamp(images)
    return stamp is not None and find_checked_set(images, frame, stamp) is None


# Embeddings that are kept on disk for the next run, and when they may be used again.


def cached_embeddings(
    model: Embedder,
    pixels: PixelBatches,
    folder: Path,
    *,
    flip: bool = False,
    label: str = "embedding",
    ranks: Ranks = ALONE,
) -> Embeddings:
    """Return the embeddings in ``folder``, or make them if they do not fit this model and pixels.

    The pixels are read again if the model takes them in another form. An unfinished store is
    completed; a damaged one, or one of another model, is made again. If several runs want the same
    store, one makes it and the others wait. A single process that cannot write there says so,
    takes the rows that are written already, and keeps the others in memory.
    """
    if isinstance(model, StoredEmbeddings):
        model.note_surplus(pixels.images)
        model.require_all(pixels.images)
    plan = plan_store(model, pixels, flip=flip)
    run = StoreRun(model, pixels.images, pixels, folder, plan, ranks, label)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock") if ranks.first else nullcontext()
        with lock:
            if ranks.first and not _is_usable(run):
                shutil.rmtree(folder, ignore_errors=True)
            ranks.barrier()
            if ranks.ask_first(lambda: is_finished(folder, plan)):
                return open_embeddings(folder, verify=False)
            return replace(run, pixels=_fitting(model, pixels, ranks)).run()
    except OSError as error:  # for example a full disk
        if ranks.world > 1:
            raise
        why = f"{folder} cannot be written ({error.strerror or error})"
        return replace(run, pixels=_fitting(model, pixels, ranks)).rest_in_memory(why)


def embeddings_folder(
    cache: Path, model: Embedder, pixels: PixelBatches, *, flip: bool = False
) -> Path:
    """Return where runs that share a cache keep a model's embeddings of a training set."""
    view = "-flipped" if flip else ""
    return cache / f"embeddings-{model.fingerprint[:12]}-{pixels.digest[:12]}{view}"


def _fitting(model: Embedder, pixels: PixelBatches, ranks: Ranks) -> PixelBatches:
    """Return the pixels in the form that the model takes; read them again if it is another."""
    if isinstance(model, StoredEmbeddings):
        return pixels
    frame = cast(ImageEmbedder, model).input.frame
    return pixels if pixels.frame == frame else read_pixels(pixels.images, frame, ranks=ranks)


def _is_usable(run: StoreRun) -> bool:
    """Return whether a cached store is complete and undamaged, or can be completed."""
    with suppress(UserError, OSError):
        if is_finished(run.folder, run.plan):
            open_embeddings(run.folder)
        else:
            run.require_own_folder()
        return True
    return False

"""One batch of pixels through a model, as all ways of embedding a set do it."""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from unibct import progress
from unibct.data.augmentation import mirrored
from unibct.data.checked_set import (
    DIGEST_BYTES,
    CheckedSet,
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
    SHARD_ROWS,
    STORE_DESCRIPTION,
    Embeddings,
    Shard,
    file_digest,
    labels_file,
    open_embeddings,
    read_description,
    require_shard_rows,
    shard_from_json,
    shard_is_whole,
    stored_classes,
    vectors_file,
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


# What decides the files of a store that is being made, and which of its shards are done.
#
# Next to each finished shard a note ``shard-000000.json`` holds the key of the plan and the shard's
# description. A run that starts again keeps the shards whose notes have its key. The notes are
# removed when the store is complete.

_Content = TypeVar("_Content")

_NOTES = "shard-*.json"
_FEWEST_SHARD_ROWS = 1024
_FILES_OF_A_STORE = re.compile(
    r"(vectors|labels|ids|shard|checked)-\d{6}\.(npy|txt|json)"
    r"|(training_)?classes\.txt|\..*\.tmp"
)


@dataclass(frozen=True)
class StorePlan:
    """The store to make: a model's embeddings of some pixels, and how they are stored.

    Attributes:
        fingerprint: the model's fingerprint.
        pixel_digest: changes with any of the pixels, or of the stored embeddings.
        images: how many images there are.
        flip: whether the mirror images are embedded.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file.
    """

    fingerprint: str
    pixel_digest: str
    images: int
    flip: bool
    dtype: str
    shard_rows: int

    def __post_init__(self) -> None:
        """Refuse files without rows."""
        require_shard_rows(self.shard_rows)

    @property
    def key(self) -> str:
        """A digest of everything that decides the store's files."""
        parts = (
            self.fingerprint,
            self.pixel_digest,
            str(self.flip),
            self.dtype,
            str(self.shard_rows),
        )
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
    """Return the plan of a store of a model's embeddings.

    Args:
        model: the model.
        pixels: the images' pixels.
        flip: embed the mirror images.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file. The default gives about 64 files or more, so that any usual
            number of processes can divide them.
    """
    images = len(pixels.images)
    rows = shard_rows or default_shard_rows(images)
    digest = pixels.digest
    if isinstance(model, StoredEmbeddings):  # their fingerprint may be a name that stays
        digest += content_fingerprint(model.embeddings)
    return StorePlan(model.fingerprint, digest, images, flip, dtype, rows)


def default_shard_rows(images: int) -> int:
    """Return the rows in a file of a store with this many images, see ``plan_store``."""
    return min(SHARD_ROWS, max(_FEWEST_SHARD_ROWS, -(-images // 64)))


def is_finished(folder: Path, plan: StorePlan) -> bool:
    """Return whether a folder is the complete store of this plan."""
    return (folder / STORE_DESCRIPTION).is_file() and read_description(folder).source == plan.key


def require_new_or_unfinished(folder: Path, plan: StorePlan) -> None:
    """Raise an error if a folder holds anything but an unfinished store of this plan."""
    require_files_of_a_store(folder)
    require_own_notes(folder, (_read_note(path)[0] for path in folder.glob(_NOTES)), plan)


def require_own_notes(folder: Path, keys: Iterable[str], plan: StorePlan) -> None:
    """Raise an error if the note of a shard in a folder has the key of another plan."""
    if any(key != plan.key for key in keys):
        raise UserError(
            f"{folder} holds unfinished embeddings by another model or of other images; "
            "choose another --out or remove it"
        )


def require_files_of_a_store(folder: Path) -> None:
    """Raise an error if a folder holds anything but files of an unfinished store."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if not all(_FILES_OF_A_STORE.fullmatch(name) for name in names):
        require_absent(folder)


def shard_is_done(folder: Path, number: int, plan: StorePlan) -> bool:
    """Return whether an earlier run with the same plan finished a shard."""
    path = _note_path(folder, number)
    if not path.is_file():
        return False
    key, shard = _read_note(path)
    return key == plan.key and shard_is_whole(folder, shard)


def write_shard_note(folder: Path, number: int, plan: StorePlan, shard: Shard) -> None:
    """Note that a shard is finished."""
    write_json(_note_path(folder, number), {"key": plan.key, "shard": asdict(shard)})


def noted_shards(folder: Path, plan: StorePlan) -> list[Shard]:
    """Return all shards of a plan, from their notes."""
    numbers = range(len(plan.shard_ranges))
    return [_read_note(_note_path(folder, number))[1] for number in numbers]


def remove_shard_notes(folder: Path) -> None:
    """Remove all notes; a complete store does not need them."""
    for path in folder.glob(_NOTES):
        path.unlink()


def _note_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06}.json"


def _read_note(path: Path) -> tuple[str, Shard]:
    """Return a note's key and shard."""
    return read_note(path, lambda note: (note["key"], shard_from_json(note["shard"])))


def read_note(path: Path, understood: Callable[[Any], _Content]) -> _Content:
    """Return what the note of a shard says.

    Args:
        path: of the note.
        understood: makes it from the content of the file.
    """
    try:
        return understood(read_json(path))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} cannot be understood; remove {path.parent}") from error


# Embedding a set that is too large for memory and was not checked before, in one pass.
#
# Whether an image is readable, and what its pixels are, shows only when it is decoded. So each
# shard is embedded and checked at once, and a note ``checked-000000.json`` next to it has the
# digests of its pixels, its unreadable images, and the stamp of its files. When all shards are
# done, the notes together give the digest of the whole set. A run that starts again keeps the
# shards whose files have not changed.

_SINGLE_PASS_NOTES = "checked-*.json"


@dataclass(frozen=True)
class _Note:
    """What is known of a finished shard.

    Attributes:
        key: of the pass that made it.
        stamp: of the files that it was made from.
        shard: the shard; its first row is counted as if all images were readable.
        pixel_digests: (readable images, 16).
        problems: for each row of the set whose image is unreadable, what is wrong with it.
    """

    key: str
    stamp: str | None
    shard: Shard
    pixel_digests: NDArray[np.uint8]
    problems: dict[int, str]

    def write(self, path: Path) -> None:
        """Write the note."""
        content = {
            "key": self.key,
            "stamp": self.stamp,
            "shard": asdict(self.shard),
            "pixel_digests": self.pixel_digests.tobytes().hex(),
            "problems": list(self.problems.items()),
        }
        write_json(path, content)


class SinglePass:
    """A store of a model's embeddings that is made in one pass over the images.

    Attributes:
        model: the model, the same in every rank.
        images: all images of the set, the same in every rank.
        folder: a new folder, or what a killed run left there.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file, if all of its images are readable.
        ranks: the processes that divide the shards.
    """

    def __init__(
        self,
        model: ImageEmbedder,
        images: ImageSet,
        folder: Path,
        *,
        dtype: str,
        shard_rows: int | None,
        ranks: Ranks,
    ) -> None:
        self.model = model
        self.images = images
        self.folder = folder
        self.dtype = dtype
        self.shard_rows = shard_rows
        self.ranks = ranks
        rows = shard_rows or default_shard_rows(len(images))
        # Of all images, and of their names instead of their pixels, which are not known yet.
        unread = f"unread {images.digest}"
        self._plan = StorePlan(model.fingerprint, unread, len(images), False, dtype, rows)

    def run(self) -> Embeddings:
        """Embed every image, and complete the store.

        Unreadable images are an error in the end, unless the set leaves them out; the next run
        with a set that does has nothing left to embed.
        """
        stamp = source_stamp(self.images) if self.ranks.first else None
        self.ranks.ask_first(self._require_own_files)
        self._embed_own_shards()
        self.ranks.barrier()
        self.ranks.ask_first(lambda: self._complete(stamp))
        return open_embeddings(self.folder, verify=False)

    def _require_own_files(self) -> None:
        """Refuse a folder that holds anything but the shards of this pass."""
        keys = (_single_pass_read_note(path).key for path in self.folder.glob(_SINGLE_PASS_NOTES))
        require_own_notes(self.folder, keys, self._plan)
        if has_begun(self.folder):  # a run may have been killed after it wrote the description
            (self.folder / STORE_DESCRIPTION).unlink(missing_ok=True)
        require_files_of_a_store(self.folder)

    def _embed_own_shards(self) -> None:
        shard_ranges = self._plan.shard_ranges
        own_shards = list(enumerate(shard_ranges))[self.ranks.rank :: self.ranks.world]
        stamps = {
            number: source_stamp(self.images, self.images.ids[rows.start : rows.stop])
            for number, rows in own_shards
        }
        remaining = [(n, rows) for n, rows in own_shards if not self._is_done(n, stamps[n])]
        total = sum(len(rows) for _, rows in own_shards)
        done = total - sum(len(rows) for _, rows in remaining)
        task = progress.task("embedding", total, done=done, weight=EMBEDDING_WEIGHT)
        with task as advance:
            for number, rows in remaining:
                self._embed_shard(number, rows, stamps[number], advance)

    def _is_done(self, number: int, stamp: str | None) -> bool:
        """Return whether an earlier run finished a shard, and its files are still the same."""
        path = self._note_path(number)
        if not path.is_file():
            return False
        note = _single_pass_read_note(path)
        return note.stamp == stamp and shard_is_whole(self.folder, note.shard)

    def _embed_shard(self, number: int, rows: range, stamp: str | None, advance: Advance) -> None:
        vectors = np.empty((len(rows), self.model.dim), dtype=np.float32)
        digests = np.empty((len(rows), DIGEST_BYTES), dtype=np.uint8)
        good_rows: list[int] = []
        problems: dict[int, str] = {}
        for batch in checked_batches(self.images, rows, self.model.input.frame, NETWORK_BATCH):
            batch_rows: list[int] = batch.rows.tolist()
            part = slice(len(good_rows), len(good_rows) + len(batch_rows))
            if batch_rows:
                ids = [self.images.ids[row] for row in batch_rows]
                vectors[part] = finite_embeddings(self.model, batch.pixels, ids)
            digests[part] = batch.pixel_digests
            good_rows += batch_rows
            problems |= batch.problems
            advance(len(batch.rows) + len(batch.problems))
        shard = write_shard(
            self.folder,
            number,
            rows.start,
            vectors[: len(good_rows)],
            self.images.labels[good_rows],
            [self.images.ids[row] for row in good_rows],
            self.dtype,
        )
        note = _Note(self._plan.key, stamp, shard, digests[: len(good_rows)], problems)
        note.write(self._note_path(number))

    def _complete(self, stamp: str | None) -> None:
        """Put the notes of all shards together, and write the store's description."""
        numbers = range(len(self._plan.shard_ranges))
        notes = [_single_pass_read_note(self._note_path(number)) for number in numbers]
        checked = self._checked(notes)
        save_checked_set(self.images, self.model.input.frame, checked, stamp)
        readable = checked.readable(self.images)
        plan = replace(
            self._plan,
            pixel_digest=checked.digest,
            images=len(readable),
            shard_rows=self.shard_rows or default_shard_rows(len(readable)),
        )
        write_description(
            self.folder,
            self._final_shards([note.shard for note in notes], readable),
            dim=self.model.dim,
            dtype=self.dtype,
            fingerprint=self._plan.fingerprint,
            classes=stored_classes(readable, self.model),
            source=plan.key,
        )
        sweep(self.folder)
        for path in self.folder.glob(_SINGLE_PASS_NOTES):
            path.unlink()

    def _checked(self, notes: Sequence[_Note]) -> CheckedSet:
        problems = {row: text for note in notes for row, text in note.problems.items()}
        digests = np.zeros((len(self.images), DIGEST_BYTES), dtype=np.uint8)
        is_readable = np.ones(len(self.images), dtype=np.bool_)
        is_readable[list(problems)] = False
        digests[is_readable] = np.concatenate([note.pixel_digests for note in notes])
        return checked_set(self.images, digests, problems)

    def _final_shards(self, shards: Sequence[Shard], readable: ImageSet) -> list[Shard]:
        """Return the shards with their first rows among the readable images.

        If a class has lost all of its images, the labels of the others are written again.
        """
        firsts = [0, *accumulate(shard.rows for shard in shards)]
        final: list[Shard] = []
        for number, shard in enumerate(shards):
            first, files = firsts[number], dict(shard.files)
            if readable.class_names != self.images.class_names:
                path = self.folder / labels_file(number)
                write_array(path, readable.labels[first : first + shard.rows])
                files[path.name] = file_digest(path)
            final.append(Shard(first, shard.rows, files))
        return final

    def _note_path(self, number: int) -> Path:
        return self.folder / f"checked-{number:06}.json"


def has_begun(folder: Path) -> bool:
    """Return whether an unfinished single pass has left shards in a folder."""
    return any(folder.glob(_SINGLE_PASS_NOTES))


def _single_pass_read_note(path: Path) -> _Note:
    def understood(note: Any) -> _Note:
        digests = np.frombuffer(bytes.fromhex(note["pixel_digests"]), dtype=np.uint8)
        return _Note(
            note["key"],
            note["stamp"],
            shard_from_json(note["shard"]),
            digests.reshape(-1, DIGEST_BYTES),
            {int(row): str(text) for row, text in note["problems"]},
        )

    return read_note(path, understood)


# Images through a model: embeddings in memory, or into a store by one or several processes.


def embed_images(model: Embedder, images: ImageSet) -> Embeddings:
    """Embed every image of a set; raise an error for unreadable ones, or skip them.

    Stored embeddings are looked up by id; ``skip_bad`` then skips images that have none.
    """
    if isinstance(model, StoredEmbeddings):
        return model.of(_stored_images(model, images))
    model = cast(ImageEmbedder, model)
    pixels = read_pixels(images, model.input.frame)
    return embed_pixel_batches(model, pixels)


def embed_pixel_batches(
    model: Embedder, pixels: PixelBatches, *, flip: bool = False, label: str = "embedding"
) -> Embeddings:
    """Embed images whose pixels are read already; with ``flip``, embed their mirror images."""
    if isinstance(model, StoredEmbeddings):
        return model.of(pixels.images)
    images = pixels.images
    with progress.task(label, len(images), weight=EMBEDDING_WEIGHT) as advance:
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
    dtype: str = "float32",
    shard_rows: int | None = None,
    ranks: Ranks = ALONE,
) -> Embeddings:
    """Embed every image of a set into a folder, shard by shard. Each image is decoded once.

    A run that was killed continues where it stopped when it is started again, even with another
    number of processes. No process holds more than one shard in memory.

    Args:
        model: the model, the same in every rank.
        images: the images, the same in every rank.
        folder: a new folder, or what a killed run with the same arguments left there.
        dtype: ``float32`` or ``float16``, on disk.
        shard_rows: rows in a file; by default few enough for about 64 files or more.
        ranks: the processes that divide the shards.

    Returns:
        The opened folder, with the rows of all ranks.
    """
    folder = Path(folder)
    if isinstance(model, StoredEmbeddings):
        known = _stored_images(model, images)
        pixels = unread_pixels(known, Frame(1, 1, 1))
        plan = plan_store(model, pixels, dtype=dtype, shard_rows=shard_rows)
        return embed_to_store(model, pixels, folder, plan, ranks=ranks)
    model = cast(ImageEmbedder, model)
    frame = model.input.frame
    if ranks.ask_first(lambda: _takes_single_pass(images, frame, folder)):
        single_pass = SinglePass(
            model, images, folder, dtype=dtype, shard_rows=shard_rows, ranks=ranks
        )
        return single_pass.run()
    pixels = read_pixels(images, frame, ranks=ranks)
    plan = plan_store(model, pixels, dtype=dtype, shard_rows=shard_rows)
    return embed_to_store(model, pixels, folder, plan, ranks=ranks)


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

    Returns:
        The opened folder, with the rows of all ranks.
    """
    if ranks.ask_first(lambda: is_finished(folder, plan)):
        return open_embeddings(folder)
    ranks.ask_first(lambda: require_new_or_unfinished(folder, plan))
    _embed_own_shards(model, pixels, folder, plan, ranks=ranks, label=label)
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
) -> Embeddings:
    """Take the shards that ``embed_to_store`` has finished, and embed the other images in memory.

    Args:
        model: the model.
        pixels: the images' pixels.
        folder: where the store was to be made.
        plan: what it was to hold.
        why: the reason why it cannot be completed, for a note.
        label: the name of the progress bar.
    """
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
    with progress.task(label, total, done=done, weight=EMBEDDING_WEIGHT) as advance:
        for number, rows in remaining_shards.items():
            part = slice(rows.start, rows.stop)
            vectors = _vectors(model, pixels, rows, flip=plan.flip, advance=advance)
            labels, ids = images.labels[part], images.ids[part]
            shard = write_shard(folder, number, rows.start, vectors, labels, ids, plan.dtype)
            write_shard_note(folder, number, plan, shard)


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
        ranks: the run's processes.
    """
    if isinstance(model, StoredEmbeddings):
        model.note_surplus(pixels.images)
        model.require_all(pixels.images)
    plan = plan_store(model, pixels, flip=flip)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock") if ranks.first else nullcontext()
        with lock:
            if ranks.first and not _is_usable(folder, plan):
                shutil.rmtree(folder, ignore_errors=True)
            ranks.barrier()
            if ranks.ask_first(lambda: is_finished(folder, plan)):
                return open_embeddings(folder, verify=False)
            pixels = _fitting(model, pixels, ranks)
            return embed_to_store(model, pixels, folder, plan, ranks=ranks, label=label)
    except OSError as error:  # for example a full disk
        if ranks.world > 1:
            raise
        why = f"{folder} cannot be written ({error.strerror or error})"
        pixels = _fitting(model, pixels, ranks)
        return embed_rest_in_memory(model, pixels, folder, plan, why=why, label=label)


def embeddings_folder(
    cache: Path, model: Embedder, pixels: PixelBatches, *, flip: bool = False
) -> Path:
    """Return where runs that share a cache keep a model's embeddings of a training set."""
    view = "-flipped" if flip else ""
    return cache / f"embeddings-{model.fingerprint[:12]}-{pixels.digest[:12]}{view}"


def _fitting(model: Embedder, pixels: PixelBatches, ranks: Ranks) -> PixelBatches:
    """Return the pixels in the size that the model takes; read them again if it is another."""
    if isinstance(model, StoredEmbeddings):
        return pixels
    frame = cast(ImageEmbedder, model).input.frame
    if pixels.frame == frame:
        return pixels
    return read_pixels(pixels.images, frame, ranks=ranks)


def _is_usable(folder: Path, plan: StorePlan) -> bool:
    """Return whether a cached store is complete and undamaged, or can be completed."""
    with suppress(UserError, OSError):
        if is_finished(folder, plan):
            open_embeddings(folder)
        else:
            require_new_or_unfinished(folder, plan)
        return True
    return False

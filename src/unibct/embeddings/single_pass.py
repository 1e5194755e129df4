"""Embedding a set that is too large for memory and was not checked before, in one pass.

Whether an image is readable, and what its pixels are, shows only when it is decoded. So each shard
is embedded and checked at once, and a note ``checked-000000.json`` next to it has the digests of
its pixels, its unreadable images, and the stamp of its files. When all shards are done, the notes
together give the digest of the whole set. A run that starts again keeps the shards whose files
have not changed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.checked_set import CheckedSet, save_checked_set, source_stamp
from unibct.data.image_set import ImageSet
from unibct.data.scan import DIGEST_BYTES, checked_batches, checked_set
from unibct.distributed.ranks import Ranks
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.layout import (
    DESCRIPTION_FILE,
    Shard,
    file_digest,
    labels_file,
    shard_from_json,
    shard_is_whole,
)
from unibct.embeddings.network_pass import EMBEDDING_WEIGHT, NETWORK_BATCH, finite_embeddings
from unibct.embeddings.store_plan import (
    StorePlan,
    default_shard_rows,
    read_note,
    require_files_of_a_store,
    require_own_notes,
)
from unibct.embeddings.writing import (
    stored_classes,
    write_array,
    write_description,
    write_shard,
)
from unibct.files import sweep, write_json
from unibct.models.embedder import ImageEmbedder
from unibct.progress import Advance, Progress, Silent

_NOTES = "checked-*.json"


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
        progress: reports the images that this process embeds.
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
        progress: Progress | None,
    ) -> None:
        self.model = model
        self.images = images
        self.folder = folder
        self.dtype = dtype
        self.shard_rows = shard_rows
        self.ranks = ranks
        self.progress = progress or Silent()
        rows = shard_rows or default_shard_rows(len(images))
        # Of all images, and of their names instead of their pixels, which are not known yet.
        unread = f"unread {images.digest}"
        self._plan = StorePlan(model.fingerprint, unread, len(images), False, dtype, rows)

    def run(self, *, skip_bad: bool) -> Embeddings:
        """Embed every image, and complete the store.

        Args:
            skip_bad: leave out unreadable images; without it they are an error in the end, and
                the next run with ``skip_bad`` has nothing left to embed.
        """
        stamp = source_stamp(self.images) if self.ranks.first else None
        self.ranks.ask_first(self._require_own_files)
        self._embed_own_shards()
        self.ranks.barrier()
        self.ranks.ask_first(lambda: self._complete(stamp, skip_bad=skip_bad))
        return open_embeddings(self.folder, verify=False)

    def _require_own_files(self) -> None:
        """Refuse a folder that holds anything but the shards of this pass."""
        keys = (_read_note(path).key for path in self.folder.glob(_NOTES))
        require_own_notes(self.folder, keys, self._plan)
        if has_begun(self.folder):  # a run may have been killed after it wrote the description
            (self.folder / DESCRIPTION_FILE).unlink(missing_ok=True)
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
        task = self.progress.task("embedding", total, done=done, weight=EMBEDDING_WEIGHT)
        with task as advance:
            for number, rows in remaining:
                self._embed_shard(number, rows, stamps[number], advance)

    def _is_done(self, number: int, stamp: str | None) -> bool:
        """Return whether an earlier run finished a shard, and its files are still the same."""
        path = self._note_path(number)
        if not path.is_file():
            return False
        note = _read_note(path)
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

    def _complete(self, stamp: str | None, *, skip_bad: bool) -> None:
        """Put the notes of all shards together, and write the store's description."""
        numbers = range(len(self._plan.shard_ranges))
        notes = [_read_note(self._note_path(number)) for number in numbers]
        checked = self._checked(notes)
        save_checked_set(self.images, self.model.input.frame, checked, stamp)
        readable = checked.readable(self.images, skip_bad=skip_bad, progress=self.progress)
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
        for path in self.folder.glob(_NOTES):
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
    return any(folder.glob(_NOTES))


def _read_note(path: Path) -> _Note:
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

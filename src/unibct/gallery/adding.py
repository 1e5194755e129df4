"""Adding rows: idempotent by id, and durable when a batch is acknowledged."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.data.checked_set import NoReadableImageError
from unibct.data.decoding import Pixels, UnreadableImageError, decode, fit, reading_threads
from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.gallery.gallery_folder import GalleryFolder
from unibct.gallery.known_queries import RowChangeCheck, keep_queries
from unibct.gallery.rows import (
    IMAGE_KEY,
    GalleryRows,
    Metadata,
    require_id_list,
    sealed_rows,
    user_metadata,
)
from unibct.gallery.sources import Source, note_left_out, vector_fault
from unibct.gallery.state import ADD, PASSED, REMOVE, RowKind
from unibct.gallery.steps import complete_removal, end_interrupted_steps, end_step, take_back
from unibct.models.embedder import Embedder, ImageEmbedder

BATCH = 1024  # rows of a batch; each is durable when the next begins
_SAME_VECTOR = 1e-3  # largest difference of two embeddings of the same image


@dataclass(frozen=True)
class Added:
    """What was added."""

    added: int  # rows that are new
    present: int  # rows that were there already, with the same content
    skipped: int = 0  # unreadable images that were left out


def add_rows(
    folder: GalleryFolder,
    source: Source,
    *,
    known: int = 0,
    keep_images: bool = True,
) -> Added:
    """Add the rows of a source that are not there yet.

    Images are embedded by the searching model; embeddings are by a model that the gallery knows. Up
    to ``known`` of the rows are kept as known queries, with their images or without.
    """
    with folder.writing():
        end_interrupted_steps(folder)
        kind = _kind(folder, source)
        gate = RowChangeCheck(folder)
        state = folder.save(folder.state.begun(ADD, source=source.name))
        step = state.next_number - 1
        adder = _RowAdder(folder, kind, step, gate)
        try:
            adder.add_all(source)
        except BaseException:
            if not adder.has_written:  # there is no row with the number of this step
                folder.save(folder.state.without_step(step))
            raise
        refusal = gate.refusal(f"adding {source.name}")
        if refusal is not None:
            folder.engine.undo(step)
            folder.save(folder.state.changed_step(step, done=True, undone=True))
            raise refusal
        skipped = set(adder.skipped)
        model = None if source.images is None else folder.model(kind)
        keep_queries(folder, source.without(skipped), known, images=keep_images, model=model)
        end_step(folder, step, added=adder.added, present=adder.present)
    return Added(adder.added, adder.present, len(skipped))


def _kind(folder: GalleryFolder, source: Source) -> str:
    """Return the kind of the rows to come; a model that the gallery does not know is refused."""
    state = folder.state
    if source.embeddings is None:
        folder.model(state.standing.searching)  # says so if there is no model
        return state.standing.searching
    kind = source.embeddings.fingerprint
    row_kind = state.kinds.get(kind)
    if row_kind is None:
        known = ", ".join(f"{m.name} ({f})" for f, m in state.kinds.items())
        raise UserError(
            f"{source.name} was made by model {kind}, which this gallery does not know; it knows "
            f"{known}. If one of them made these vectors, say so (made_by)"
        )
    require_made_by(source, row_kind)
    if not state.searchable(kind):
        raise UserError(
            f"{source.name} was made by {row_kind.name}, whose rows {state.searching.name} may not "
            f"search: nobody would find them. Add their images, or embeddings by "
            f"{state.searching.name} ({state.standing.searching})"
        )
    return kind


class _RowAdder:
    """Adds rows batch by batch, for one step."""

    def __init__(self, folder: GalleryFolder, kind: str, step: int, gate: RowChangeCheck) -> None:
        self.added = 0  # rows that are new
        self.present = 0  # rows that were there already
        self.skipped: list[str] = []  # ids of unreadable images that were left out
        self.has_written = False  # rows of this step may be in the engine
        self._folder = folder
        self._kind = kind
        self._step = step
        self._gate = gate

    def add_all(self, source: Source) -> None:
        """Add those rows of a source that are not there."""
        with progress.task("adding", len(source), "rows") as advance:
            for part in source.batches(BATCH):
                self._add_batch(part)
                advance(len(part))
        if self.skipped and len(self.skipped) == len(source):
            raise NoReadableImageError(source.name, len(source))
        note_left_out(source.name, self.skipped)

    def _add_batch(self, part: Source) -> None:
        """Add those rows of a batch that are not there."""
        folder, kind = self._folder, self._kind
        wants_vectors = part.embeddings is not None
        stored = {
            other: folder.engine.read(other, part.ids, vectors=wants_vectors and other == kind)
            for other in folder.state.kinds
        }
        digests: dict[str, str] = {}
        if part.images is not None:
            known = {row_id for rows in stored.values() for row_id in rows.ids}
            read, digests = read_once(part, folder.model(kind), known)
            part = self._without_bad(replace(part, images=read), list(digests))
        absent, unsearchable = self._absent(part, stored, digests)
        if not len(absent):
            return
        model = None if absent.images is None else folder.model(kind)
        readable, vectors = usable_vectors(absent, model)
        absent = self._without_bad(absent, readable.ids)
        if not len(absent):
            return
        metadata = [
            with_digest(absent.metadata[i], digests.get(absent.ids[i])) for i in range(len(absent))
        ]
        sealed = sealed_rows(kind, absent.ids, absent.labels, metadata, vectors, self._step)
        self._gate.expect(kind, sealed)
        self.has_written = True
        folder.engine.write(kind, sealed, supersedes=unsearchable)
        self.added += len(absent)

    def _absent(
        self, part: Source, stored: Mapping[str, GalleryRows], digests: dict[str, str]
    ) -> tuple[Source, list[str]]:
        """Return the rows that are not there, and kinds that have some and cannot be searched.

        ``stored`` is what each kind has of the rows.
        """
        folder, kind = self._folder, self._kind
        present: set[str] = set()
        unsearchable: list[str] = []  # after a rollback
        for other, there in stored.items():
            if part.skip_bad:
                there = there.only(set(part.ids))
                damaged = _damaged(part, there, digests)
                part = self._without_bad(part, [i for i in part.ids if i not in damaged])
                there = there.only(set(part.ids))
            _require_same(part, there, digests, by_vector=other == kind)
            if other == kind or folder.state.searchable(other):
                present.update(there.ids)
            elif len(there):
                unsearchable.append(other)
        self.present += len(present)
        return part.without(present), unsearchable

    def _without_bad(self, part: Source, readable: Sequence[str]) -> Source:
        """Return the rows whose images can be read, and note the others."""
        if len(readable) == len(part):
            return part
        good = set(readable)
        self.skipped += [row_id for row_id in part.ids if row_id not in good]
        return part.only(good)


class _ReadOnce:
    """Reads the file of each image of a batch once: for its digest, and the pixels of new rows."""

    def __init__(self, images: ImageSet, model: ImageEmbedder, known: Collection[str]) -> None:
        self._images, self._frame, self._known = images, model.input.frame, known
        self._decodes_its_files = getattr(images.read, "encoded", None) is images.encoded
        self._pixels: dict[str, Pixels | UnreadableImageError] = {}

    def __call__(self, image_id: str) -> Pixels:
        """Return the pixels of an image, those of a new row in the form that the model takes."""
        pixels = self._pixels.get(image_id)
        if isinstance(pixels, UnreadableImageError):
            raise pixels
        return self._images.read(image_id) if pixels is None else pixels

    def digest(self, image_id: str) -> str | UnreadableImageError:
        """Read the file, and keep the pixels of a new row; return what tells it from any other."""
        images, pixels = self._images, None
        try:
            if images.encoded is None:
                pixels = images.read(image_id)
                data = np.ascontiguousarray(pixels).tobytes()
            else:
                data = images.encoded(image_id)
        except UnreadableImageError as error:
            return error
        if image_id not in self._known:
            try:
                if pixels is None:
                    pixels = decode(data) if self._decodes_its_files else images.read(image_id)
                self._pixels[image_id] = fit(pixels, *self._frame)
            except UnreadableImageError as error:
                self._pixels[image_id] = error
        return hashlib.blake2b(data, digest_size=8).hexdigest()


def read_once(
    source: Source, model: ImageEmbedder, known: Collection[str] = ()
) -> tuple[ImageSet, dict[str, str]]:
    """Return images that are read already, and id -> digest of those whose file can be read.

    The pixels of rows that are known by their id are not kept: they are read again if need be.
    """
    assert source.images is not None
    reader, digests = _ReadOnce(source.images, model, known), dict[str, str]()
    with ThreadPoolExecutor(reading_threads()) as pool:
        for image_id, digest in zip(source.ids, pool.map(reader.digest, source.ids), strict=True):
            if isinstance(digest, str):
                digests[image_id] = digest
            elif not source.skip_bad:
                raise _unreadable(source.images, image_id, digest) from digest
    return replace(source.images, read=reader, encoded=None), digests


def _require_readable(source: Source, row_id: str) -> None:
    """Refuse an image that has another digest because it was damaged."""
    assert source.images is not None
    try:
        source.images.read(row_id)
    except UnreadableImageError as error:
        raise _unreadable(source.images, row_id, error) from error


def _unreadable(images: ImageSet, image_id: str, error: UnreadableImageError) -> UserError:
    return UserError(
        f"{images.name}: {image_id} cannot be read ({error}); repair it, or leave it out "
        "with skip_bad"
    )


def with_digest(metadata: Metadata, digest: str | None) -> Metadata:
    """Return metadata with the digest of the row's image."""
    return metadata if digest is None else metadata | {IMAGE_KEY: digest}


def _damaged(part: Source, there: GalleryRows, digests: dict[str, str]) -> set[str]:
    """Return the ids of rows that are there, whose image has changed and cannot be read."""
    if part.images is None:
        return set()
    stored = zip(there.ids, there.metadata, strict=True)
    changed = {i for i, metadata in stored if metadata.get(IMAGE_KEY, digests[i]) != digests[i]}
    return changed - set(part.only(changed).readable().ids)


def _require_same(
    part: Source, there: GalleryRows, digests: dict[str, str], *, by_vector: bool
) -> None:
    """Refuse rows whose id is there with other content."""
    position = {row_id: place for place, row_id in enumerate(part.ids)}
    given = None
    for i, row_id in enumerate(there.ids):
        place = position[row_id]
        difference = ""
        if there.labels[i] != part.labels[place]:
            difference = f"the label {there.labels[i]!r}, not {part.labels[place]!r}"
        elif user_metadata(there.metadata[i]) != part.metadata[place]:
            difference = f"other metadata: {user_metadata(there.metadata[i])}"
        elif digests.get(row_id, there.metadata[i].get(IMAGE_KEY)) != there.metadata[i].get(
            IMAGE_KEY, digests.get(row_id)
        ):
            _require_readable(part, row_id)
            difference = "another image"
        elif by_vector and part.embeddings is not None:
            given = given if given is not None else np.asarray(part.embeddings.vectors)
            if np.abs(given[place] - there.vectors[i]).max() > _SAME_VECTOR:
                difference = "another vector"
        if difference:
            raise UserError(
                f"{part.name}: the id {row_id!r} is in the gallery with {difference}; remove it "
                "first (unibct gallery remove), or give the new row another id"
            )


def require_made_by(source: Source, row_kind: RowKind) -> None:
    """Refuse embeddings that another model made."""
    assert source.embeddings is not None
    made_by, dim = source.embeddings.fingerprint, source.embeddings.vectors.shape[1]
    if made_by != row_kind.fingerprint:
        raise UserError(
            f"{source.name} was made by model {made_by}; these rows need embeddings by "
            f"{row_kind.name} ({row_kind.fingerprint})"
        )
    if dim != row_kind.dim:
        raise UserError(
            f"{source.name} has vectors of dimension {dim}; those of {row_kind.name} have "
            f"{row_kind.dim}"
        )


def require_same_images(
    source: Source, digests: dict[str, str], stored: Sequence[Metadata]
) -> None:
    """Refuse images that are not those from which the rows with their ids were made.

    ``digests`` is id -> digest of the image, empty if the source has embeddings; ``stored`` is the
    metadata of the row of each id.
    """
    for row_id, metadata in zip(source.ids, stored, strict=True):
        digest = digests.get(row_id)
        if digest is not None and metadata.get(IMAGE_KEY, digest) != digest:
            _require_readable(source, row_id)
            raise UserError(
                f"{source.name}: {row_id!r} is another image than the one that was added; give "
                "the same images"
            )


def usable_vectors(source: Source, model: Embedder | None) -> tuple[Source, NDArray[np.float32]]:
    """Return the rows whose images can be read, and their vectors: (rows, dim).

    Vectors that no search can find are refused, and unreadable images if the set says so.
    """
    with progress.silenced():
        if source.skip_bad:
            assert model is not None
            source, vectors = source.readable_vectors(model)
        else:
            vectors = source.vectors(model)
    require_usable(vectors, source)
    return source, vectors


def require_usable(vectors: NDArray[np.float32], source: Source) -> None:
    """Refuse vectors that no search can find."""
    fault = vector_fault(vectors, source.ids)
    if fault:
        raise UserError(f"{source.name}: {fault}; nothing of this batch was written")


# Removing rows for good: from every kind, and from what is kept beside them.

_BATCH = 1024


def remove_rows(folder: GalleryFolder, ids: Sequence[str]) -> int:
    """Remove rows with all of their vectors, and return how many they were.

    A rollback does not bring them back. If too many known queries of other rows no longer find
    their mates, nothing is removed. The same removal again, after it was interrupted, is completed.
    """
    require_id_list(ids)
    ids = list(dict.fromkeys(ids))
    digest = hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()
    with folder.writing():
        interrupted = folder.state.interrupted(REMOVE)
        end_interrupted_steps(folder)
        passed = {} if interrupted is None else interrupted.details
        if passed.get(PASSED) and passed.get("ids") == digest:
            return len(ids)
        kinds = list(folder.engine.kinds())
        _require_known(folder, kinds, ids)
        gate = RowChangeCheck(folder)
        for kind in kinds:
            for start in range(0, len(ids), _BATCH):
                gate.expect(kind, folder.engine.read(kind, ids[start : start + _BATCH]))
        step = folder.save(folder.state.begun(REMOVE, rows=len(ids), ids=digest)).steps[-1]
        for kind in kinds:
            for start in range(0, len(ids), _BATCH):
                folder.engine.supersede(kind, ids[start : start + _BATCH], step.number)
        refusal = gate.refusal("the removal")
        if refusal is not None:
            take_back(folder, step)
            raise refusal
        folder.save(folder.state.changed_step(step.number, details={PASSED: True}))
        complete_removal(folder, step.number, ids)
    return len(ids)


def _require_known(folder: GalleryFolder, kinds: Sequence[str], ids: Sequence[str]) -> None:
    unknown = set(ids)
    for kind in kinds:
        unknown -= set(folder.engine.read(kind, sorted(unknown), vectors=False).ids)
    if unknown:
        raise UserError(
            f"{len(unknown)} of {len(ids)} ids are no rows of this gallery, first {min(unknown)!r}"
        )

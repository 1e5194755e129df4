"""Adding rows: idempotent by id, and durable when a batch is acknowledged."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.gate import keep_queries
from unibct.gallery.row_gate import RowGate
from unibct.gallery.rows import IMAGE_KEY, GalleryRows, Metadata, sealed_rows, user_metadata
from unibct.gallery.settling import end_step, settle
from unibct.gallery.sources import Source, vector_fault
from unibct.gallery.state import ADD, RowMaker
from unibct.progress import Silent

BATCH = 1024  # rows of a batch; each is durable when the next begins
_SAME_VECTOR = 1e-3  # largest difference of two embeddings of the same image


@dataclass(frozen=True)
class Added:
    """What was added.

    Attributes:
        added: rows that are new.
        present: rows that were there already, with the same content.
    """

    added: int
    present: int


def add_rows(
    folder: GalleryFolder, source: Source, *, known: int = 0, keep_images: bool = True
) -> Added:
    """Add the rows of a source that are not there yet.

    Args:
        folder: the gallery.
        source: images, which the searching model embeds, or embeddings by a model that the
            gallery knows.
        known: how many known queries to keep, see ``gate``.
        keep_images: keep the images of known queries.
    """
    with folder.writing():
        settle(folder)
        kind = _kind(folder, source)
        gate = RowGate(folder)
        state = folder.save(folder.state.begun(ADD, source=source.name))
        step = state.next_number - 1
        counts = [0, 0]
        with folder.progress.task("adding", len(source), "rows") as advance:
            for start in range(0, len(source), BATCH):
                part = source.select(range(start, min(start + BATCH, len(source))))
                added = _add_batch(folder, kind, part, step, gate)
                counts[0] += added
                counts[1] += len(part) - added
                advance(len(part))
        refusal = gate.refusal(f"adding {source.name}")
        if refusal is not None:
            folder.engine.undo(step)
            folder.save(folder.state.changed_step(step, done=True, undone=True))
            raise refusal
        keep_queries(folder, source, known, images=keep_images)
        end_step(folder, step, added=counts[0], present=counts[1])
    return Added(*counts)


def _kind(folder: GalleryFolder, source: Source) -> str:
    """Return the kind of the rows to come; a model that the gallery does not know is refused."""
    state = folder.state
    if source.embeddings is None:
        folder.model(state.standing.searching)  # says so if there is no model
        return state.standing.searching
    kind = source.embeddings.fingerprint
    maker = state.makers.get(kind)
    if maker is None:
        known = ", ".join(f"{m.name} ({f})" for f, m in state.makers.items())
        raise UserError(
            f"{source.name} was made by model {kind}, which this gallery does not know; it knows "
            f"{known}. If one of them made these vectors, say so with --made-by"
        )
    require_made_by(source, maker)
    if not state.searchable(kind):
        raise UserError(
            f"{source.name} was made by {maker.name}, whose rows {state.searching.name} may not "
            f"search: nobody would find them. Add their images, or embeddings by "
            f"{state.searching.name} ({state.standing.searching})"
        )
    return kind


def _add_batch(folder: GalleryFolder, kind: str, part: Source, step: int, gate: RowGate) -> int:
    """Add those rows of a batch that are not there, and return how many they are."""
    digests = image_digests(part.images)
    present: set[str] = set()
    unsearchable: list[str] = []  # kinds that have some of these rows, after a rollback
    for other in folder.state.makers:
        there = folder.engine.read(other, part.ids, vectors=other == kind)
        _require_same(part, there, digests, by_vector=other == kind)
        if other == kind or folder.state.searchable(other):
            present.update(there.ids)
        elif len(there):
            unsearchable.append(other)
    places = [place for place, row_id in enumerate(part.ids) if row_id not in present]
    if not places:
        return 0
    absent = part.select(places)
    embedder = None if absent.images is None else folder.model(kind).embedder
    vectors = absent.vectors(embedder, Silent())
    require_usable(vectors, absent)
    metadata = [
        with_digest(absent.metadata[i], digests.get(absent.ids[i])) for i in range(len(absent))
    ]
    sealed = sealed_rows(kind, absent.ids, absent.labels, metadata, vectors, step)
    gate.expect(kind, sealed)
    folder.engine.write(kind, sealed, supersedes=unsearchable)
    return len(absent)


def image_digests(images: ImageSet | None) -> dict[str, str]:
    """Return id -> digest of the image, which tells it from any other."""
    if images is None:
        return {}
    return {image_id: _digest(images, image_id) for image_id in images.ids}


def _digest(images: ImageSet, image_id: str) -> str:
    try:
        data = (
            images.encoded(image_id)
            if images.encoded is not None
            else np.ascontiguousarray(images.read(image_id)).tobytes()
        )
    except UnreadableImageError as error:
        raise UserError(
            f"{images.name}: {image_id} cannot be read ({error}); repair it, or leave it out with "
            "--images"
        ) from error
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def with_digest(metadata: Metadata, digest: str | None) -> Metadata:
    """Return metadata with the digest of the row's image."""
    return metadata if digest is None else metadata | {IMAGE_KEY: digest}


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


def require_made_by(source: Source, maker: RowMaker) -> None:
    """Refuse embeddings that another model made."""
    assert source.embeddings is not None
    made_by, dim = source.embeddings.fingerprint, source.embeddings.vectors.shape[1]
    if made_by != maker.fingerprint:
        raise UserError(
            f"{source.name} was made by model {made_by}; these rows need embeddings by "
            f"{maker.name} ({maker.fingerprint})"
        )
    if dim != maker.dim:
        raise UserError(
            f"{source.name} has vectors of dimension {dim}; those of {maker.name} have {maker.dim}"
        )


def require_same_images(
    source: Source, digests: dict[str, str], stored: Sequence[Metadata]
) -> None:
    """Refuse images that are not those from which the rows with their ids were made.

    Args:
        source: the images.
        digests: id -> digest of the image; empty if the source has embeddings.
        stored: the metadata of the row of each id.
    """
    for row_id, metadata in zip(source.ids, stored, strict=True):
        digest = digests.get(row_id)
        if digest is not None and metadata.get(IMAGE_KEY, digest) != digest:
            raise UserError(
                f"{source.name}: {row_id!r} is another image than the one that was added; give "
                "the same images"
            )


def require_usable(vectors: NDArray[np.float32], source: Source) -> None:
    """Refuse vectors that no search can find."""
    fault = vector_fault(vectors, source.ids)
    if fault:
        raise UserError(f"{source.name}: {fault}; nothing of this batch was written")

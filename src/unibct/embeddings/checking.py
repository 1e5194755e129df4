"""Checks of embeddings that others have made: every row is looked at before any is used."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import normalized
from unibct.embeddings.folder import Embeddings
from unibct.errors import UserError

BLOCK = 65_536  # rows that are looked at at a time
_UNIT_TOLERANCE = 2e-3  # of the length of a normalised row in half precision


def usable_embeddings(embeddings: Embeddings, name: str) -> Embeddings:
    """Check every row, and return the embeddings with rows of length 1 and a fingerprint.

    Rows that have length 1 already stay as they are, to the bit. Without a fingerprint of their
    model the embeddings get a digest of their ids and vectors.

    Args:
        embeddings: as they were read.
        name: what the user called them, for messages.

    Raises:
        UserError: for NaN, a row of zeros or a doubled id, with the row and the id.
    """
    vectors = embeddings.vectors
    if not require_usable(embeddings, name):
        vectors = normalized(np.asarray(vectors)).astype(np.float32, copy=False)
    fingerprint = embeddings.fingerprint or content_fingerprint(embeddings)
    return embeddings.changed(vectors=vectors, fingerprint=fingerprint)


def require_usable(embeddings: Embeddings, name: str) -> bool:
    """Refuse what ``usable_embeddings`` refuses, and return whether all rows have length 1."""
    require_distinct_ids(embeddings.ids, name)
    all_unit = True
    for start in range(0, len(embeddings), BLOCK):
        lengths = checked_lengths(embeddings, start, name)
        all_unit = all_unit and bool((np.abs(lengths - 1) < _UNIT_TOLERANCE).all())
    return all_unit


def content_fingerprint(embeddings: Embeddings) -> str:
    """Return a digest of ids and vectors, for embeddings whose model is not known."""
    digest = hashlib.sha256(f"embeddings {embeddings.vectors.shape}\n".encode())
    for image_id in embeddings.ids:
        digest.update(f"{image_id}\n".encode())
    for start in range(0, len(embeddings), BLOCK):
        part = embeddings.vectors[start : start + BLOCK]
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    return digest.hexdigest()[:32]


def named_fingerprint(model_name: str, dim: int) -> str:
    """Return the fingerprint of a model of which only the name is known.

    Two files whose user gives them the same name count as made by the same model.
    """
    return hashlib.sha256(f"model named {model_name!r}, dimension {dim}".encode()).hexdigest()[:32]


def checked_lengths(embeddings: Embeddings, start: int, name: str) -> NDArray[np.float64]:
    """Return the lengths of a block of rows, which must be finite and not zero.

    Args:
        embeddings: what to look at.
        start: the first row of the block, which has ``BLOCK`` rows.
        name: what the user called them, for messages.
    """
    block = np.asarray(embeddings.vectors[start : start + BLOCK], dtype=np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
    problems = {"has NaN or infinite values": ~np.isfinite(lengths), "is all zeros": lengths == 0}
    for problem, bad in problems.items():
        if bad.any():
            row = start + int(bad.argmax())
            raise UserError(
                f"{name}, row {row} ({embeddings.ids[row]!r}) {problem}, as {int(bad.sum())} of "
                f"rows {start} to {start + len(block) - 1}; remove or repair them"
            )
    return lengths


def require_distinct_ids(ids: tuple[str, ...], name: str) -> None:
    """Refuse an id that two rows have; name both."""
    if len(set(ids)) == len(ids):
        return
    first_row: dict[str, int] = {}
    for row, image_id in enumerate(ids):
        if image_id in first_row:
            doubled = len(ids) - len(set(ids))
            raise UserError(
                f"{name}, row {row} has the id {image_id!r} of row {first_row[image_id]}; "
                f"{doubled} rows have an id that came before"
            )
        first_row[image_id] = row

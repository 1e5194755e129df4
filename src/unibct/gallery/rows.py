"""Which rows a model may search, and what they are to it: its own, older or mapped ones."""

import hashlib
import json
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.gallery.state import GalleryState, RowKind, Standing

OWN_ROW, OLDER_ROW, MAPPED_ROW = "own", "older", "mapped"


def searchable_kinds(state: GalleryState, standing: Standing) -> list[str]:
    """Return the kinds of rows that may be searched, the oldest first."""
    return [
        kind
        for kind, row_kind in state.kinds.items()
        if row_kind.space == standing.searching or kind in standing.access
    ]


def row_type(row_kind: RowKind, standing: Standing) -> str:
    """Return whether rows of a kind are own, older or mapped ones."""
    if row_kind.fingerprint == standing.searching:
        return OWN_ROW
    return MAPPED_ROW if row_kind.space == standing.searching else OLDER_ROW


# Rows of a gallery: ids, labels, metadata and vectors, each row with a digest of its content.

Scalar: TypeAlias = str | int | float | bool | None
Metadata: TypeAlias = dict[str, Scalar]
Where: TypeAlias = Mapping[str, Sequence[Scalar]]
"""A filter: each key of the metadata must have one of these values."""

NO_STEP = 0  # in ``superseded``: the row has not been replaced
LONGEST_ID = 512  # bytes of an id; every engine can keep that
LONGEST_LABEL = 512
_NOT_KEPT = re.compile("[\0\ud800-\udfff]")  # letters that some engine cannot keep
_METADATA_NAME = re.compile(r"[^\W\d_][\w-]*")
IMAGE_KEY = "_image"  # in the metadata: a digest of the image that the row was made from


@dataclass(frozen=True)
class GalleryRows:
    """Rows of one kind: one model, or one map, made all of their vectors."""

    ids: tuple[str, ...]  # one per row, unique within a kind
    labels: tuple[str | None, ...]  # one per row; None if the row has no label
    metadata: tuple[Metadata, ...]  # one flat dictionary per row
    # (rows, dim) float32 of length 1; (rows, 0) if they were not asked for
    vectors: NDArray[np.float32]
    steps: NDArray[np.int64]  # (rows,) the number of the step that wrote each row
    # (rows,) the number of the step that put a row of a newer kind in its place, or `NO_STEP`
    superseded: NDArray[np.int64]
    # one per row, of everything above but `superseded`, as it was when written
    digests: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, places: Sequence[int] | NDArray[np.int64]) -> "GalleryRows":
        """Return some of the rows, in the given order."""
        chosen = [int(place) for place in places]
        return GalleryRows(
            tuple(self.ids[place] for place in chosen),
            tuple(self.labels[place] for place in chosen),
            tuple(self.metadata[place] for place in chosen),
            self.vectors[chosen],
            self.steps[chosen],
            self.superseded[chosen],
            tuple(self.digests[place] for place in chosen),
        )

    def only(self, ids: Container[str]) -> "GalleryRows":
        """Return the rows with these ids, in their order here."""
        return self.take([place for place, row_id in enumerate(self.ids) if row_id in ids])

    def live(self) -> "GalleryRows":
        """Return the rows that have not been replaced."""
        return self.take(np.flatnonzero(self.superseded == NO_STEP))


def sealed_rows(
    kind: str,
    ids: Sequence[str],
    labels: Sequence[str | None],
    metadata: Sequence[Metadata],
    vectors: NDArray[np.float32],
    step: int,
) -> GalleryRows:
    """Return rows that a step is about to write, with their digests.

    The vectors are (rows, dim) float32 of length 1.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    parts = zip(ids, labels, metadata, vectors, strict=True)
    return GalleryRows(
        tuple(ids),
        tuple(labels),
        tuple(dict(values) for values in metadata),
        vectors,
        np.full(len(ids), step, dtype=np.int64),
        np.full(len(ids), NO_STEP, dtype=np.int64),
        tuple(row_digest(kind, step, *part) for part in parts),
    )


def recorded_rows(records: Sequence[tuple[Any, ...]], vectors: NDArray[np.float32]) -> GalleryRows:
    """Return rows from a table's records: id, label, metadata as JSON, step, superseded, digest."""
    return GalleryRows(
        tuple(record[0] for record in records),
        tuple(record[1] for record in records),
        tuple(json.loads(record[2]) for record in records),
        vectors,
        np.array([record[3] for record in records], dtype=np.int64),
        np.array([record[4] for record in records], dtype=np.int64),
        tuple(record[5] for record in records),
    )


def row_digest(
    kind: str,
    step: int,
    row_id: str,
    label: str | None,
    metadata: Metadata,
    vector: NDArray[np.float32],
) -> str:
    """Return 32 hexadecimal digits that change with any byte of a row."""
    header = json.dumps([kind, step, row_id, label, metadata], sort_keys=True, ensure_ascii=False)
    digest = hashlib.blake2b(header.encode(), digest_size=16)
    digest.update(np.ascontiguousarray(vector, dtype="<f4").tobytes())
    return digest.hexdigest()


def changed_rows(kind: str, rows: GalleryRows) -> list[str]:
    """Return the ids of rows whose content is not what was written."""
    return [
        row_id
        for place, row_id in enumerate(rows.ids)
        if rows.digests[place]
        != row_digest(
            kind,
            int(rows.steps[place]),
            row_id,
            rows.labels[place],
            rows.metadata[place],
            rows.vectors[place],
        )
    ]


def is_kept(value: Scalar) -> bool:
    """Return whether every engine keeps a value as it is."""
    if isinstance(value, str):
        return _NOT_KEPT.search(value) is None
    if isinstance(value, float):
        return bool(np.isfinite(value))
    return value is None or abs(value) < 1 << 63


def checked_id(value: Any, where: str) -> str:
    """Return an id that every engine can keep."""
    text = str(value)
    if not text or not is_kept(text) or len(text.encode()) > LONGEST_ID:
        raise UserError(f"{where}: an id is a text of 1 to {LONGEST_ID} bytes, not {text[:40]!r}")
    return text


def require_id_list(ids: Sequence[str]) -> None:
    """Refuse a text in place of a list of ids: its letters could be ids of other rows."""
    if isinstance(ids, str):
        raise UserError(f"give a list of ids, such as [{ids!r}], not a text")


def checked_label(label: str, where: str) -> str:
    """Return a label that every engine can keep."""
    if not is_kept(label) or len(label.encode()) > LONGEST_LABEL:
        raise UserError(
            f"{where}: a label is a text of at most {LONGEST_LABEL} bytes, not {label[:40]!r}"
        )
    return label


def checked_metadata(value: Any, where: str) -> Metadata:
    """Return flat metadata: names with texts, numbers, true, false or null."""
    if not isinstance(value, Mapping):
        raise UserError(f'{where}: metadata is an object such as {{"colour": "red"}}')
    result: Metadata = {}
    for key, scalar in value.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(key, str) or not _METADATA_NAME.fullmatch(key):
            raise UserError(
                f"{where}: {key!r} is no name for metadata; begin with a letter, then letters, "
                "digits, _ and -"
            )
        if not isinstance(scalar, str | int | float | bool | None):
            raise UserError(f"{where}: {key} must be a text, a number, true, false or null")
        if not is_kept(scalar):
            raise UserError(
                f"{where}: no database keeps {key} {str(scalar)[:40]!r}; write a finite number of "
                "at most 64 bits, or a text without zero bytes and halves of characters"
            )
        result[key] = scalar
    return result


def checked_filter(where: Any) -> Where:
    """Return a filter that every engine understands."""
    if not isinstance(where, Mapping):
        raise UserError('a filter is an object such as {"colour": ["red", "blue"]}')
    for key, choices in where.items():  # pyright: ignore[reportUnknownVariableType]
        if isinstance(choices, str) or not isinstance(choices, Collection):
            raise UserError(f"the filter {key}: give a list of values, such as [{choices!r}]")
        for choice in choices:  # pyright: ignore[reportUnknownVariableType]
            checked_metadata({key: choice}, "the filter")
    return cast(Where, where)


def user_metadata(metadata: Metadata) -> Metadata:
    """Return what the user has given, without what unibct keeps beside it."""
    return {key: value for key, value in metadata.items() if key != IMAGE_KEY}

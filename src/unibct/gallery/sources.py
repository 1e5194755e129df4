"""What comes into a gallery, as rows or as queries: images, or embeddings in any form."""

import csv
import json
import os
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.data.checked_set import NoReadableImageError
from unibct.data.decoding import UnreadableImageError
from unibct.data.image_set import ImageSet, select_listed
from unibct.data.readers import open_images, open_unclassed
from unibct.embedders import EMBEDDERS, parse_reference
from unibct.embedders.own import open_stored
from unibct.embeddings.extraction import embed
from unibct.embeddings.forms import PREFIX, read_embeddings, recognised_form
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import require_distinct_ids
from unibct.errors import UserError
from unibct.gallery.rows import (
    Metadata,
    checked_id,
    checked_label,
    checked_metadata,
    is_kept,
)
from unibct.models.embedder import Embedder


@dataclass(frozen=True)
class Source:
    """Images or embeddings, with what is known about each of them."""

    name: str  # what the user called them
    ids: tuple[str, ...]  # one per row
    labels: tuple[str | None, ...]  # one per row; None where there is none
    metadata: tuple[Metadata, ...]  # one per row
    images: ImageSet | None  # to be embedded; None if the embeddings are given
    embeddings: Embeddings | None  # made already; None if there are images

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def skip_bad(self) -> bool:
        """Whether unreadable images are left out, instead of refused."""
        return self.images is not None and self.images.skip_bad

    def select(self, places: Sequence[int]) -> "Source":
        """Return some of the rows."""
        return Source(
            self.name,
            tuple(self.ids[place] for place in places),
            tuple(self.labels[place] for place in places),
            tuple(self.metadata[place] for place in places),
            None if self.images is None else self.images.select(places),
            None if self.embeddings is None else _selected(self.embeddings, places),
        )

    def only(self, ids: Container[str]) -> "Source":
        """Return the rows with these ids, in their order here."""
        return self.select([place for place, row_id in enumerate(self.ids) if row_id in ids])

    def without(self, ids: Container[str]) -> "Source":
        """Return the rows that do not have these ids."""
        return self.select([place for place, row_id in enumerate(self.ids) if row_id not in ids])

    def batches(self, rows: int) -> Iterator["Source"]:
        """Yield the rows in their order, at most so many at a time."""
        for start in range(0, len(self), rows):
            yield self.select(range(start, min(start + rows, len(self))))

    def vectors(self, model: Embedder | None) -> NDArray[np.float32]:
        """Return (rows, dim): the given embeddings, or all of the images through a model."""
        if self.embeddings is not None:
            return np.asarray(self.embeddings.vectors, dtype=np.float32)
        assert self.images is not None
        assert model is not None
        embedded = embed(model, replace(self.images, skip_bad=False))
        return np.asarray(embedded.vectors, dtype=np.float32)

    def readable(self) -> "Source":
        """Return the rows whose images can be read, which may be none: each is read once.

        Whoever reads them from now on is refused if one of them has become unreadable.
        """
        images = self.images
        if images is None:
            return self
        return self._settled([row_id for row_id in self.ids if _is_readable(images, row_id)])

    def readable_vectors(self, model: Embedder) -> tuple["Source", NDArray[np.float32]]:
        """Return the ``readable`` rows and (rows, dim)."""
        assert self.images is not None
        images = replace(self.images, skip_bad=True)
        try:
            embedded = embed(model, images)
        except NoReadableImageError:
            return self._settled([]), np.empty((0, model.dim), dtype=np.float32)
        return self._settled(set(embedded.ids)), np.asarray(embedded.vectors, dtype=np.float32)

    def _settled(self, ids: Container[str]) -> "Source":
        """Return some of the rows, whose images can be read."""
        part = self.only(ids)
        assert part.images is not None
        return replace(part, images=replace(part.images, skip_bad=False))


def open_source(
    data: str | Path | ImageSet | Embeddings | Source,
    *,
    list_file: Path | None = None,
    metadata: Path | None = None,
    need_classes: bool = False,
    skip_bad: bool = False,
) -> Source:
    """Open images or embeddings.

    Args:
        data: DATA as in other commands, ``embeddings:PATH``, or a path with embeddings in a form
            that unibct reads; from Python also an opened set.
        list_file: a file with one id per line; only these are taken.
        metadata: a CSV file with a column ``id``, or a JSON Lines file with a key ``id``.
        need_classes: refuse images without classes: a file, or a folder of files.
        skip_bad: leave unreadable images out instead of refusing; an opened set says it itself.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, ImageSet | Embeddings):
        opened = data
    else:
        open_set = open_images if need_classes else open_unclassed
        opened = _opened(_path(data), list_file, partial(open_set, skip_bad=skip_bad))
    name = opened.name if isinstance(opened, ImageSet) else _name_of(data)
    require_distinct_ids(opened.ids, name)
    labels: list[str | None] = [
        (opened.class_names[label] or None) if label >= 0 else None
        for label in opened.labels.tolist()
    ]
    for place, (row_id, label) in enumerate(zip(opened.ids, labels, strict=True)):
        checked_id(row_id, f"{name}, row {place}")
        if label is not None:
            checked_label(label, f"{name}, row {place} ({row_id!r})")
    values: list[Metadata] = [{} for _ in opened.ids]
    if metadata is not None:
        values = _read_metadata(metadata, opened.ids)
    is_images = isinstance(opened, ImageSet)
    return Source(
        name,
        opened.ids,
        tuple(labels),
        tuple(values),
        opened if is_images else None,
        None if is_images else opened,
    )


def _path(data: str | Path) -> str:
    """Return the path as text; refuse arrays and other things from Python that are none."""
    try:
        return os.fspath(data)
    except TypeError as error:
        raise UserError(
            "DATA is a path, an opened image set or opened embeddings, not "
            f"{type(data).__name__}; a search takes vectors as Queries(ids, vectors, made_by) of "
            "unibct.gallery.search, with the fingerprint of the model that made them"
        ) from error


def note_left_out(name: str, ids: Sequence[str]) -> None:
    """Say which unreadable images were left out, if any were."""
    if ids:
        progress.note(f"left out {len(ids)} unreadable images of {name}: {', '.join(ids)}")


def note_unlabelled(source: Source) -> None:
    """Say so if images without classes become rows."""
    if source.images is not None and not any(source.labels):
        progress.note(f"{source.name} has no classes: its rows get no label")


def vector_fault(vectors: NDArray[np.float32], ids: Sequence[str]) -> str:
    """Return what is wrong with the first vector that is not of length 1; empty if all are."""
    lengths = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.abs(lengths - 1) < 0.01))
    if not len(bad):
        return ""
    what = "NaN or infinite" if not np.isfinite(lengths[bad[0]]) else "zero or not of length 1"
    return f"the vector of {ids[int(bad[0])]!r} is {what}"


def is_embeddings(data: str) -> bool:
    """Return whether DATA stands for embeddings rather than images."""
    if data.startswith(PREFIX):
        return True
    return Path(data).exists() and recognised_form(Path(data)) is not None


def with_fingerprint(source: Source, fingerprint: str) -> Source:
    """Return embeddings that the user says were made by the model with this fingerprint."""
    if source.embeddings is None:
        raise UserError(f"{source.name} are images: the gallery's model embeds them")
    recorded = _recorded_fingerprint(source.name)
    if recorded not in ("", fingerprint):
        progress.note(
            f"{source.name} says that model {recorded} made it; its rows are kept as made by "
            f"{fingerprint}, as you say: scores mean nothing if that is another model"
        )
    return replace(source, embeddings=source.embeddings.changed(fingerprint=fingerprint))


def _is_readable(images: ImageSet, image_id: str) -> bool:
    try:
        images.read(image_id)
    except UnreadableImageError:
        return False
    return True


def _recorded_fingerprint(name: str) -> str:
    """Return the fingerprint that a file of embeddings records; empty without one, or a file."""
    if not is_embeddings(name):
        return ""
    reference = parse_reference(name, EMBEDDERS)
    return "" if reference.options else read_embeddings(reference.path).fingerprint


def _opened(
    data: str, list_file: Path | None, read_images: Callable[[str, Path | None], ImageSet]
) -> ImageSet | Embeddings:
    if not is_embeddings(data):
        return read_images(data, list_file)
    stored = open_stored(data)
    if list_file is None:
        return stored
    listed = select_listed(
        ImageSet(data, stored.ids, stored.labels * 0, ("",), cast(Any, None)), list_file
    )
    position = {row_id: place for place, row_id in enumerate(stored.ids)}
    return _selected(stored, [position[row_id] for row_id in listed.ids])


def _name_of(data: str | Path | ImageSet | Embeddings) -> str:
    return str(data) if isinstance(data, str | Path) else "the embeddings"


def _selected(embeddings: Embeddings, places: Sequence[int]) -> Embeddings:
    return Embeddings(
        embeddings.vectors[list(places)],
        tuple(embeddings.ids[place] for place in places),
        embeddings.labels[list(places)],
        embeddings.class_names,
        embeddings.fingerprint,
        class_source=embeddings.class_source,
    )


def _read_metadata(path: Path, ids: Sequence[str]) -> list[Metadata]:
    """Return the metadata of each id; ids that the file does not have get none."""
    known: dict[str, Metadata] = {}
    wanted = set(ids)
    for number, record in _records(path):
        where = f"{path}, line {number}"
        row_id = record.pop("id", None)
        if row_id is None:
            raise UserError(f"{where}: there is no id")
        if not isinstance(row_id, str):
            raise UserError(f"{where}: the id {row_id!r} is no text; write it in quotes")
        if row_id in known:
            raise UserError(f"{where}: the id {row_id!r} is there twice")
        known[row_id] = checked_metadata(record, where)
    missing = [row_id for row_id in known if row_id not in wanted]
    if missing:
        raise UserError(f"{path}: {len(missing)} ids are not among the rows, first {missing[0]!r}")
    return [known.get(row_id, {}) for row_id in ids]


def _records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the number of each line, and what it says."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            if path.suffix == ".csv":
                reader = csv.DictReader(stream)
                _require_distinct_columns(path, reader.fieldnames or ())
                return [(reader.line_num, _cells(row, path, reader.line_num)) for row in reader]
            return [
                (number, _object(line, path, number))
                for number, line in enumerate(stream, start=1)
                if line.strip()
            ]
    except UserError:
        raise
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV or JSON Lines: {error}") from error


def _require_distinct_columns(path: Path, names: Sequence[str]) -> None:
    doubled = [name for place, name in enumerate(names) if name in names[:place]]
    if doubled:
        raise UserError(f"{path}, line 1: the column {doubled[0]!r} is there twice")


def _object(line: str, path: Path, number: int) -> dict[str, Any]:
    """Return a line of a JSON Lines file."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number}: this is no JSON: {error}") from error
    if not isinstance(value, dict):
        example = '{"id": "a", "colour": "red"}'
        raise UserError(f"{path}, line {number}: a line is an object such as {example}")
    return cast(dict[str, Any], value)


def _cells(row: dict[Any, Any], path: Path, number: int) -> dict[str, Any]:
    """Return a line of a CSV file, with numbers as numbers; empty cells are left out."""
    if None in row or None in row.values():
        columns = len(row) - (None in row)
        amount = "more" if None in row else "fewer"
        raise UserError(f"{path}, line {number}: there are {amount} cells than the {columns} names")
    return {
        key: value if key == "id" else parse_scalar(value)
        for key, value in row.items()
        if value != ""
    }


def parse_scalar(text: str) -> str | int | float | bool:
    """Return a text as what it looks like: true, false, a whole number, a number, or a text.

    A number is one that is written as Python writes it, so that nothing is lost: ``007``, ``1.50``
    and ``2024_01`` stay texts, and so does a whole number of more than 64 bits.
    """
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if str(number) == text and is_kept(number) else text
    return text


def parse_where(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the filter that KEY=VALUE texts stand for; the same key again means *or*.

    What looks like a number, true or false may be a text in the metadata: both are searched for.
    """
    where: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"the filter {text!r}: write KEY=VALUE")
        where.setdefault(key, []).extend(dict.fromkeys([parse_scalar(value), value]))
    return where

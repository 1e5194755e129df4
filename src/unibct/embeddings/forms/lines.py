"""Ids and class names as lines of UTF-8 text, and classes from the name in each row."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unibct.embeddings.store import NO_CLASS
from unibct.errors import UserError


def encoded_lines(values: Sequence[str], what: str) -> bytes:
    """Return a line for each value; a value with a line break is refused."""
    for row, value in enumerate(values):
        if "\n" in value or "\r" in value:
            raise UserError(f"row {row}: the {what} {value!r} has a line break; rename it")
    return "".join(f"{value}\n" for value in values).encode()


def decoded_lines(data: bytes, where: str, rows: int) -> tuple[str, ...]:
    """Return the lines of a text, which must be as many as there are rows.

    Args:
        data: UTF-8, with or without a break after the last line.
        where: what the text is, for messages.
        rows: how many rows there are.
    """
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text: {error}") from error
    lines = tuple(text.removesuffix("\n").split("\n")) if text else ()
    if len(lines) != rows:
        raise UserError(f"{where} has {len(lines)} lines for {rows} rows of vectors")
    return lines


def read_lines(path: Path, rows: int) -> tuple[str, ...]:
    """Return the lines of a file, one for each row."""
    return decoded_lines(path.read_bytes(), str(path), rows)


def classes_of(names: Sequence[str] | None, rows: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels and class names from the class name of each row.

    The classes are numbered in the order in which they first appear. Without names, no classes
    are known.
    """
    if names is None:
        return np.full(rows, NO_CLASS, dtype=np.int64), ()
    class_names = tuple(dict.fromkeys(names))
    number_of = {name: number for number, name in enumerate(class_names)}
    return np.array([number_of[name] for name in names], dtype=np.int64), class_names


def names_of(labels: NDArray[np.int64], class_names: Sequence[str]) -> list[str]:
    """Return the class name of each row."""
    return [class_names[int(label)] for label in labels]

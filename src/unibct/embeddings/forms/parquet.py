"""`parquet`: the columns ``id``, ``vector`` and perhaps ``label``; needs pyarrow.

The fingerprint of the model is in the file's metadata, under ``unibct.fingerprint``.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.embeddings.forms.files import classes_of, names_of
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError, first_line
from unibct.files import atomic_file, require_absent

SUFFIXES = (".parquet", ".pq")
_FINGERPRINT = b"unibct.fingerprint"
_BLOCK = 65_536  # rows in a row group


def recognises(path: Path) -> bool:
    """Return whether a path is a Parquet file, or a folder of Parquet files."""
    if path.is_dir():
        return any(file.suffix in SUFFIXES for file in path.iterdir())
    return path.suffix in SUFFIXES and path.is_file()


def read(path: Path) -> Embeddings:
    """Read a file, or all files of a folder in the order of their names."""
    pyarrow, parquet = _pyarrow()
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    tables: list[Any] = []
    for file in files:
        try:
            columns = [n for n in parquet.read_schema(file).names if n in ("id", "vector", "label")]
            tables.append(parquet.read_table(file, columns=columns))
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{file} cannot be read as Parquet: {first_line(error)}") from error
        for column in ("id", "vector"):
            if column not in columns:
                raise UserError(f"{file} lacks the column `{column}`; it needs id and vector")
    vectors = np.concatenate(_matrices(files, tables))
    ids = tuple(text for f, t in zip(files, tables, strict=True) for text in _texts(f, t, "id"))
    names = None
    labelled = ["label" in table.column_names for table in tables]
    if all(labelled):
        parts = zip(files, tables, strict=True)
        names = [text for file, table in parts for text in _texts(file, table, "label")]
    elif any(labelled):
        with_labels, without = files[labelled.index(True)], files[labelled.index(False)]
        raise UserError(f"{with_labels} has a column `label`, and {without} has none")
    fingerprint = _one_fingerprint(files, tables)
    return Embeddings(vectors, ids, *classes_of(names, len(ids)), fingerprint)


def _one_fingerprint(files: list[Path], tables: list[Any]) -> str:
    """Return the fingerprint that all files record, else nothing; refuse rows of two models."""
    first_files: dict[str, Path] = {}
    for file, table in zip(files, tables, strict=True):
        metadata: dict[bytes, bytes] = table.schema.metadata or {}
        first_files.setdefault(metadata.get(_FINGERPRINT, b"").decode(), file)
    models = [fingerprint for fingerprint in first_files if fingerprint]
    if len(models) > 1:
        raise UserError(
            f"{first_files[models[0]]} was made by model {models[0]}, and "
            f"{first_files[models[1]]} by model {models[1]}: keep them in folders of their own"
        )
    return next(iter(first_files)) if len(first_files) == 1 else ""


def require_writable(path: Path) -> None:
    """Refuse another ending, what exists already, and a machine without pyarrow."""
    _pyarrow()
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: the name must end in {SUFFIXES[0]}")
    require_absent(path)


def write(embeddings: Embeddings, path: Path) -> None:
    """Write one file, a row group at a time."""
    require_writable(path)
    pyarrow, parquet = _pyarrow()
    dim = embeddings.vectors.shape[1]
    fields = [("id", pyarrow.string()), ("vector", pyarrow.list_(pyarrow.float32(), dim))]
    if embeddings.class_names:
        fields.append(("label", pyarrow.string()))
    metadata = {_FINGERPRINT: embeddings.fingerprint} if embeddings.fingerprint else {}
    schema = pyarrow.schema(fields, metadata=metadata)
    with (
        atomic_file(path, alone=True) as temporary,
        parquet.ParquetWriter(temporary, schema) as writer,
    ):
        for start in range(0, len(embeddings), _BLOCK):
            part = slice(start, start + _BLOCK)
            values = np.ascontiguousarray(embeddings.vectors[part], dtype=np.float32).reshape(-1)
            columns = [
                pyarrow.array(embeddings.ids[part], pyarrow.string()),
                pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values), dim),
            ]
            if embeddings.class_names:
                names = names_of(embeddings.labels[part], embeddings.class_names)
                columns.append(pyarrow.array(names, pyarrow.string()))
            writer.write_batch(pyarrow.record_batch(columns, schema=schema))


def _matrices(files: list[Path], tables: list[Any]) -> list[NDArray[np.float32]]:
    """Return (rows, dim) of each file; a file of another dimension is named."""
    matrices = [_matrix(file, table) for file, table in zip(files, tables, strict=True)]
    dim = matrices[0].shape[1]
    for file, matrix in zip(files, matrices, strict=True):
        if matrix.shape[1] != dim:
            raise UserError(
                f"{file} has vectors of dimension {matrix.shape[1]}, and {files[0]} of {dim}"
            )
    return matrices


def _matrix(path: Path, table: Any) -> NDArray[np.float32]:
    """Return (rows, dim) float32 of the column ``vector``; a row of another length is named."""
    column = table["vector"].combine_chunks()
    pyarrow, _ = _pyarrow()
    if not (
        pyarrow.types.is_list(column.type)
        or pyarrow.types.is_large_list(column.type)
        or pyarrow.types.is_fixed_size_list(column.type)
    ):
        raise UserError(
            f"{path}: the column `vector` must hold lists of numbers, not {column.type}"
        )
    ids = _texts(path, table, "id")
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise UserError(f"{path}, row {row} ({ids[row]!r}) has no vector")
    if not len(column):
        raise UserError(f"{path} has no rows")
    if pyarrow.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = np.asarray(column.value_lengths())
    if (lengths != lengths[0]).any():
        row = int((lengths != lengths[0]).argmax())
        raise UserError(
            f"{path}, row {row} ({ids[row]!r}) has dimension {lengths[row]}, and row 0 has "
            f"{lengths[0]}"
        )
    values = column.flatten()
    if not pyarrow.types.is_floating(values.type):
        raise UserError(f"{path}: the vectors have {values.type} values, not floating point")
    # A missing number becomes NaN, which the check of all rows then names.
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return numbers.reshape(len(column), int(lengths[0]))


def _texts(path: Path, table: Any, name: str) -> list[str]:
    """Return a column as texts: numbers and dictionaries are written out, bytes are UTF-8."""
    values: list[Any] = table[name].to_pylist()
    for row, value in enumerate(values):
        if value is None or value != value:  # NaN
            raise UserError(f"{path}, row {row} has no {name}")
        if isinstance(value, bytes):
            try:
                values[row] = value.decode()
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, row {row}: the {name} {value!r} is not UTF-8") from error
    return [value if isinstance(value, str) else str(value) for value in values]


def _pyarrow() -> tuple[Any, Any]:
    """Import pyarrow, or say how to install it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet needs pyarrow: pip install 'unibct[parquet]'") from error
    return pyarrow, pyarrow.parquet

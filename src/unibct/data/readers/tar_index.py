"""The index of a tar file, kept on disk, so that its headers are read only once.

The index is in the folder ``tar-index`` of the user's cache, which is ``~/.cache/unibct`` on Linux
or the folder in the environment variable ``UNIBCT_CACHE``. Its name is a hash of the tar file's
absolute path. It is used as long as the tar file has the same size and modification time. An index
that is out of date or damaged is replaced, and any index may be deleted.

The file has two lines of JSON: a header, which describes the tar file and contains the SHA-256 of
the second line, and a list of samples ``[key, offset, size, label]``.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from unibct.data.readers.tar_samples import TarSample, is_label, read_samples
from unibct.files import user_cache_folder, write_text

_FORMAT = 3  # 2: with .jpe and .jfif; 3: with keys that have only images of other names


def indexed_samples(path: Path) -> list[TarSample]:
    """Return the samples of a tar file: from its index, or else from the file itself."""
    folder = user_cache_folder()
    if folder is None:
        return read_samples(path)
    header = _tar_header(path)
    name = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:32]
    index = folder / "tar-index" / f"{name}.json"
    samples = _load(index, header)
    if samples is None:
        samples = read_samples(path)
        if _tar_header(path) == header:  # it did not change while it was read
            _save(index, header, samples)
    return samples


def _tar_header(path: Path) -> dict[str, Any]:
    """Return what identifies a tar file and its content."""
    status = path.stat()
    return {
        "format": _FORMAT,
        "tar": os.path.abspath(path),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }


def _save(index: Path, header: dict[str, Any], samples: list[TarSample]) -> None:
    """Write an index, unless the folder cannot be written."""
    rows = [[sample.key, *(sample.image or (None, None)), sample.label] for sample in samples]
    text = json.dumps(rows)  # ASCII: a key may be a name that UTF-8 cannot encode
    with suppress(OSError):
        write_text(index, f"{json.dumps(header | {'sha256': _sha256(text)})}\n{text}\n")


def _load(index: Path, header: dict[str, Any]) -> list[TarSample] | None:
    """Return the samples in an index; None if there is no index for this state of the tar file."""
    try:
        header_text, _, text = index.read_text(encoding="ascii").removesuffix("\n").partition("\n")
        if json.loads(header_text) != header | {"sha256": _sha256(text)}:
            return None
        rows: Any = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(rows, list):
        return None
    samples = [_checked_sample(row, header["size"]) for row in cast(list[Any], rows)]
    complete = [sample for sample in samples if sample is not None]
    has_all = len({sample.key for sample in complete}) == len(samples)
    return complete if has_all else None


def _checked_sample(row: Any, tar_size: int) -> TarSample | None:
    """Return the sample in a row of an index; None if it is not one that the tar file can have."""
    match row:
        case [str(key), int(offset), int(size), str() | None as label]:
            if offset < 0 or size < 0 or offset + size > tar_size:
                return None
            image = (offset, size)
        case [str(key), None, None, str() | None as label]:
            image = None
        case _:
            return None
    return TarSample(key, image, label) if label is None or is_label(label) else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()

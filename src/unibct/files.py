"""Files and folders that are either there whole or not at all."""

import json
import os
import shutil
import tempfile
import tokenize
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError

_DAMAGED = (ValueError, TypeError, OverflowError, SyntaxError, tokenize.TokenError)


@contextmanager
def atomic_file(path: Path) -> Generator[Path]:
    """A temporary name to write to; synced and renamed to ``path`` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Generator[Path]:
    """A temporary folder to fill; synced and renamed to ``path`` when the block succeeds."""
    require_absent(path)
    path = path.resolve()
    if path == Path.cwd():
        raise UserError(f"{path} is the current folder; name a new one inside it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        for entry in temporary.iterdir():
            sync(entry)
        temporary.chmod(0o777 & ~_umask())
        if path.is_dir():
            path.rmdir()  # an empty folder may be replaced
        temporary.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_temporaries(folder: Path, names: Sequence[str]) -> None:
    """Remove what ``atomic_file`` leaves of these files when its process is killed."""
    for name in names:
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove every temporary file and folder beneath a folder in which no other process writes."""
    for path in list(folder.rglob(".*.tmp")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, as UTF-8."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a readable JSON file whole."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; an error names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def mapped_array(path: Path) -> NDArray[Any]:
    """A ``.npy`` file, memory-mapped; no other format is read, and nothing unpickled."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise UserError(f"{path} is not a whole .npy file: {error}") from error


def require_absent(path: Path) -> None:
    """Refuse to write over what is there (an empty folder is fine)."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise UserError(f"{path} exists already; choose another --out or remove it")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk, where the system can."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems refuse it for folders
        if path.is_file():
            raise
    finally:
        os.close(handle)

"""Reading and writing files. Files and folders are written completely or not at all."""

import errno
import json
import os
import re
import shutil
import tempfile
import time
import tokenize
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError

CACHE_VARIABLE = "UNIBCT_CACHE"  # environment variable: another folder for the user's cache
_UNUSED_SECONDS = 90 * 24 * 3600
# What NumPy raises for a damaged .npy header.
_DAMAGED_HEADER_ERRORS = (ValueError, TypeError, OverflowError, SyntaxError, tokenize.TokenError)


@contextmanager
def atomic_file(path: Path, *, alone: bool = False) -> Generator[Path]:
    """Yield a temporary file to write to. It is renamed to ``path`` if the block succeeds.

    ``alone`` says that no other process writes this file: remove what a killed one has left of it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: name a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        if alone:
            remove_leftovers(path, but=temporary)
        yield temporary
        sync(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def partial_folder(path: Path) -> Path:
    """Return the hidden folder in which a killed run leaves what it has for a file."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def atomic_folder(path: Path, *, alone: bool = False) -> Generator[Path]:
    """Yield a temporary folder to fill. It is renamed to ``path`` if the block succeeds.

    ``alone`` is as for ``atomic_file``.
    """
    require_absent(path)
    path = path.resolve()
    if path == Path.cwd():
        raise UserError(f"{path} is the current folder; name a new one inside it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        if alone:
            remove_leftovers(path, but=temporary)
        yield temporary
        for entry in temporary.iterdir():
            sync(entry)
        temporary.chmod(0o777 & ~_umask())
        if path.is_dir():
            path.rmdir()  # require_absent has checked that it is empty
        temporary.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def leftovers(path: Path) -> list[Path]:
    """Return the temporary files and folders that killed processes have left of ``path``."""
    if not path.parent.is_dir():
        return []
    # The form of a name from ``tempfile``: another hidden file may be the user's own.
    name = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}\.tmp")
    return [entry for entry in path.parent.iterdir() if name.fullmatch(entry.name)]


def remove_leftovers(*paths: Path, but: Path | None = None) -> None:
    """Remove what killed processes have left of ``paths``; ``but`` is the temporary of this one."""
    for entry in (entry for path in paths for entry in leftovers(path)):
        if but is None or entry.name != but.name:
            _remove(entry)


def sweep(folder: Path) -> None:
    """Remove all temporary files and folders below a folder.

    Call it only if no other process is writing there.
    """
    for path in list(folder.rglob(".*.tmp")):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. An error message contains the path."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def mapped_array(path: Path) -> NDArray[Any]:
    """Memory-map a ``.npy`` file. Other formats and pickled objects are refused."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGED_HEADER_ERRORS as error:
        raise UserError(f"{path} is not a whole .npy file: {error}") from error


def user_cache_folder() -> Path | None:
    """Return the folder for files that speed up later runs, or None if there is no place for it.

    It is the user's cache folder of the operating system (``~/.cache/unibct`` on Linux), or the
    folder in the environment variable ``UNIBCT_CACHE``. Its content may be deleted at any time.
    """
    chosen_folder = os.environ.get(CACHE_VARIABLE)
    if chosen_folder:
        return Path(chosen_folder).absolute()
    from platformdirs import user_cache_path

    folder = user_cache_path("unibct", appauthor=False)
    return folder if folder.is_absolute() else None  # relative: the user has no home folder


def mark_used(path: Path) -> None:
    """Note that a file of the cache was used now, for ``remove_unused``."""
    with suppress(OSError):
        os.utime(path)


def remove_unused(folder: Path) -> None:
    """Remove the files of a folder of the cache that no run has written or used for months."""
    for path in folder.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                path.unlink()


def require_absent(path: Path) -> None:
    """Raise a ``UserError`` if ``path`` exists and is not an empty folder."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise UserError(f"{path} exists already; choose another place or remove it")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk, if the system supports it."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems do not support it for folders
        if path.is_file():
            raise
    finally:
        os.close(handle)

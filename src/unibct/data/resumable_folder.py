"""A folder that can be written in several runs: a run continues where a killed one stopped.

Until it is complete, the folder is a hidden folder next to its final place. Large files are only
appended to. Their sizes are saved regularly; the next run truncates them to the saved sizes and
continues from there.
"""

import os
import shutil
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from unibct.errors import UserError
from unibct.files import atomic_folder, read_json, require_absent, sync, write_json

_SYNC_THREADS = 16  # they mostly wait for the disk, which writes several files at a time


class ResumableFolder:
    """A folder that is being written.

    Attributes:
        data: becomes the final folder; temporary files are next to it.
        done: how many items earlier runs have done.
        is_kept: whether the next run may continue after a ``UserError``.
    """

    def __init__(self, root: Path, fingerprint: str | None, note: Callable[[str], None]) -> None:
        self.data = root / "data"
        self.done = 0
        self._root = root
        self._progress_file = root / "progress.json"
        self._fingerprint = fingerprint
        self._saved_sizes: dict[str, int] = {}
        self._growing_files: dict[str, BinaryIO] = {}
        self._unsynced_files: list[Path] = []
        self._open_files = ExitStack()
        self.is_kept = False
        saved: Any = read_json(self._progress_file) if self._progress_file.is_file() else None
        if saved is not None and self._can_continue(saved):
            self.done, self._saved_sizes = saved["done"], saved["sizes"]
            note(f"going on after {self.done:,} images of an earlier run")
            return
        if saved is not None:
            note("what an earlier run has read may have changed since: starting again")
        self._progress_file.unlink(missing_ok=True)
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir()

    def grow(self, name: str) -> BinaryIO:
        """Open a file to append to and to read, with the content it had at the last ``save``.

        Args:
            name: its path; a path below ``data/`` becomes part of the final folder.
        """
        file = self._open_files.enter_context((self._root / name).open("a+b"))
        file.truncate(self._saved_sizes.get(name, 0))
        file.seek(0, os.SEEK_END)
        self._growing_files[name] = file
        return file

    def add(self, name: str, content: bytes) -> None:
        """Write a small file at once.

        Args:
            name: its path below ``data/``.
            content: all of it.
        """
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self._unsynced_files.append(path)

    def sync(self) -> None:
        """Flush the files that ``add`` has written, and the folders that name them."""
        folders = {folder for path in self._unsynced_files for folder in path.parents}
        inside = [f for f in folders if f.is_relative_to(self.data)]
        with ThreadPoolExecutor(_SYNC_THREADS) as pool:
            list(pool.map(sync, self._unsynced_files))
            list(pool.map(sync, inside))
        self._unsynced_files.clear()

    def save(self, done: int) -> None:
        """Record that the files contain the first ``done`` items, once they are on the disk."""
        if self._fingerprint is None:
            return
        self.sync()
        for file in self._growing_files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._growing_files.items()}
        saved = {"fingerprint": self._fingerprint, "done": done, "sizes": sizes}
        write_json(self._progress_file, saved)

    def keep(self, done: int) -> None:
        """Save, and let the next run continue although this one ends in a ``UserError``."""
        self.save(done)
        self.is_kept = self._fingerprint is not None

    def close(self) -> None:
        """Close the files that ``grow`` opened."""
        self._open_files.close()

    def _can_continue(self, saved: dict[str, Any]) -> bool:
        """Return whether what an earlier run saved is still complete and up to date."""
        return (
            saved["fingerprint"] == self._fingerprint
            and self.data.is_dir()
            and all(_has_bytes(self._root / name, size) for name, size in saved["sizes"].items())
        )


@contextmanager
def resumable_folder(
    path: Path, fingerprint: str | None, note: Callable[[str], None]
) -> Generator[ResumableFolder]:
    """Yield a folder to fill. It is renamed to ``path`` if the block succeeds.

    If the block is interrupted or the process is killed, the next run continues from the last
    ``save``. A ``UserError`` removes everything, because its cause has to be repaired first, which
    changes the input; not if the block has called ``keep``.

    Args:
        path: a new folder, or an empty one.
        fingerprint: changes if anything changes that the folder is made from; then a run starts
            from the beginning. With None every run does.
        note: is called with a message about whether an earlier run is continued.
    """
    require_absent(path)
    path = path.resolve()
    if path == Path.cwd():
        raise UserError(f"{path} is the current folder; name a new one inside it")
    root = path.parent / f".{path.name}.partial"
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / "lock", blocking=False):
            folder = ResumableFolder(root, fingerprint, note)
            try:
                yield folder
                folder.sync()
            except UserError:
                if not folder.is_kept:
                    shutil.rmtree(root, ignore_errors=True)
                raise
            finally:
                folder.close()
            with atomic_folder(path) as temporary:
                temporary.rmdir()
                folder.data.rename(temporary)
    except Timeout as error:
        raise UserError(f"another process is writing {path}; wait until it has finished") from error
    shutil.rmtree(root, ignore_errors=True)


def _has_bytes(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size >= size

"""A folder that may be made in several runs: what a killed one leaves, the next goes on with.

Until it is whole, it stands in a hidden folder beside its place. Its long files only grow. Now and
then their sizes are noted, and a later run cuts them to these sizes and goes on from there.
"""

import os
import shutil
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from unibct.errors import UserError
from unibct.files import atomic_folder, read_json, require_absent, write_json


class ResumableFolder:
    """A folder under way.

    Attributes:
        data: what becomes the folder; work files are kept beside it.
        done: pieces of work that earlier runs did.
    """

    def __init__(self, root: Path, fingerprint: str | None, note: Callable[[str], None]) -> None:
        self.data = root / "data"
        self.done = 0
        self._root = root
        self._progress = root / "progress.json"
        self._fingerprint = fingerprint
        self._sizes: dict[str, int] = {}
        self._growing: dict[str, BinaryIO] = {}
        self._open = ExitStack()
        noted: Any = read_json(self._progress) if self._progress.is_file() else None
        if noted is not None and self._goes_on(noted):
            self.done, self._sizes = noted["done"], noted["sizes"]
            note(f"going on after {self.done:,} images of an earlier run")
            return
        if noted is not None:
            note("what an earlier run has read may have changed since: starting anew")
        self._progress.unlink(missing_ok=True)
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir()

    def grow(self, name: str) -> BinaryIO:
        """A file to append to and to read; it begins with what was in it when ``done`` was noted.

        Args:
            name: its path; what begins with ``data/`` becomes part of the folder.
        """
        file = self._open.enter_context((self._root / name).open("a+b"))
        file.truncate(self._sizes.get(name, 0))
        file.seek(0, os.SEEK_END)
        self._growing[name] = file
        return file

    def save(self, done: int) -> None:
        """Note that ``done`` pieces of work are in the files."""
        if self._fingerprint is None:
            return
        for file in self._growing.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._growing.items()}
        noted = {"fingerprint": self._fingerprint, "done": done, "sizes": sizes}
        write_json(self._progress, noted)

    def close(self) -> None:
        """Close the files that grow."""
        self._open.close()

    def _goes_on(self, noted: dict[str, Any]) -> bool:
        return (
            noted["fingerprint"] == self._fingerprint
            and self.data.is_dir()
            and all(_has(self._root / name, size) for name, size in noted["sizes"].items())
        )


@contextmanager
def resumable_folder(
    path: Path, fingerprint: str | None, note: Callable[[str], None]
) -> Generator[ResumableFolder]:
    """A folder to fill; renamed to ``path`` when the block succeeds.

    If the block is interrupted, or its process killed, what it saved waits for the next run. A
    ``UserError`` removes it: what has to be mended first changes what was read.

    Args:
        path: a new folder, or an empty one.
        fingerprint: changes with all that the folder is made of: then a run begins anew. With
            None every run does.
        note: told whether an earlier run is gone on with.
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
            except UserError:
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


def _has(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size >= size

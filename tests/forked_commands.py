"""Commands as processes of their own that share one import of torch.

`python -m unibct …` imports torch, which takes seconds. Here a server of Python's
`multiprocessing`, one for each test process, has imported it, and a command is a fork of the server
with its own environment, folder and output.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from contextlib import chdir
from multiprocessing import forkserver
from pathlib import Path

ROOT = Path(__file__).parent.parent
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.imported_once"])
_start_server = forkserver._forkserver.ensure_running


def _start_server_from_root() -> None:
    """Start the server where it finds what it imports; elsewhere it leaves that out silently."""
    with chdir(ROOT):
        _start_server()


forkserver._forkserver.ensure_running = _start_server_from_root


class ForkedCommand:
    """A module that runs in a process of its own; the process is killed at the end of a block."""

    def __init__(self, module: str, *arguments: object, environment: dict[str, str] | None = None):
        self._line = [module, *map(str, arguments)]
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        variables = os.environ | (environment or {})
        target = (self._line, dict(variables), os.getcwd(), self._outputs)
        self.process = FORKS.Process(target=_run, args=target)
        self.process.start()

    def __enter__(self) -> "ForkedCommand":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self._folder.cleanup()

    def finished(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Wait for the end, and return the exit code and what was printed."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"{self._line} has not ended"
        printed = (path.read_text(encoding="utf-8") for path in self._outputs)
        return subprocess.CompletedProcess(self._line, self.process.exitcode, *printed)


def run_forked(
    module: str, *arguments: object, check: bool = True, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own, as `subprocess.run` would."""
    with ForkedCommand(module, *arguments, environment=environment) as command:
        done = command.finished()
    if check:
        done.check_returncode()
    return done


def _run(line: list[str], environment: dict[str, str], folder: str, outputs: list[Path]) -> None:
    """Be the command; the main of a fork."""
    assert "tests.imported_once" in sys.modules, "the server has imported nothing"
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = line
    try:
        runpy.run_module(line[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out

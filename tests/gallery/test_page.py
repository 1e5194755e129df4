import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.gallery.conftest import save_images
from tests.gallery.toys import NEW, OLD, toy_certificate, toy_images, written
from unibct.errors import UserError
from unibct.gallery.gallery import Gallery
from unibct.gallery.page import address, opened_socket, require_libraries

ROOT = Path(__file__).parents[2]


def test_addresses_to_type_into_a_browser():
    assert address("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert address("::1", 8765, "secret") == "http://[::1]:8765/?token=secret"
    assert address("0.0.0.0", 1, None) == f"http://{socket.gethostname()}:1/"


def test_a_port_that_is_taken_is_named():
    with opened_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"cannot listen at 127\.0\.0\.1, port {port} .*port 0"
        ):
            opened_socket("127.0.0.1", port)


@pytest.mark.parametrize("library", ["fastapi", "uvicorn"])
def test_a_missing_library_is_named(monkeypatch, library):
    require_libraries()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"the library {library}: pip install 'unibct\[serve\]'"):
        require_libraries()


def asked(address: str, token: str) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(tmp_path):
    rows = save_images(toy_images(), tmp_path / "rows")
    gallery = Gallery.create(tmp_path / "G", OLD)
    gallery.add(str(rows))
    new = gallery.folder.opener.open(NEW).fingerprint
    certificate = toy_certificate(gallery.folder.state.standing.searching, new)
    gallery.upgrade(NEW, [written(certificate, tmp_path)])
    gallery.close()
    command = [sys.executable, "-m", "unibct", "gallery", "serve", str(tmp_path / "G")]
    options = ["--host", "0.0.0.0", "--port", "0", "--images", str(rows), "--device", "cpu"]
    with subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            found = re.search(r"http://[^:]+:(\d+)/\?token=(\S+)", run.stdout.readline())
            assert found is not None
            port, token = found.groups()
            here = f"http://127.0.0.1:{port}"
            assert asked(f"{here}/api/status", "")[0] == 401
            code, body = asked(f"{here}/api/status", token)
            assert (code, json.loads(body)["rows"]) == (200, 48)
            assert asked(f"{here}/api/image/c1/1.png", token)[0] == 200
            assert asked(f"{here}/api/image/../../state.json", token)[0] == 404
            run.send_signal(signal.SIGINT)
            assert run.wait(30) == 0
        finally:
            run.kill()

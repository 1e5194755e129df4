"""The source archive and the wheel are built, and the wheel runs where nothing else of us is."""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def called(*command: object, **options: object) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The built files: the wheel is made from the source archive, as an installer would."""
    out = tmp_path_factory.mktemp("dist")
    called(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


@pytest.mark.slowest
def test_the_archives_hold_what_is_needed(archives):
    wheel, source = archives
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    package = ROOT / "src/unibct"
    ours = {
        f"unibct/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert ours <= names
    assert {name.split("/")[0] for name in names} == {"unibct", "unibct-0.1.0.dist-info"}
    with tarfile.open(source) as packed:
        folders = {name.split("/")[1] for name in packed.getnames()}
    assert {"src", "tests", "measurements", "docs", "README.md", "LICENSE", "Makefile"} <= folders


@pytest.mark.slowest
def test_the_installed_wheel_runs(archives, tmp_path):
    """A fresh environment with the wheel; only its dependencies come from this one."""
    called(sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh")
    python = tmp_path / "fresh/bin/python"
    called(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", archives[0])
    site = next((tmp_path / "fresh/lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = called(python, "-c", "import unibct; print(unibct.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    command = tmp_path / "fresh/bin/unibct"
    assert "Upgrade the model of a visual search" in called(command, "--help", cwd=tmp_path)
    split = ("split", "glyphs:train", "--scenario", "open-class", "--out", "split")
    assert "classes" in called(command, *split, cwd=tmp_path)
    lines = (tmp_path / "split/old.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 1000

"""The lowest versions that pyproject.toml allows are enough: the main commands run with them."""

import json
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import TINY_OPTIONS

ROOT = Path(__file__).parent.parent
# Another torch is several gigabytes to download: `scripts/try_versions.py` tries its ends.
TOO_LARGE = {"torch"}


def lowest_versions() -> dict[str, str]:
    """The floor of each dependency."""
    floors = runpy.run_path(str(ROOT / "scripts/try_versions.py"))["floors"]()
    return {name: floor for name, floor in floors.items() if name not in TOO_LARGE}


def called(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def lowest_python(tmp_path) -> Path:
    """An environment with the floors; everything else comes from this one."""
    python = tmp_path / "lowest/bin/python"
    called(sys.executable, "-m", "venv", "--without-pip", tmp_path / "lowest", cwd=tmp_path)
    pins = [f"{name}=={version}" for name, version in lowest_versions().items()]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    called(*pip, "install", "--quiet", "--no-compile", *pins, cwd=tmp_path)
    site = next((tmp_path / "lowest/lib").glob("python*/site-packages"))
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    return python


@pytest.mark.slowest
def test_the_main_commands_run_with_the_lowest_versions(
    lowest_python, photo_folder, unseen_folder, tmp_path
):
    names = list(lowest_versions())
    script = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    found = json.loads(called(lowest_python, "-c", script, *names, cwd=tmp_path))
    assert {n: Requirement(f"{n}=={v}").specifier.contains(found[n])
            for n, v in lowest_versions().items()} == dict.fromkeys(names, True)  # fmt: skip

    def unibct(*arguments: object) -> str:
        return called(lowest_python, "-m", "unibct", *arguments, cwd=tmp_path)

    benchmark = ["benchmark", photo_folder, "--test", unseen_folder, "--scenarios", "open-class"]
    methods = ["--methods", "none,unibct", "--chain", "none", "--seeds", "0", "--out", "b"]
    unibct(*benchmark, *methods, *TINY_OPTIONS)
    assert "<svg" in (tmp_path / "b/report.html").read_text(encoding="utf-8")
    new, old = "b/cells/open-class/unibct/seed0/model", "b/models/old-classes-seed0/model"
    models = ("--query", new, "--gallery", old)
    shown = json.loads(unibct("evaluate", unseen_folder, *models, "--json"))
    assert shown["tests"]

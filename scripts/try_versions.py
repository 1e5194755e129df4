"""Try both ends of the supported range of torch, with the given Pythons: the oldest and the newest.

    python scripts/try_versions.py python3.11 python3.14

Each pair gets an environment of its own in a temporary folder, where two small models are trained
and compared. A torch for GPUs is several gigabytes to download; pip's own settings, such as
PIP_INDEX_URL, choose another build. The floors of the other dependencies are tried by
`tests/test_lowest_versions.py`.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TINY = ("--set", "epochs=1", "--set", "size=16", "--set", "warmup_epochs=0")
SMOKE = (
    ("train", "glyphs:val", *TINY, "--out", "old"),
    ("train", "glyphs:val", *TINY, "--old", "old", "--out", "new"),
    ("evaluate", "glyphs:test", "--query", "new", "--gallery", "old"),
)


def floors() -> dict[str, str]:
    """Return the lowest version that pyproject.toml allows of each dependency, reports included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest: dict[str, str] = {}
    for line in [*project["dependencies"], *project["optional-dependencies"]["report"]]:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", line)
        assert match, f"{line} needs one floor and no more"
        lowest[match[1]] = match[2]
    return lowest


def problem_with(python: str, torch: str, folder: Path) -> str:
    """Install the package with a torch in a new environment, and use it; return what went wrong."""
    environment = folder / "environment"
    own_python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = (own_python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    steps = [(python, "-m", "venv", environment), (*pip, torch, ROOT)]
    steps += [(own_python, "-m", "unibct", *words) for words in SMOKE]
    for words in steps:
        command = [str(word) for word in words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{' '.join(command)}\n{done.stderr.strip()}"
    return ""


def main() -> int:
    """Try every pair, print a line for each, and return 1 if one does not work."""
    failed = 0
    for python in sys.argv[1:] or [sys.executable]:
        for torch in (f"torch=={floors()['torch']}.*", "torch"):
            with tempfile.TemporaryDirectory() as folder:
                problem = problem_with(python, torch, Path(folder))
            print(f"{python}, {torch}: {problem or 'works'}", flush=True)
            failed += bool(problem)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

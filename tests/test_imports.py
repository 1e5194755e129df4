"""Data flows one way: a module imports only from those before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unibct

ROOT = Path(unibct.__file__).parent
# Each line may import from the lines above it, and from its own package.
ORDER = [
    "errors",
    "arrays files progress ranks",
    "data scenarios adapters",
    "models store",
    "embeddings",
    "prototypes",
    "refinement",
    "losses metrics tracking loss_scale stopping",
    "sharded checkpoints gradients",
    "methods recipe",
    "runs",
    "trainer",
    "train evaluate adapt",
    "ijb pair_sets",
    "miniatures",
    "rehearsal",
    "compare demo",
    "benchmark",
    "report",
    "cli",
    "__main__ __init__",
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names.split()}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unibct"):
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("unibct.")}
    return found


MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} needs a place in ORDER"
    for other in imported(path):
        if own == "data" and other == "scenarios":  # a split on disk
            continue
        assert other == own or LEVEL[other] < LEVEL[own], f"{own} must not import {other}"


def test_help_and_import_need_no_torch():
    code = (
        "import sys, unibct, unibct.cli\n"
        "unibct.split([0, 0, 1, 1], 'open-data')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_exist():
    for name in unibct.__all__:
        assert getattr(unibct, name) is not None
    assert set(unibct.__all__) <= set(dir(unibct))
    with pytest.raises(AttributeError):
        unibct.nothing  # noqa: B018

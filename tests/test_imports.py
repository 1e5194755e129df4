"""Data flows one way: a room imports only from itself and from the rooms above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unibct

ROOT = Path(unibct.__file__).parent
# The order of the rooms, from the ground floor up: the one list of it.
ROOMS = (
    "errors",
    "arrays",
    "files",
    "progress",
    "registry",
    "distributed",
    "data",
    "maps",
    "models",
    "embeddings",
    "embedders",
    "prototypes",
    "losses",
    "methods",
    "training",
    "evaluation",
    "export",
    "gallery",
    "benchmark",
    "advice",
    "examples",
    "report",
    "cli",
    "__main__",
    "__init__",
)
MODULES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a module imports from, inside functions and for types only as well."""
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import: write the whole name"
            parts = (node.module or "").split(".")
            if parts[0] == "unibct":
                rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            rooms |= {parts[1] for parts in names if parts[0] == "unibct" and len(parts) > 1}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    own = room_of(path)
    for other in imported_rooms(path):
        assert other in ROOMS, f"{path} imports unibct.{other}, which is no room of ROOMS"
        assert ROOMS.index(other) <= ROOMS.index(own), f"{own} must not import from {other}"


def test_every_room_has_its_place_in_the_list():
    rooms = {room_of(path) for path in MODULES}
    assert rooms == set(ROOMS)
    assert len(ROOMS) == len(set(ROOMS))


def test_imports_inside_functions_count(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "def late():\n    from unibct.cli.entry import main\n    import unibct.report\n"
    )
    assert imported_rooms(file) == {"cli", "report"}


def test_the_root_holds_few_modules_and_each_room_says_what_lives_there():
    assert len(list(ROOT.glob("*.py"))) <= 8
    for folder in {path.parent for path in MODULES} - {ROOT}:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert text, f"{folder} does not say what lives there"
        assert text.count(".") >= 2, f"{folder}: say what lives there, and what does not"


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

"""The tests of a file are found by its path, and the house keeps its shape."""

import ast
from pathlib import Path

import unibct

SOURCE = Path(unibct.__file__).parent
TESTS = Path(__file__).parent
# Tests of the whole package.
OF_THE_WHOLE = {
    "test_examples",
    "test_imports",
    "test_layout",
    "test_lowest_versions",
    "test_readme",
    "test_rehearsal",
    "test_wheel",
}
# Tests of a room rather than of one of its modules.
OF_A_ROOM = {
    "distributed/test_several_processes",
    "evaluation/test_ties",
    "gallery/engines/test_faults",
    "training/test_host_waits",
    "training/test_other_networks",
    "training/test_torchrun",
    "gallery/page/test_in_browser",
    "report/test_in_browser",
    "report/test_new_metric",
}
# Modules that hold no behaviour of their own, or whose every line another test runs.
WITHOUT_TESTS = {"__main__", "__init__", "cli", "training/options"}
# Names that do not say what they hold.
EMPTY_NAMES = {"at_hand", "first_s", "found", "kept", "looks", "own"}
# A part of unibct-plus that `unibct-plus@own=false` switches off.
MAY_BE_EMPTY = {("src/unibct/methods/plus.py", "own"), ("src/unibct/methods/plus.py", "_own")}


def module_paths() -> dict[str, Path]:
    """Every module by its path without suffix, such as ``data/loader``."""
    paths = SOURCE.rglob("*.py")
    return {
        str(path.relative_to(SOURCE).with_suffix("")).removesuffix("/__init__"): path
        for path in paths
        if path.name != "__init__.py" or len(path.read_text(encoding="utf-8").splitlines()) > 40
    }


def modules_with_tests() -> set[str]:
    """The module that each test file is about, by the file's own path."""
    files = [path.relative_to(TESTS).with_suffix("") for path in TESTS.rglob("test_*.py")]
    return {str(file.parent / file.name.removeprefix("test_")) for file in files}


def test_every_test_file_has_its_module():
    whole = {name.removeprefix("test_") for name in OF_THE_WHOLE}
    rooms = {name.replace("test_", "") for name in OF_A_ROOM}
    assert modules_with_tests() - set(module_paths()) - whole - rooms == set()


def test_every_module_has_its_test_file():
    untested = set(module_paths()) - modules_with_tests() - WITHOUT_TESTS
    assert untested == set()


def test_no_function_or_class_is_too_long():
    for name, path in module_paths().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= (200 if isinstance(node, ast.ClassDef) else 80), (name, node.name)


def bound_names(tree: ast.AST) -> set[str]:
    """The names that a module gives: of values, arguments, attributes, functions and classes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.arg(arg=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
    return names


def test_names_say_what_they_hold():
    root = TESTS.parent
    found_names = {
        (str(path.relative_to(root)), name)
        for folder in ("src", "scripts", "measurements")
        for path in (root / folder).rglob("*.py")
        for name in bound_names(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_") in EMPTY_NAMES
    }
    assert found_names == MAY_BE_EMPTY


def test_an_empty_name_is_noticed_wherever_it_is_given():
    code = """
class Passage:
    found: int
    def kept(self, own, *looks):
        self._at_hand = [first_s for first_s in own]
"""
    given = {name.strip("_") for name in bound_names(ast.parse(code))}
    assert given - {"Passage", "self"} == EMPTY_NAMES

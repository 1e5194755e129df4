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
    "test_wheel",
}
# Tests of a room rather than of one of its modules.
OF_A_ROOM = {
    "distributed/test_several_processes",
    "gallery/engines/test_faults",
    "training/test_host_waits",
    "training/test_other_networks",
    "training/test_torchrun",
    "gallery/page/test_in_browser",
    "report/pages/test_in_browser",
    "report/pages/test_new_metric",
}
# Modules that hold no behaviour of their own, or whose every line another test runs.
WITHOUT_TESTS = {"__main__", "gallery/page/answers", "training/options"}


def module_paths() -> dict[str, Path]:
    """Every module by its path without suffix, such as ``data/loader``."""
    paths = SOURCE.rglob("*.py")
    return {
        str(path.relative_to(SOURCE).with_suffix("")): path
        for path in paths
        if path.name != "__init__.py"
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
                assert lines <= (200 if isinstance(node, ast.ClassDef) else 60), (name, node.name)

"""``MODULE:ATTRIBUTE``: something of the user's own, imported by name and never unpickled."""

import importlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from unibct.errors import UserError


def find_attribute(reference: str) -> Any:
    """Import what ``MODULE:ATTRIBUTE`` names; a module in the working folder is found too."""
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise UserError(f"python:{reference}: write python:MODULE:ATTRIBUTE")
    try:
        with _working_folder_on_path():
            value: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"python:{reference} needs the Python module {module_name}: {error}; "
            "install it, or put its folder on PYTHONPATH"
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UserError(f"python:{reference}: {module_name} has no attribute {attribute!r}")
        value = getattr(value, part)
    return value


@contextmanager
def _working_folder_on_path() -> Generator[None]:
    folder = os.getcwd()
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)

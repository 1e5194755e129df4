"""Things that have a name: methods, metrics, readers, architectures, engines and so on.

Each kind has one ``Registry``: what it is called, one line about it, and where its code is. The
code is imported when it is used, so that the command line can list the names quickly. Another
package adds its own through an entry point of the group ``unibct.<kind>s``, which names an entry:

    [project.entry-points."unibct.methods"]
    my-method = "my_package:MY_METHOD"
"""

import difflib
import importlib
import os
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from unibct.errors import UserError

_Entry = TypeVar("_Entry")


class Registry(Mapping[str, _Entry], Generic[_Entry]):
    """Entries by name, in the order in which help texts list them; ours first.

    Args:
        kind: what an entry is, for messages: ``method``.
        entries: those that come with unibct.
    """

    def __init__(self, kind: str, entries: Mapping[str, _Entry]) -> None:
        self.kind = kind
        self._ours = entries

    @cached_property
    def _entries(self) -> dict[str, _Entry]:
        """Our entries, and those of installed packages under names that we do not use."""
        group = f"unibct.{self.kind.replace(' ', '_')}s"
        others = {point.name: point for point in entry_points(group=group)}
        loaded = {name: point.load() for name, point in others.items() if name not in self._ours}
        return {**self._ours, **loaded}

    def __getitem__(self, name: str) -> _Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> _Entry:
        """Return the entry called ``name``, or raise an error that lists the names."""
        if name in self._entries:
            return self._entries[name]
        close = difflib.get_close_matches(name, self._entries, n=1)
        meant = f", did you mean {close[0]!r}?" if close else ""
        raise UserError(f"unknown {self.kind} {name!r}{meant}; choose one of {', '.join(self)}")


def find_attribute(reference: str) -> Any:
    """Import what ``MODULE:ATTRIBUTE`` names: something of the user's own, never unpickled.

    A module in the working folder is found too.
    """
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

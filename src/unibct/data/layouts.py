"""The table of layouts that ``convert`` writes; a class is imported when it is used."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class LayoutEntry:
    """A layout that can be written.

    Attributes:
        home: where its class is, as ``module:name`` within ``unibct.data``. The class takes the
            set, the folder and the rows that are done.
        description: a few words for help texts.
    """

    home: str
    description: str

    def load(self) -> Any:
        """Import the class."""
        return resolve_name(f"unibct.data.{self.home}")


LAYOUTS: dict[str, LayoutEntry] = {
    "recordio": LayoutEntry("convert:RecordioLayout", "train.rec, train.idx, property"),
    "folder": LayoutEntry("convert:FolderLayout", "a folder for each class"),
}

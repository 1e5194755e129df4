"""The forms in which embeddings are kept on disk: a file for each, and their table.

Each form reads and writes vectors with ids, and labels if there are any. What a form's rows must
be like to be used is checked elsewhere, in ``embeddings/stored.py``.

The table of forms in which embeddings are kept.

To add a form, write a module with the functions ``recognises``, ``read``, ``require_writable``
and ``write``, and add a line to ``FORMS``. The modules are imported when they are used.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from unibct.errors import UserError

if TYPE_CHECKING:
    from unibct.embeddings.store import Embeddings


class FormModule(Protocol):
    """What the module of a form contains."""

    def recognises(self, path: Path) -> bool:
        """Return whether a path looks like embeddings in this form."""
        ...

    def read(self, path: Path) -> "Embeddings":
        """Return the embeddings at ``path``, with the rows exactly as they are stored.

        The fingerprint is the one in the file, or empty if it has none.
        """
        ...

    def require_writable(self, path: Path) -> None:
        """Refuse a name that cannot be written in this form, before the work is done."""
        ...

    def write(self, embeddings: "Embeddings", path: Path) -> None:
        """Write embeddings to ``path``, either all of them or nothing."""
        ...


@dataclass(frozen=True)
class Form:
    """A form of embeddings on disk.

    Attributes:
        module: the name of its module in this package.
        short: what it is called in a list of forms.
        description: what it looks like, for help and messages.
    """

    module: str
    short: str
    description: str

    def load(self) -> FormModule:
        """Import the module of this form."""
        return cast(FormModule, import_module(f"unibct.embeddings.forms.{self.module}"))


STORED = "embeddings"  # the kind of data, and of embedder
PREFIX = f"{STORED}:"  # before a path, where it could be images or a model
FOLDER_FORM = "folder"

# A path is read by the first form that recognises it.
FORMS: dict[str, Form] = {
    FOLDER_FORM: Form(
        "embeddings_folder", "a folder", "a folder of memory-mapped shards with checksums"
    ),
    "parquet": Form(
        "parquet", ".parquet", "NAME.parquet with the columns id, vector and perhaps label"
    ),
    "npy": Form("npy", ".npy", "NAME.npy with NAME.ids.txt beside it, and perhaps NAME.labels.txt"),
    "safetensors": Form(
        "safetensors_file", ".safetensors", "NAME.safetensors with vectors and ids"
    ),
}


def describe_forms() -> str:
    """Return the forms in a few words, for help texts."""
    *others, last = (form.short for form in FORMS.values())
    return f"{', '.join(others)} or {last}"


def find_form(name: str) -> Form:
    """Return the form called ``name``, or raise an error that lists the names."""
    if name not in FORMS:
        raise UserError(f"unknown form {name!r}; choose one of {', '.join(FORMS)}")
    return FORMS[name]


def recognised_form(path: Path) -> Form | None:
    """Return the form of the embeddings at a path; None if there are none."""
    return next((form for form in FORMS.values() if form.load().recognises(path)), None)


def read_embeddings(path: str | Path) -> "Embeddings":
    """Read embeddings in any form, with the rows exactly as they are stored."""
    path = Path(path)
    form = recognised_form(path)
    if form is None:
        problem = "holds no embeddings" if path.exists() else "is not there"
        forms = "; ".join(form.description for form in FORMS.values())
        raise UserError(f"{path} {problem}; embeddings are kept as: {forms}")
    return form.load().read(path)


def write_embeddings(embeddings: "Embeddings", path: str | Path, form: str = FOLDER_FORM) -> None:
    """Write embeddings in a form, either all of them or nothing.

    Args:
        embeddings: what to write.
        path: a new folder or file.
        form: a name from ``FORMS``.
    """
    find_form(form).load().write(embeddings, Path(path))

"""The forms in which embeddings are kept on disk, and their table.

Each form reads and writes vectors with ids, and labels if there are any. What a form's rows must
be like to be used is checked elsewhere, in ``embeddings/stored.py``. To add one, write what
``FormCode`` asks for, as a class or a module, and add an entry to ``FORMS``, or an entry point of
the group ``unibct.forms``.
"""

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol, cast

from unibct.errors import UserError
from unibct.registry import Registry

if TYPE_CHECKING:
    from unibct.embeddings.store import Embeddings


class FormCode(Protocol):
    """What reads and writes a form."""

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
    """A form of embeddings on disk. Its code is imported when it is used."""

    code: str  # ``module`` or ``module:class``
    short: str  # what it is called in a list of forms
    description: str  # what it looks like, for help and messages

    def load(self) -> FormCode:
        """Import the code of this form."""
        return cast(FormCode, resolve_name(self.code))


STORED = "embeddings"  # the kind of data, and of embedder
PREFIX = f"{STORED}:"  # before a path, where it could be images or a model
FOLDER_FORM = "folder"

# A path is read by the first form that recognises it.
FORMS: Registry[Form] = Registry(
    "form",
    {
        FOLDER_FORM: Form(
            "unibct.embeddings.forms.files:Folder",
            "a folder",
            "a folder of memory-mapped shards with checksums",
        ),
        "parquet": Form(
            "unibct.embeddings.forms.parquet",
            ".parquet",
            "NAME.parquet with the columns id, vector and perhaps label",
        ),
        "npy": Form(
            "unibct.embeddings.forms.files:Npy",
            ".npy",
            "NAME.npy with NAME.ids.txt beside it, and perhaps NAME.labels.txt",
        ),
        "safetensors": Form(
            "unibct.embeddings.forms.files:Safetensors",
            ".safetensors",
            "NAME.safetensors with vectors and ids",
        ),
    },
)


def describe_forms() -> str:
    """Return the forms in a few words, for help texts."""
    *others, last = (form.short for form in FORMS.values())
    return f"{', '.join(others)} or {last}"


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
    FORMS.find(form).load().write(embeddings, Path(path))

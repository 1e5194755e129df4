"""`embeddings:` stored embeddings in any form, in place of the model that made them."""

from pathlib import Path

from unibct.embedders import Opening, Reference
from unibct.embeddings.forms import read_embeddings, recognised_form
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import StoredEmbeddings, named_fingerprint, usable_embeddings
from unibct.errors import UserError


def recognises(path: Path) -> bool:
    """Return whether a path holds embeddings in a form that unibct reads."""
    return recognised_form(path) is not None


def open_reference(reference: Reference, opening: Opening) -> StoredEmbeddings:
    """Read the embeddings and check every row."""
    stored = read_embeddings(reference.path)
    if "model" in reference.options:
        named = named_fingerprint(reference.options["model"], stored.vectors.shape[1])
        stored = stored.changed(fingerprint=named)
    return StoredEmbeddings(reference.text, usable_embeddings(stored, reference.place))


def open_stored(reference: str | Path) -> Embeddings:
    """Return stored embeddings, checked, with rows of length 1; anything else is refused."""
    opened = Opening().open(reference)
    if not isinstance(opened, StoredEmbeddings):
        raise UserError(f"{reference} is a model; embed the images first: unibct embed")
    return opened.embeddings

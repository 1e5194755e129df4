"""`folder`: what ``unibct embed`` writes by default, see ``embeddings/store.py``."""

from pathlib import Path

from unibct.embeddings.store import (
    STORE_DESCRIPTION,
    Embeddings,
    open_embeddings,
    read_description,
    save_embeddings,
)
from unibct.errors import UserError
from unibct.files import remove_leftovers, require_absent


def recognises(path: Path) -> bool:
    """Return whether a path is an embeddings folder."""
    return (path / STORE_DESCRIPTION).is_file()


def read(path: Path) -> Embeddings:
    """Open an embeddings folder; one that was made for an evaluation protocol is refused."""
    protocol = read_description(path).protocol
    if protocol is not None:
        raise UserError(
            f"{path} was made for --protocol {protocol}: its rows are sums of two views, not "
            "normalised; embed the images without --protocol"
        )
    return open_embeddings(path)


def require_writable(path: Path) -> None:
    """Refuse what exists already."""
    require_absent(path)


def write(embeddings: Embeddings, path: Path) -> None:
    """Write a new embeddings folder."""
    remove_leftovers(path.resolve())
    save_embeddings(embeddings, path)

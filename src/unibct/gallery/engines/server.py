"""What the engines with a server share: names within a database, and addresses without passwords.

A database may hold many galleries and tables of others, so every name begins with ``unibct_`` and
the name of the gallery.
"""

import hashlib
from urllib.parse import urlsplit

from unibct.errors import UserError
from unibct.gallery.engines import Place

_LONGEST_NAME = 30  # of a gallery within a longer name; PostgreSQL has room for 63 bytes in all


def name_stem(place: Place) -> str:
    """Return how every name of a gallery begins."""
    name = place.name
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 13]}_{_digest(name)}"
    return f"unibct_{name}_"


def registry_name(place: Place) -> str:
    """Return the name of what shows that a gallery is in this database."""
    return f"{name_stem(place)}kinds"


def kind_name(place: Place, kind: str) -> str:
    """Return the name of the table or collection with the rows of a kind."""
    return f"{name_stem(place)}{_digest(kind)}"


def lock_number(place: Place) -> int:
    """Return a number of 64 bits for locks that writers of this gallery take."""
    digest = hashlib.blake2b(registry_name(place).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def refuse_secret(address: str, secret: str | None, instead: str) -> None:
    """Refuse an address with a password: it would be kept in files and shown in messages.

    Args:
        address: as the user has written it.
        secret: what was found in it.
        instead: where it belongs.
    """
    if secret:
        shown = address.replace(secret, "***")
        raise UserError(f"{shown} contains a password; leave it out and {instead}")


def secret_of_url(address: str) -> str | None:
    """Return what stands before the ``@`` of a URL such as ``http://user:password@host``."""
    before, at, _ = urlsplit(address).netloc.rpartition("@")
    return before if at else None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

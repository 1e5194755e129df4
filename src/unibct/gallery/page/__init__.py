"""The page of a gallery: a web page and a JSON interface to search, backfill and go back.

Here is the server process: where it listens, and how it ends. FastAPI and uvicorn come with the
extra ``serve``; they are imported when the server starts.
"""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unibct.data.readers import open_unclassed
from unibct.errors import UserError

if TYPE_CHECKING:
    import uvicorn

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765
_ALL_ADDRESSES = ("0.0.0.0", "::", "")
_MOST_CONNECTIONS = 64


def serve_gallery(
    path: str | Path,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    images: str | None = None,
    token: str | None = None,
    device: Any = "auto",
) -> None:
    """Serve the page of a gallery until Ctrl-C.

    Args:
        path: of the gallery's folder.
        host: the address to listen at. If others can reach it, they need a token.
        port: to listen at; 0 for any that is free.
        images: DATA with the images of the rows, by id: for pictures and for a backfill.
        token: that requests must bring; by default one is made if others can reach the server.
        device: where models compute.
    """
    require_libraries()
    from unibct.gallery.page.access import chosen_token
    from unibct.gallery.page.app import make_app
    from unibct.gallery.page.changes import GalleryChanges
    from unibct.gallery.page.shown_gallery import ShownGallery

    token = chosen_token(host, token)
    image_set = None if images is None else open_unclassed(images)
    shown = ShownGallery(Path(path), image_set, device=device)
    changes = GalleryChanges(Path(path), image_set, device=device)
    app = make_app(shown, changes, token=token)
    with opened_socket(host, port) as listening:
        print(f"{path}: {address(host, listening.getsockname()[1], token)}", flush=True)
        print("Ctrl-C ends it; a backfill that runs is paused first", flush=True)
        try:
            configured_server(app).run([listening])
        except KeyboardInterrupt:  # uvicorn has ended in good order, and passes Ctrl-C on
            return


def configured_server(app: Any) -> "uvicorn.Server":
    """Return a server that says little and trusts no header."""
    import uvicorn

    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        ws="none",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


def require_libraries() -> None:
    """Refuse to go on without the libraries of the extra ``serve``."""
    try:
        import fastapi  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import uvicorn  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise UserError(
            f"the page needs the library {error.name}: pip install 'unibct[serve]'"
        ) from error


def opened_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}, port {port} ({error.strerror or error}); choose another "
            "host or port; port 0 is any that is free"
        ) from error


def address(host: str, port: int, token: str | None) -> str:
    """Return what to type into a browser."""
    name = socket.gethostname() if host in _ALL_ADDRESSES else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")

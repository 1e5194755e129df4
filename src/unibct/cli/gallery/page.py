"""The command that shows a gallery in the browser."""

from unibct.cli.gallery.options import GalleryArgument, gallery_app
from unibct.cli.options import DeviceOption, examples, option


@gallery_app.command(
    "serve",
    epilog=examples(
        "unibct gallery serve G --images photographs/",
        "unibct gallery serve G --port 0",
        "unibct gallery serve G --host 0.0.0.0 --images photographs/",
    ),
)
def serve_command(
    path: GalleryArgument,
    images: str | None = option(
        "images of the rows, by id: for pictures and for a backfill", "DATA"
    ),
    host: str = option(
        "the address to listen at; if it is not this machine's own, a token is needed",
        default="127.0.0.1",
    ),
    port: int = option("the port to listen at; 0 takes a free one", default=8765, min=0, max=65535),
    token: str | None = option(
        "the password that each request must carry  "
        "[default: a new one if others can reach the server]",
        envvar="UNIBCT_TOKEN",
    ),
    device: DeviceOption = "auto",
) -> None:
    """Show a gallery in the browser: search by the old and the new model, side by side.

    The page tells the upgrade as a story, and has buttons for backfill, pause and rollback. It
    loads nothing from other servers. The JSON interface behind it is described at /openapi.json.
    Needs the extra serve: pip install 'unibct[serve]'.
    """
    from unibct.gallery.page import serve_gallery

    serve_gallery(path, host=host, port=port, images=images, token=token, device=device)

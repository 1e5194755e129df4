"""What the commands of a gallery share: their group, options, and how a gallery is opened."""

import json
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unibct.cli.options import app, listing
from unibct.data.readers import describe_data_briefly
from unibct.gallery.engines import ENGINES

if TYPE_CHECKING:
    from unibct.gallery.gallery import Gallery

_ENGINE_LISTING = listing("Engines", {name: e.description for name, e in ENGINES.items()})

gallery_app = typer.Typer(
    help=(
        "Carry an upgrade out: a gallery that several models search.\n\n"
        "A gallery is a folder G. `create` makes it with the model that searches, `add` fills it. "
        "`upgrade` lets a new model search the same rows, if a certificate of `unibct evaluate "
        "--certify` allows it. `backfill` embeds rows again while search goes on, and `rollback` "
        "goes back."
    ),
    epilog=_ENGINE_LISTING,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(gallery_app, name="gallery")

GalleryArgument = Annotated[Path, typer.Argument(metavar="G", help="the gallery's folder")]
RowsArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help=f"images ({describe_data_briefly()}), images without classes (a file, or a folder of "
        "files), or embeddings:PATH in any form",
    ),
]
EngineOption = Annotated[str, typer.Option(help=f"where the rows are: {', '.join(ENGINES)}")]
AtOption = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS", help="the address of the engine's server, without its password"
    ),
]
CertificateOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--certificate",
        metavar="FILE",
        help="a certificate from unibct evaluate --certify; may be repeated",
    ),
]


@contextmanager
def opened_gallery(path: Path, device: str) -> "Generator[Gallery]":
    """Open a gallery for the duration of a block, with progress on standard error."""
    from unibct.gallery.gallery import Gallery
    from unibct.progress import terminal_progress

    with terminal_progress(), closing(Gallery(path, device=device)) as gallery:
        yield gallery


def say(as_json: bool, value: dict[str, Any], text: str) -> None:
    """Print a result, for machines or for people."""
    print(json.dumps(value) if as_json else text)


def doubt_text(kinds: Sequence[str]) -> str:
    """Say that the test classes of certificates are not known to be unseen."""
    return (
        f"! for rows of {', '.join(kinds)} it is not known that the test classes of their "
        "certificate were new to the models: it may promise too much"
    )

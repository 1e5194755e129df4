"""The commands for the rows of a gallery: create, add, remove, index, copy and delete."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unibct.cli.gallery.options import (
    AtOption,
    CertificateOption,
    EngineOption,
    GalleryArgument,
    RowsArgument,
    gallery_app,
    opened_gallery,
    say,
)
from unibct.cli.options import (
    DeviceOption,
    ImagesOption,
    JsonOption,
    SkipOption,
    argument,
    examples,
    flag,
    option,
)
from unibct.embedders import describe_embedders
from unibct.gallery.engines import EMBEDDED

if TYPE_CHECKING:
    from unibct.gallery.gallery import Gallery


@gallery_app.command(
    "create",
    epilog=examples(
        "unibct gallery create G --model models/old",
        "unibct gallery create G --model onnx:old.onnx --engine milvus --at http://HOST:19530",
        "unibct gallery create G --model models/old --engine postgresql --at postgresql://me@host/db",
    ),
)
def create_command(
    path: GalleryArgument,
    model: str = option(
        f"makes and searches the rows: {describe_embedders()}", "MODEL", default=...
    ),
    engine: EngineOption = EMBEDDED,
    at: AtOption = "",
    certificate: CertificateOption = None,
    known: str = option(
        "how many known queries to keep of what is added first, or queries of your own",
        "N|DATA",
        default="32",
    ),
    keep_images: bool = option(
        "keep the images of known queries, so that a later model can be tried on them; "
        "without them only the model that embedded them is",
        default=True,
    ),
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make an empty gallery.

    The model is copied into it, so that queries can be made as long as the gallery lives. A few
    rows are kept as known queries: a later step is undone if more than a tenth of those that found
    a mate before it find none after it.
    Passwords of servers come from the environment: PGPASSWORD or ~/.pgpass, UNIBCT_MILVUS_TOKEN.
    """
    from unibct.gallery.gallery import Gallery
    from unibct.gallery.sources import open_source
    from unibct.progress import terminal_progress

    own_queries = partial(open_source, known, need_classes=True, skip_bad=skip_bad_images)
    with terminal_progress():
        queries = int(known) if known.isdecimal() else own_queries()
        gallery = Gallery.create(
            path,
            model,
            engine=engine,
            at=at,
            certificates=certificate or [],
            known=queries,
            keep_images=keep_images,
            device=device,
        )
    searching = gallery.folder.state.searching
    say(
        as_json,
        {"gallery": str(path), "searching": searching.fingerprint, "engine": engine},
        f"{path}: an empty gallery, searched by {searching.name} ({searching.fingerprint})",
    )


@gallery_app.command(
    "add",
    epilog=examples(
        "unibct gallery add G photographs/",
        "unibct gallery add G photographs/ --metadata prices.csv",
        "unibct gallery add G old.npy --made-by models/old",
    ),
)
def add_command(
    path: GalleryArgument,
    data: RowsArgument,
    images: ImagesOption = None,
    metadata: Path | None = option("CSV or JSON Lines with a column id, and any others", "FILE"),
    made_by: str = option(
        "the model or fingerprint that made the embeddings, if their file does not say",
        "MODEL",
        default="",
    ),
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Add images, or embeddings, as rows.

    Images are embedded by the model that searches. Rows that are there already are left alone,
    so a command that was stopped can be run again. A row whose id is there with other content is
    refused.
    """
    from unibct.gallery.sources import open_source

    with opened_gallery(path, device) as gallery:
        made_by_model = _fingerprint(gallery, made_by)
        source = open_source(data, list_file=images, metadata=metadata, skip_bad=skip_bad_images)
        result = gallery.add(source, made_by=made_by_model)
    left_out = f", {result.skipped:,} unreadable images left out" if result.skipped else ""
    say(
        as_json,
        {"added": result.added, "present": result.present, "skipped": result.skipped},
        f"{path}: {result.added:,} rows added, {result.present:,} were there already{left_out}",
    )


@gallery_app.command(
    "remove",
    epilog=examples("unibct gallery remove G ID1 ID2", "unibct gallery remove G --ids gone.txt"),
)
def remove_command(
    path: GalleryArgument,
    ids: list[str] | None = argument("ids of the rows to remove", "ID", default=None),
    list_file: Path | None = option("a file with one id per line", "LIST", "--ids"),
    as_json: JsonOption = False,
) -> None:
    """Remove rows for good: all of their vectors, and their known queries.

    A rollback does not bring them back.
    """
    from unibct.data.image_set import read_id_list
    from unibct.errors import UserError

    wanted = list(ids or [])
    if list_file is not None:
        wanted += read_id_list(list_file)
    if not wanted:
        raise UserError("name the rows to remove: ids, or a file with --ids")
    with opened_gallery(path, "cpu") as gallery:
        removed = gallery.remove(wanted)
    say(as_json, {"removed": removed}, f"{path}: {removed:,} rows removed for good")


@gallery_app.command("index", epilog=examples("unibct gallery index G"))
def index_command(path: GalleryArgument, as_json: JsonOption = False) -> None:
    """Build the index for `search --approximate`, or build it again, and measure its recall.

    A backfill measures it too, and builds it again when it has lost more than 0.02 of recall.
    """
    with opened_gallery(path, "cpu") as gallery:
        result = gallery.index()
        names = {kind: row_kind.name for kind, row_kind in gallery.folder.state.kinds.items()}
    lines = [
        f"rows of {names[entry.kind]}: recall@10 {entry.recall:.3f}"
        for entry in result
        if entry.recall is not None
    ]
    say(
        as_json,
        {"indexes": [entry.as_json() for entry in result]},
        "\n".join(lines) or f"{path}: there are no rows to index",
    )


@gallery_app.command(
    "copy",
    epilog=examples("unibct gallery copy G G2 --engine milvus --at http://127.0.0.1:19530"),
)
def copy_command(
    path: GalleryArgument,
    target: Path = argument("a new folder", "TARGET"),
    engine: EngineOption = EMBEDDED,
    at: AtOption = "",
    as_json: JsonOption = False,
) -> None:
    """Copy a gallery with its history to another engine, or another place."""
    with opened_gallery(path, "cpu") as gallery:
        rows = gallery.copy(target, engine=engine, at=at)
    say(as_json, {"rows": rows}, f"{target}: {rows:,} rows copied, engine {engine}")


@gallery_app.command(
    "delete", epilog=examples("unibct gallery delete G", "unibct gallery delete G --yes")
)
def delete_command(
    path: GalleryArgument,
    yes: bool = flag("--yes", "do not ask"),
    as_json: JsonOption = False,
) -> None:
    """Delete a gallery for good: its rows, also those on a server, its models and its history.

    Copies that `copy` has made stay. If the server cannot be reached, nothing is deleted.
    """
    from unibct.errors import UserError

    with opened_gallery(path, "cpu") as gallery:
        state = gallery.folder.state
        place = f"{path} ({state.engine}{f' at {state.address}' if state.address else ''})"
        if not yes:
            if not sys.stdin.isatty():
                raise UserError(
                    f"{place} would be deleted with all of its rows; confirm with --yes"
                )
            question = f"Delete {place} with its rows, models and history?"
            try:
                agreed = typer.confirm(question, err=True)
            except typer.Abort:  # Ctrl-C or Ctrl-D
                agreed = False
            if not agreed:
                raise UserError("nothing is deleted")
        gallery.delete()
    say(as_json, {"deleted": str(path)}, f"{path}: deleted")


def _fingerprint(gallery: "Gallery", made_by: str) -> str:
    """Return the fingerprint that --made-by stands for."""
    if not made_by or made_by in gallery.folder.state.kinds:
        return made_by
    return gallery.folder.opener.open(made_by).fingerprint

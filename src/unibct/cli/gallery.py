"""The commands of a gallery: rows in a database, a model that searches them, and a way back."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unibct.cli.options import DeviceOption, ImagesOption, app, examples, listing
from unibct.data.readers.table import describe_data_briefly
from unibct.embedders.table import describe_embedders
from unibct.gallery.engines.table import EMBEDDED, ENGINES

if TYPE_CHECKING:
    from unibct.gallery.gallery import Answer, Gallery
    from unibct.gallery.status import GalleryStatus
    from unibct.progress import Progress

_ENGINE_LISTING = listing("Engines", {name: e.description for name, e in ENGINES.items()})

gallery_app = typer.Typer(
    help=(
        "Carry an upgrade out: rows in a database, searched by any model with a certificate.\n\n"
        "A gallery is a folder G. `create` makes it with the model that searches, `add` fills it. "
        "`upgrade` lets a new model search the same rows, if `unibct evaluate --certify` wrote a "
        "certificate for it. `backfill` embeds rows again while search goes on, and `rollback` "
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
        help=f"images ({describe_data_briefly()}), or embeddings:PATH in any form",
    ),
]
OptionalRows = Annotated[
    str | None,
    typer.Argument(metavar="[DATA]", help="the images of the rows, or their new embeddings"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
EngineOption = Annotated[str, typer.Option(help=f"where the rows are: {', '.join(ENGINES)}")]
AtOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="the address of the engine's server, no password")
]
CertificateOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--certificate", metavar="FILE", help="from unibct evaluate --certify; may be repeated"
    ),
]


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
    model: Annotated[
        str, typer.Option(metavar="MODEL", help=f"that makes the rows: {describe_embedders()}")
    ],
    engine: EngineOption = EMBEDDED,
    at: AtOption = "",
    certificate: CertificateOption = None,
    known: Annotated[
        int, typer.Option(min=0, help="known queries to keep of what is added first")
    ] = 32,
    keep_images: Annotated[
        bool,
        typer.Option(
            "--keep-images/--no-keep-images",
            help="keep the images of known queries, so that a later model can be tried on them",
        ),
    ] = True,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make an empty gallery.

    The model is copied into it, so that queries can be made as long as the gallery lives. A few
    rows are kept as known queries: they must find their mates before and after every later step.
    Passwords of servers come from the environment: PGPASSWORD or ~/.pgpass, UNIBCT_MILVUS_TOKEN.
    """
    from unibct.distributed.device import pick_device
    from unibct.gallery.gallery import Gallery

    gallery = Gallery.create(
        path,
        model,
        engine=engine,
        at=at,
        certificates=certificate or [],
        known=known,
        keep_images=keep_images,
        device=pick_device(device),
    )
    searching = gallery.folder.state.searching
    _say(
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
    metadata: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV or JSON Lines with a column id, and any others"),
    ] = None,
    made_by: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="the model or fingerprint that made the embeddings, if their file does not say",
        ),
    ] = "",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Add images, or embeddings, as rows.

    Images are embedded by the model that searches. Rows that are there already are left alone,
    so a command that was stopped can be run again. A row whose id is there with other content is
    refused.
    """
    with _opened(path, device) as gallery:
        made_by_model = _fingerprint(gallery, made_by)
        result = gallery.add(data, list_file=images, metadata=metadata, made_by=made_by_model)
    _say(
        as_json,
        {"added": result.added, "present": result.present},
        f"{path}: {result.added:,} rows added, {result.present:,} were there already",
    )


@gallery_app.command(
    "search",
    epilog=examples(
        "unibct gallery search G queries/ --k 5",
        "unibct gallery search G queries/ --far 1e-3 --where colour=red --json",
        "unibct gallery search G queries/ --old-scores --threshold 0.62",
        "unibct gallery search G queries/ --encoders blend --lazy photographs/",
    ),
)
def search_command(
    path: GalleryArgument,
    data: RowsArgument,
    images: ImagesOption = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="rows per query")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="only rows with this metadata; the same key again: or, another key: and",
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="leave out rows with a lower score")
    ] = None,
    far: Annotated[
        float | None,
        typer.Option(
            help="leave out rows below the certificate's threshold for this false accept rate, "
            "for each kind of rows"
        ),
    ] = None,
    old_scores: Annotated[
        bool,
        typer.Option("--old-scores", help="scores on the old model's scale, for fixed thresholds"),
    ] = False,
    encoders: Annotated[
        str,
        typer.Option(help="what searches older rows: new, two (their own model), blend (both)"),
    ] = "new",
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="share of the new model in a blend")
    ] = 0.5,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="use the index (unibct gallery index)")
    ] = False,
    lazy: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="images of rows: embed older hits again, rank again, store"
        ),
    ] = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="count hits, for backfill --order asked")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Search with images, or with embeddings by the model that searches.

    One ranking holds rows of all models: scores of older rows are put on the scale of new ones,
    as their certificate says. With --json there is one object a line for each query.
    """
    from unibct.gallery.search import SearchRequest

    request = SearchRequest(
        k, _where(where or []), approximate, threshold, far, old_scores, encoders, alpha
    )
    with _opened(path, device) as gallery:
        answers = gallery.search(
            data, request, list_file=images, lazy_images=lazy, remember=remember
        )
        state = gallery.folder.state
    if as_json:
        for answer in answers:
            print(json.dumps(answer.as_json(), ensure_ascii=False))
        return
    names = {kind: maker.name for kind, maker in state.makers.items()}
    for answer in answers:
        print(_answer(answer, names))
    if state.is_forced:
        print("! some rows are searched without a certificate that says compatible (--force)")


@gallery_app.command(
    "upgrade",
    epilog=examples(
        "unibct evaluate TEST --query models/new --gallery models/old --certify new.json",
        "unibct gallery upgrade G --model models/new --certificate new.json --dry-run",
        "unibct gallery upgrade G --model models/new --certificate new.json",
    ),
)
def upgrade_command(
    path: GalleryArgument,
    model: Annotated[str, typer.Option(metavar="NEW", help="the model that is to search")],
    certificate: CertificateOption = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="without a certificate; recorded, and shown from then on"),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, say what it costs, change nothing")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Let a new model search the rows as they are.

    Needs a certificate that says compatible for every model that made rows. No row is changed;
    rows that are added later come from the new model. `rollback` goes back.
    """
    with _opened(path, device) as gallery:
        result = gallery.upgrade(model, certificate or [], force=force, dry_run=dry_run)
    verb = "would search" if result.dry_run else "searches"
    lines = [
        f"{path}: {model} ({result.model.fingerprint}) {verb} {result.old_rows:,} rows of older "
        "models as they are",
        result.savings.summary(),
    ]
    if result.forced:
        lines.append(f"! forced for rows of {', '.join(result.forced)}: this is recorded")
    if not result.asked and not result.dry_run:
        lines.append("no known query could be asked: there are none, or none with an image")
    _say(as_json, result.as_json(), "\n".join(lines))


@gallery_app.command(
    "backfill",
    epilog=examples(
        "unibct gallery backfill G photographs/ --share 0.5",
        "unibct gallery backfill G photographs/ --order farthest",
        "unibct gallery backfill G --map maps/forward",
        "unibct gallery backfill G --finish",
    ),
)
def backfill_command(
    path: GalleryArgument,
    data: OptionalRows = None,
    share: Annotated[
        float, typer.Option(help="of all rows that are the new model's own in the end")
    ] = 1.0,
    ids: Annotated[
        Path | None, typer.Option(metavar="LIST", help="only these rows, one id per line")
    ] = None,
    order: Annotated[
        str,
        typer.Option(help="which rows first: random, farthest (from their label's mean), asked"),
    ] = "random",
    seed: Annotated[int, typer.Option(min=0, help="of the random order")] = 0,
    map_folder: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="MAP", help="without images: a map of unibct adapt --direction forward"
        ),
    ] = None,
    pause: Annotated[
        bool, typer.Option("--pause", help="stop a backfill that runs in another process")
    ] = False,
    abort: Annotated[bool, typer.Option("--abort", help="undo the last backfill")] = False,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish", help="delete the old vectors of rows that have new ones, for good"
        ),
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Embed rows of older models again, while search goes on.

    Every batch is durable: after Ctrl-C or a kill, run the command again to continue. The old
    vectors stay beside the new ones until --finish, and --abort or `rollback` goes back to them.
    """
    with _opened(path, device) as gallery:
        if pause:
            gallery.pause()
            _say(as_json, {"paused": True}, f"{path}: the backfill stops after its batch")
        elif abort:
            undone = gallery.abort()
            _say(as_json, undone.as_json(), f"{path}: the backfill of step {undone.to} is undone")
        elif finish:
            deleted = gallery.finish()
            message = f"{path}: {deleted:,} old vectors deleted; rollback now needs the images"
            _say(as_json, {"deleted": deleted}, message)
        else:
            wanted = None if ids is None else ids.read_text(encoding="utf-8").split("\n")
            wanted = wanted and [line.strip("\r") for line in wanted if line.strip()]
            result = gallery.backfill(
                data, map_folder=map_folder, share=share, ids=wanted, order=order, seed=seed
            )
            lines = [
                f"{path}: {result.rows:,} rows embedded again; {result.own:,} of "
                f"{result.total:,} rows are the new model's own"
                + ("; paused: run the command again to continue" if result.paused else "")
            ]
            if result.missing:
                lines.append(
                    f"{result.missing:,} rows have no image in {data}, first "
                    f"{result.first_missing!r}; they stay as they are"
                )
            _say(as_json, result.as_json(), "\n".join(lines))


@gallery_app.command("rollback", epilog=examples("unibct gallery rollback G --to 3"))
def rollback_command(
    path: GalleryArgument,
    data: OptionalRows = None,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="STEP", help="go back to before this step  [default: the last upgrade]"
        ),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Let the earlier model search again, with the rows as they were before the upgrade.

    `status` shows the steps; --to goes back to before any upgrade or backfill. Rows that were added since then are kept. Those that the earlier
    model did not make it cannot search, unless their images are given as DATA.
    """
    with _opened(path, device) as gallery:
        result = gallery.rollback(to, data)
        name = gallery.folder.state.searching.name
    lines = [f"{path}: as before step {result.to}; {name} ({result.searching}) searches"]
    if result.restored:
        lines.append(f"{result.restored:,} rows were embedded by it from the given images")
    if result.unsearchable:
        lines.append(
            f"{result.unsearchable:,} rows of newer models are kept, but {name} cannot search "
            f"them, first {result.first_unsearchable!r}; give their images as DATA"
        )
    _say(as_json, result.as_json(), "\n".join(lines))


@gallery_app.command("remove", epilog=examples("unibct gallery remove G --ids gone.txt"))
def remove_command(
    path: GalleryArgument,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="of rows")] = None,
    list_file: Annotated[
        Path | None, typer.Option("--ids", metavar="LIST", help="a file with one id per line")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove rows for good: all of their vectors, and their known queries.

    A rollback does not bring them back.
    """
    from unibct.errors import UserError

    wanted = list(ids or [])
    if list_file is not None:
        lines = list_file.read_text(encoding="utf-8").split("\n")
        wanted += [line.strip("\r") for line in lines if line.strip()]
    if not wanted:
        raise UserError("name the rows to remove: ids, or a file with --ids")
    with _opened(path, "cpu") as gallery:
        removed = gallery.remove(wanted)
    _say(as_json, {"removed": removed}, f"{path}: {removed:,} rows removed for good")


@gallery_app.command("index", epilog=examples("unibct gallery index G"))
def index_command(path: GalleryArgument, as_json: JsonOption = False) -> None:
    """Build the index for `search --approximate`, or build it again, and measure its recall.

    A backfill measures it too, and builds it again when it has lost more than 0.02 of recall.
    """
    with _opened(path, "cpu") as gallery:
        result = gallery.index()
        names = {kind: maker.name for kind, maker in gallery.folder.state.makers.items()}
    lines = [
        f"rows of {names[entry.kind]}: recall@10 {entry.recall:.3f}"
        for entry in result
        if entry.recall is not None
    ]
    _say(as_json, {"indexes": [entry.as_json() for entry in result]}, "\n".join(lines))


@gallery_app.command("status", epilog=examples("unibct gallery status G --json"))
def status_command(path: GalleryArgument, as_json: JsonOption = False) -> None:
    """Show rows, models, who searches, the steps that were taken, and what has been saved."""
    with _opened(path, "cpu") as gallery:
        status = gallery.status()
    _say(as_json, status.as_json(), _status(path, status))


@gallery_app.command("verify", epilog=examples("unibct gallery verify G"))
def verify_command(path: GalleryArgument, as_json: JsonOption = False) -> None:
    """Read everything and compare it with its digests; exits with code 1 if something differs."""
    with _opened(path, "cpu") as gallery:
        problems = gallery.verify()
        rows = sum(gallery.status().live.values())
    message = "\n".join(problems) or f"{path}: all {rows:,} rows, models and certificates are right"
    _say(as_json, {"problems": problems, "rows": rows}, message)
    if problems:
        raise typer.Exit(1)


@gallery_app.command(
    "copy",
    epilog=examples("unibct gallery copy G G2 --engine milvus --at http://127.0.0.1:19530"),
)
def copy_command(
    path: GalleryArgument,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="a new folder")],
    engine: EngineOption = EMBEDDED,
    at: AtOption = "",
    as_json: JsonOption = False,
) -> None:
    """Copy a gallery with its history to another engine, or another place."""
    with _opened(path, "cpu") as gallery:
        rows = gallery.copy(target, engine=engine, at=at)
    _say(as_json, {"rows": rows}, f"{target}: {rows:,} rows copied, engine {engine}")


class _Opened:
    """A gallery for the duration of a block, with progress on standard error."""

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._device = device

    def __enter__(self) -> "Gallery":
        from unibct.gallery.gallery import Gallery
        from unibct.progress import terminal_progress

        self._progress: Any = terminal_progress()
        progress: Progress = self._progress.__enter__()
        try:
            self._gallery = Gallery(self._path, device=_device(self._device), progress=progress)
        except BaseException as error:
            self._progress.__exit__(type(error), error, error.__traceback__)
            raise
        return self._gallery

    def __exit__(self, *error: Any) -> None:
        self._gallery.close()
        self._progress.__exit__(*error)


def _opened(path: Path, device: str) -> _Opened:
    return _Opened(path, device)


def _device(name: str) -> Any:
    if name == "cpu":
        return name
    from unibct.distributed.device import pick_device

    return pick_device(name)


def _fingerprint(gallery: "Gallery", made_by: str) -> str:
    """Return the fingerprint that --made-by stands for."""
    if not made_by or made_by in gallery.folder.state.makers:
        return made_by
    return gallery.folder.opening.open(made_by).fingerprint


def _where(texts: list[str]) -> dict[str, list[Any]]:
    """Return the filter that KEY=VALUE texts stand for."""
    from unibct.errors import UserError
    from unibct.gallery.sources import parse_scalar

    where: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"--where {text}: write KEY=VALUE")
        where.setdefault(key, []).append(parse_scalar(value))
    return where


def _say(as_json: bool, value: dict[str, Any], text: str) -> None:
    print(json.dumps(value, ensure_ascii=False) if as_json else text)


def _answer(answer: "Answer", names: dict[str, str]) -> str:
    """Return one query's hits as lines."""
    lines = [answer.query if answer.label is None else f"{answer.query} ({answer.label})"]
    for rank, hit in enumerate(answer.hits, start=1):
        label = "" if hit.label is None else f"  {hit.label}"
        lines.append(f"  {rank:>3}  {hit.score:.4f}  {hit.id}{label}  [{names[hit.model]}]")
    if not answer.hits:
        lines.append("  nothing found")
    return "\n".join(lines)


def _status(path: Path, status: "GalleryStatus") -> str:
    """Return the status for people."""
    state = status.state
    values = status.as_json()
    lines = [
        f"{path}: {values['rows']:,} rows, engine {state.engine}"
        + (f" at {state.address}" if state.address else ""),
        f"searched by {state.searching.name} ({state.standing.searching})",
    ]
    for kind, rows in status.live.items():
        share = rows / max(1, values["rows"])
        replaced = status.replaced.get(kind, 0)
        beside = f", {replaced:,} old vectors kept until backfill --finish" if replaced else ""
        lines.append(
            f"  {rows:>10,} rows ({share:4.0%}) of {state.makers[kind].name}, "
            f"{values['row_types'][kind]}{beside}"
        )
    if status.forced:
        lines.append(f"! forced, without a certificate: {', '.join(status.forced)}")
    if status.unsearchable:
        lines.append(f"! {status.unsearchable:,} rows cannot be searched by this model")
    unfinished = state.unfinished
    if unfinished is not None:
        lines.append(f"a backfill is under way or paused (step {unfinished.number})")
    if status.savings.rows:
        lines.append(f"saved: {status.savings.summary()}")
    lines.append(f"{status.known} known queries")
    lines.append("steps:")
    for step in state.steps:
        mark = " (undone)" if step.undone else "" if step.done else " (not complete)"
        lines.append(f"  {step.number:>4}  {step.date}  {step.action}{mark}")
    return "\n".join(lines)

"""The commands that carry an upgrade out: upgrade, backfill and rollback."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unibct.cli.gallery.options import (
    CertificateOption,
    GalleryArgument,
    doubt_text,
    gallery_app,
    opened_gallery,
    say,
)
from unibct.cli.options import (
    DeviceOption,
    JsonOption,
    SkipOption,
    argument,
    examples,
    flag,
    option,
)
from unibct.errors import UserError
from unibct.gallery.orders import ORDERS, RANDOM

if TYPE_CHECKING:
    from unibct.gallery.backfill import Backfilled
    from unibct.gallery.gallery import Gallery

_ORDERS = ", ".join(f"{name} ({order.meaning})" for name, order in ORDERS.items())


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
    model: str = option("the model that will search the gallery", "NEW", default=...),
    certificate: CertificateOption = None,
    force: bool = flag(
        "--force", "upgrade without a certificate that allows it; recorded, and shown from then on"
    ),
    dry_run: bool = flag(
        "--dry-run",
        "check model and certificates, say what it costs, change nothing; known queries "
        "are not asked",
    ),
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Let a new model search the rows as they are.

    Needs a certificate for every model that made rows, which says compatible of single images and
    was not made over seen classes. No row is changed; rows that are added later come from the new
    model. `rollback` goes back. If the model searches already, --certificate is recorded, such as
    after --force.
    """
    from unibct.gallery.known_queries import WHY_UNTESTED

    with opened_gallery(path, device) as gallery:
        result = gallery.upgrade(model, certificate or [], force=force, dry_run=dry_run)
    verb = "would search" if result.dry_run else "searches"
    lines = [
        f"{path}: {model} ({result.model.fingerprint}) {verb} {result.old_rows:,} rows of older "
        "models as they are",
        result.savings.summary(),
    ]
    if result.certified:
        lines.append(f"the certificate {'would be' if result.dry_run else 'is'} recorded")
    if result.forced:
        lines.append(f"! forced for rows of {', '.join(result.forced)}: this is recorded")
    if result.doubtful:
        lines.append(doubt_text(result.doubtful))
    if not result.known_queries and not result.dry_run:
        lines.append(f"! no known query has tested the upgrade: {WHY_UNTESTED}")
    say(as_json, result.as_json(), "\n".join(lines))


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
    data: str | None = argument(
        "the images of the rows, or embeddings of them by the new model", "DATA", default=None
    ),
    share: float = option("go on until this share of all rows is the new model's own", default=1.0),
    ids: Path | None = option("take only the rows in this file, one id per line", "LIST"),
    order: str = option(f"which rows first: {_ORDERS}", default=RANDOM),
    seed: int = option("chooses the random order", default=0, min=0),
    map_folder: Path | None = option(
        "use this map instead of images; from unibct adapt --direction forward", "MAP", "--map"
    ),
    pause: bool = flag("--pause", "stop a backfill that runs in another process"),
    abort: bool = flag("--abort", "undo the last backfill"),
    finish: bool = flag("--finish", "delete the old vectors of rows that have new ones, for good"),
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Embed rows of older models again, while search goes on.

    Every batch is durable: after Ctrl-C or a kill, run the command again to continue. The old
    vectors stay beside the new ones until --finish, and --abort or `rollback` goes back to them.
    """
    from unibct.data.image_set import read_id_list
    from unibct.gallery.sources import open_source

    given = [data, ids, map_folder]
    _require_one_action({"--pause": pause, "--abort": abort, "--finish": finish}, given)
    with opened_gallery(path, device) as gallery:
        if pause:
            gallery.pause()
            say(as_json, {"paused": True}, f"{path}: the backfill stops after its batch")
        elif abort:
            undone = gallery.abort()
            say(as_json, undone.as_json(), f"{path}: the backfill of step {undone.to} is undone")
        elif finish:
            _finish(gallery, path, as_json)
        else:
            wanted = None if ids is None else list(read_id_list(ids))
            rows = None if data is None else open_source(data, skip_bad=skip_bad_images)
            result = gallery.backfill(
                rows, map_folder=map_folder, share=share, ids=wanted, order=order, seed=seed
            )
            say(as_json, result.as_json(), _backfill_text(path, data, result))


@gallery_app.command(
    "rollback",
    epilog=examples(
        "unibct gallery rollback G",
        "unibct gallery rollback G photographs/",
        "unibct gallery rollback G --to 3",
    ),
)
def rollback_command(
    path: GalleryArgument,
    data: str | None = argument(
        "images of rows that have no vector of the earlier model, or its embeddings",
        "DATA",
        default=None,
    ),
    to: int | None = option("go back to before this step  [default: the last upgrade]", "STEP"),
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Let the earlier model search again, with the rows as they were before the upgrade.

    `status` shows the steps; --to goes back to before any upgrade or backfill. Rows that were
    added since then are kept. The earlier model cannot search those that a newer one made, unless
    their images are given as DATA. After backfill --finish, DATA must have all images. Rows are
    made from DATA first: until then searches are as before. A rollback that was interrupted is
    completed by the same command, which goes no further back.
    """
    from unibct.gallery.sources import open_source

    with opened_gallery(path, device) as gallery:
        rows = None if data is None else open_source(data, skip_bad=skip_bad_images)
        result = gallery.rollback(to, rows)
        name = gallery.folder.state.searching.name
    lines = [f"{path}: as before step {result.to}; {name} ({result.searching}) searches again"]
    if result.restored:
        lines.append(f"{result.restored:,} rows were embedded by it from the given images")
    if result.skipped:
        lines.append(f"{result.skipped:,} unreadable images left out")
    if result.unsearchable:
        lines.append(
            f"{result.unsearchable:,} rows of newer models are kept, but {name} cannot search "
            f"them, first {result.first_unsearchable!r}; it makes them again from their images: "
            f"unibct gallery add {path} DATA, with the same --metadata"
        )
    say(as_json, result.as_json(), "\n".join(lines))


def _require_one_action(actions: dict[str, bool], given: Sequence[object]) -> None:
    """Refuse two actions, and an action with rows: one of them would be ignored."""
    asked = [name for name, is_asked in actions.items() if is_asked]
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} do different things: give one of them")
    if asked and any(value is not None for value in given):
        raise UserError(f"{asked[0]} embeds no rows: leave DATA, --ids and --map out")


def _finish(gallery: "Gallery", path: Path, as_json: bool) -> None:
    deleted, older = gallery.finish(), gallery.status().savings.rows
    message = f"{path}: {deleted:,} old vectors deleted"
    if deleted:
        message += "; rollback now needs the images"
    if older:
        message += f"\n{older:,} rows of older models have no new vector; they stay as they are"
    say(as_json, {"deleted": deleted, "older_rows": older}, message)


def _backfill_text(path: Path, data: str | None, result: "Backfilled") -> str:
    """Return what a backfill has done, for people."""
    made, whose = "embedded again", "the new model's own"
    if data is None:
        made, whose = "mapped", "in the space of the new model"
    lines = [
        f"{path}: {result.rows:,} rows {made}; "
        f"{result.rows_in_space:,} of {result.total:,} rows are {whose}"
        + ("; paused: run the command again to continue" if result.paused else "")
    ]
    if result.missing:
        lines.append(
            f"{result.missing:,} rows have no image in {data}, first {result.first_missing!r}; "
            "they stay as they are"
        )
    if result.skipped:
        lines.append(
            f"{result.skipped:,} unreadable images left out; their rows stay as they are, and the "
            "next backfill tries them again"
        )
    if result.curve:
        first, lowest = result.curve[0][1], min(share for _, share in result.curve)
        lines.append(
            f"known queries with a mate among their first rows: {first:.0%} before, {lowest:.0%} "
            f"at the lowest of {len(result.curve)} checks, {result.curve[-1][1]:.0%} now"
        )
    return "\n".join(lines)

"""The command that searches a gallery."""

import json
import sys
from typing import TYPE_CHECKING

from unibct.cli.gallery.options import (
    GalleryArgument,
    RowsArgument,
    gallery_app,
    opened_gallery,
)
from unibct.cli.options import (
    DeviceOption,
    ImagesOption,
    JsonOption,
    SkipOption,
    examples,
    flag,
    option,
)
from unibct.gallery.search_request import NEW_QUERY, describe_encoders

if TYPE_CHECKING:
    from unibct.gallery.gallery import Answer


@gallery_app.command(
    "search",
    epilog=examples(
        "unibct gallery search G queries/ --k 5",
        "unibct gallery search G photograph.jpg",
        "unibct gallery search G queries/ --far 1e-3 --where colour=red --json",
        "unibct gallery search G queries/ --old-scores --threshold 0.62",
        "unibct gallery search G queries/ --encoders blend --lazy photographs/",
    ),
)
def search_command(
    path: GalleryArgument,
    data: RowsArgument,
    images: ImagesOption = None,
    k: int = option("rows per query", None, "--k", "-k", default=10, min=1),
    where: list[str] | None = option(
        "only rows with this metadata; one key twice means either value, two keys mean both",
        "KEY=VALUE",
    ),
    threshold: float | None = option("leave out rows with a lower score"),
    far: float | None = option(
        "leave out rows below the threshold for this false accept rate; the certificate has "
        "one for each kind of rows"
    ),
    old_scores: bool = flag(
        "--old-scores", "scores on the old model's scale, for clients with a fixed threshold"
    ),
    encoders: str = option(f"whose query older rows get: {describe_encoders()}", default=NEW_QUERY),
    alpha: float | None = option(
        "share of the new model in a blend  [default: the certificate's, else 0.5]", min=0, max=1
    ),
    approximate: bool = flag("--approximate", "use the index (unibct gallery index)"),
    lazy: str | None = option(
        "images of rows: older hits are embedded again, stored and ranked", "DATA"
    ),
    remember: bool = flag("--remember", "count the hits of older rows, for backfill --order asked"),
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Search with images, or with embeddings by the model that searches.

    Queries need no class: DATA may also be one image, or a folder of images.
    One ranking holds rows of all models: scores of older rows are put on the scale of new ones,
    as their certificate says. With --json there is one object a line for each query.
    """
    from unibct.gallery.search_request import SearchRequest
    from unibct.gallery.sources import open_source, parse_where

    request = SearchRequest(
        k, parse_where(where or []), approximate, threshold, far, old_scores, encoders, alpha
    )
    with opened_gallery(path, device) as gallery:
        queries = open_source(data, list_file=images, skip_bad=skip_bad_images)
        rows = None if lazy is None else open_source(lazy, skip_bad=skip_bad_images)
        answers = gallery.search(queries, request, row_images=rows, remember=remember)
        state = gallery.folder.state
        is_empty = not any(answer.hits for answer in answers) and not any(
            gallery.status().live.values()
        )
    if is_empty:
        print(f"note: {path} has no rows; fill it: unibct gallery add", file=sys.stderr)
    if as_json:
        for answer in answers:
            print(json.dumps(answer.as_json()))
        return
    names = {kind: row_kind.name for kind, row_kind in state.kinds.items()}
    for answer in answers:
        print(_answer(answer, names))
    if state.is_forced:
        print("! some rows are searched without a certificate that allows it (--force)")


def _answer(answer: "Answer", names: dict[str, str]) -> str:
    """Return one query's hits as lines."""
    lines = [answer.query if answer.label is None else f"{answer.query} ({answer.label})"]
    for rank, hit in enumerate(answer.hits, start=1):
        label = "" if hit.label is None else f"  {hit.label}"
        lines.append(f"  {rank:>3}  {hit.score:.4f}  {hit.id}{label}  [{names[hit.model]}]")
    if not answer.hits:
        lines.append("  nothing found")
    return "\n".join(lines)

"""The gallery as one object: everything that the command line offers, from Python."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unibct.data.image_set import ImageSet
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.gallery.adding import Added, add_rows, remove_rows
from unibct.gallery.backfill import (
    Backfilled,
    BackfillRequest,
    backfill_gallery,
    backfill_hits,
    finish_backfill,
    pause_backfill,
)
from unibct.gallery.creation import copy_gallery, create_gallery, delete_gallery
from unibct.gallery.engines import EMBEDDED
from unibct.gallery.gallery_folder import GalleryFolder
from unibct.gallery.indexing import IndexRecall, build_indexes
from unibct.gallery.known_queries import USUAL_COUNT
from unibct.gallery.orders import count_found
from unibct.gallery.rollback import RolledBack, abort_backfill, rollback_gallery
from unibct.gallery.rows import OLDER_ROW
from unibct.gallery.search import (
    Hit,
    Queries,
    checked_queries,
    note_guessed_threshold,
    note_useless_filter,
    search_source,
)
from unibct.gallery.search_request import SearchRequest, one_request
from unibct.gallery.sources import Source, note_unlabelled, open_source, with_fingerprint
from unibct.gallery.status import GalleryStatus, gallery_status, verify_gallery
from unibct.gallery.upgrade import Upgraded, upgrade_gallery

Data = str | Path | ImageSet | Embeddings | Source


class Gallery:
    """Rows that one or several models made, and the model that searches them.

    Example:
        >>> gallery = Gallery.create("gallery", model="models/old")
        >>> gallery.add("photographs/")
        >>> gallery.search("queries/", k=5)[0].hits[0].label
        >>> gallery.upgrade("models/new", certificates=["certificate.json"])
    """

    def __init__(self, path: str | Path, *, device: Any = "auto") -> None:
        """Open a gallery.

        Args:
            path: of its folder.
            device: where models compute.
        """
        self.folder = GalleryFolder(Path(path), device=device)
        _ = self.folder.state

    @staticmethod
    def create(
        path: str | Path,
        model: str | Path,
        *,
        engine: str = EMBEDDED,
        at: str = "",
        certificates: Sequence[str | Path] = (),
        known: int | Data = USUAL_COUNT,
        keep_images: bool = True,
        device: Any = "auto",
    ) -> "Gallery":
        """Make an empty gallery.

        Args:
            path: of a new folder.
            model: that makes and searches its rows.
            engine: a name from ``ENGINES``.
            at: the address of the engine's server.
            certificates: with thresholds of the model.
            known: how many known queries to keep of what is added first; or queries of your own,
                whose mates are the rows with their labels.
            keep_images: keep their images, so that any later model can be asked.
            device: where models compute.
        """
        folder = GalleryFolder(Path(path), device=device)
        queries = known if isinstance(known, int) else open_source(known, need_classes=True)
        place = (engine, at)
        create_gallery(
            folder, str(model), place, certificates, known=queries, keep_images=keep_images
        )
        return Gallery(path, device=device)

    def add(
        self,
        data: Data,
        *,
        list_file: Path | None = None,
        metadata: Path | None = None,
        made_by: str = "",
    ) -> Added:
        """Add images or embeddings; rows that are there already are left alone.

        Args:
            data: images, which the searching model embeds, or embeddings in any form. Images need
                no class: an image file, or a folder of them; their rows have no label.
            list_file: a file with one id per line; only these are added.
            metadata: a CSV or JSON Lines file with a column ``id``.
            made_by: the fingerprint of the model that made the embeddings, if the file does not
                say it.
        """
        source = open_source(data, list_file=list_file, metadata=metadata)
        note_unlabelled(source)
        if made_by:
            source = with_fingerprint(source, made_by)
        return add_rows(self.folder, source, **_known_settings(self.folder))

    def search(
        self,
        data: Data | Queries,
        request: SearchRequest | None = None,
        *,
        list_file: Path | None = None,
        row_images: Data | None = None,
        remember: bool = False,
        **settings: Any,
    ) -> list["Answer"]:
        """Search with images or embeddings.

        Args:
            data: the queries; images need no class: an image file, or a folder of them.
            request: what is searched for; or give its attributes, such as ``k=5``, by name.
            list_file: a file with one id per line; only these are searched for.
            row_images: of the rows; older hits are embedded again, ranked again and stored.
            remember: count the hits, for a backfill in the order ``asked``.
            settings: attributes of the request.
        """
        request = one_request(request, settings)
        source, embedded = _opened_queries(data, list_file)
        searching = partial(search_source, self.folder, source, request)
        queries, all_hits = searching(embedded)
        backfill_found = partial(backfill_hits, self.folder, queries.made_by, all_hits)
        if row_images is not None and backfill_found(open_source(row_images)):
            queries, all_hits = searching(queries)
        note_useless_filter(self.folder, queries, request, all_hits)
        note_guessed_threshold(self.folder, request)
        if remember:
            count_found(self.folder.path, _older_ids(all_hits))
        return _answers(queries, all_hits, forced=self.folder.state.is_forced)

    def upgrade(
        self,
        model: str | Path,
        certificates: Sequence[str | Path] = (),
        *,
        force: bool = False,
        dry_run: bool = False,
    ) -> Upgraded:
        """Let a new model search the rows as they are, see ``upgrade_gallery``."""
        return upgrade_gallery(self.folder, str(model), certificates, force=force, dry_run=dry_run)

    def backfill(
        self,
        data: Data | None = None,
        *,
        map_folder: str | Path | None = None,
        share: float = 1.0,
        ids: Sequence[str] | None = None,
        order: str = "random",
        seed: int = 0,
    ) -> Backfilled:
        """Embed older rows again, from their images or by a forward map.

        Args:
            data: the images of the rows, or their embeddings by the searching model.
            map_folder: instead: a map that ``unibct adapt --direction forward`` has made.
            share: of all rows that are the searching model's own in the end.
            ids: only these rows.
            order: ``random``, ``farthest`` (from the mean of their label) or ``asked``.
            seed: of the random order.
        """
        request = BackfillRequest(share, ids, order, seed)
        return backfill_gallery(self.folder, _images_or_map(data, map_folder), request)

    def pause(self) -> None:
        """Ask a backfill in another process to stop after its batch."""
        pause_backfill(self.folder)

    def finish(self) -> int:
        """Delete the old vectors of rows that have new ones, see ``finish_backfill``."""
        return finish_backfill(self.folder)

    def abort(self) -> RolledBack:
        """Undo the backfill that was done or begun last."""
        return abort_backfill(self.folder)

    def rollback(self, to: int | None = None, data: Data | None = None) -> RolledBack:
        """Go back to before an upgrade or a backfill, see ``rollback_gallery``."""
        return rollback_gallery(self.folder, to, _opened(data))

    def remove(self, ids: Sequence[str]) -> int:
        """Remove rows for good, and return how many they were."""
        return remove_rows(self.folder, ids)

    def index(self) -> list[IndexRecall]:
        """Build the index for approximate search, and measure its recall."""
        return build_indexes(self.folder)

    def status(self) -> GalleryStatus:
        """Return rows, models, who searches, and what has been saved."""
        return gallery_status(self.folder)

    def verify(self) -> list[str]:
        """Read everything, and return what is wrong, one line each."""
        return verify_gallery(self.folder)

    def copy(self, path: str | Path, *, engine: str = EMBEDDED, at: str = "") -> int:
        """Copy the gallery to another engine or place, and return how many rows it has."""
        return copy_gallery(self.folder, Path(path), engine=engine, address=at)

    def delete(self) -> None:
        """Delete the gallery for good: rows, models, history and folder."""
        delete_gallery(self.folder)

    def close(self) -> None:
        """Let go of files and connections."""
        self.folder.close()


class Answer:
    """What one query has found."""

    def __init__(self, query: str, label: str | None, hits: list[Hit], forced: bool) -> None:
        self.query = query  # the id of the query
        self.label = label  # of the query; None if it has none
        self.hits = hits  # the rows, the best first
        self.forced = forced  # some rows are searched without a certificate that says *compatible*

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        value: dict[str, Any] = {
            "query": self.query,
            "hits": [hit.as_json() for hit in self.hits],
        }
        return value | ({"forced": True} if self.forced else {})


def _answers(queries: Queries, all_hits: list[list[Hit]], *, forced: bool) -> list[Answer]:
    labels = queries.labels or (None,) * len(queries.ids)
    triples = zip(queries.ids, labels, all_hits, strict=True)
    return [Answer(query, label, hits, forced) for query, label, hits in triples]


def _known_settings(folder: GalleryFolder) -> dict[str, Any]:
    """Return what ``create`` was told about known queries."""
    details = folder.state.steps[0].details
    return {name: details[name] for name in ("known", "keep_images")}


def _older_ids(all_hits: list[list[Hit]]) -> list[str]:
    return [hit.id for hits in all_hits for hit in hits if hit.row == OLDER_ROW]


def _opened_queries(
    data: Data | Queries, list_file: Path | None
) -> tuple[Source | None, Queries | None]:
    """Return queries that are to be embedded or read, or vectors in memory, and None."""
    if isinstance(data, Queries):
        return None, checked_queries(data)
    return open_source(data, list_file=list_file), None


def _opened(data: Data | None) -> Source | None:
    return None if data is None else open_source(data)


def _images_or_map(data: Data | None, map_folder: str | Path | None) -> Source | Path:
    """Return what a backfill makes rows from."""
    if (data is None) == (map_folder is None):
        raise UserError("a backfill needs the images of the rows, or a map")
    return Path(str(map_folder)) if data is None else open_source(data)


# Names from a gallery: the label of the first row that a query finds.


@dataclass(frozen=True)
class NameCounts:
    """What queries with known labels were called."""

    right: int  # queries that got their own label
    wrong: int  # queries that got another label
    lost: int  # queries that found nothing, such as no row above the threshold

    @property
    def queries(self) -> int:
        """How many queries were asked."""
        return self.right + self.wrong + self.lost

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return dict(vars(self))


def count_names(answers: Iterable[Answer]) -> NameCounts:
    """Count right, wrong and lost names.

    Args:
        answers: of a search whose queries have labels; ``far`` or ``threshold`` of the search
            decide whether a row is similar enough to give its name.
    """
    counts = {"right": 0, "wrong": 0, "lost": 0}
    for answer in answers:
        if answer.label is None:
            raise UserError(f"the query {answer.query!r} has no label to compare names with")
        if not answer.hits:
            counts["lost"] += 1
        else:
            counts["right" if answer.hits[0].label == answer.label else "wrong"] += 1
    return NameCounts(**counts)

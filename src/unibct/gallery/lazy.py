"""A lazy backfill: the rows that real queries find are embedded again, and stored."""

from unibct.gallery.backfill import RowRemaker, continued_backfill
from unibct.gallery.folder import GalleryBusyError, GalleryFolder
from unibct.gallery.row_types import OLDER_ROW
from unibct.gallery.search import Hit
from unibct.gallery.settling import settle
from unibct.gallery.sources import Source


def remake_hits(
    folder: GalleryFolder,
    searching: str,
    hit_lists: list[list[Hit]],
    images: Source,
    *,
    skip_bad: bool = False,
) -> int:
    """Embed those older rows again that were found and whose images are given.

    Args:
        folder: the gallery.
        searching: the fingerprint of the model whose queries found them.
        hit_lists: what a search has found.
        images: images of rows.
        skip_bad: leave rows as they are whose images cannot be read, instead of refusing.

    Returns:
        How many rows were embedded again. 0 if another process is writing, or another model
        searches by now: search goes on.
    """
    older = {hit.id for hits in hit_lists for hit in hits if hit.row == OLDER_ROW}
    ids = sorted(older & set(images.ids))
    if not ids:
        if older:
            folder.progress.note(
                f"no hit was embedded again: {images.name} has none of the {len(older)} older rows "
                f"among them, first {min(older)!r}"
            )
        return 0
    try:
        with folder.writing():
            settle(folder)
            if folder.state.standing.searching != searching:
                return 0
            remaker = RowRemaker(folder, images, skip_bad=skip_bad)
            return continued_backfill(folder, remaker, ids)
    except GalleryBusyError as error:
        folder.progress.note(f"the hits were not embedded again: {error}")
        return 0

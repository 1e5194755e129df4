"""Which rows a model may search, and what they are to it: its own, older or mapped ones."""

from unibct.gallery.state import GalleryState, RowMaker, Standing

OWN_ROW, OLDER_ROW, MAPPED_ROW = "own", "older", "mapped"


def searchable_kinds(state: GalleryState, standing: Standing) -> list[str]:
    """Return the kinds of rows that may be searched, the oldest first."""
    return [
        kind
        for kind, maker in state.makers.items()
        if maker.space == standing.searching or kind in standing.access
    ]


def row_type(maker: RowMaker, standing: Standing) -> str:
    """Return whether rows of a maker are own, older or mapped ones."""
    if maker.fingerprint == standing.searching:
        return OWN_ROW
    return MAPPED_ROW if maker.space == standing.searching else OLDER_ROW

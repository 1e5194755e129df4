"""The story of a gallery, with numbers that were made up."""

from pathlib import Path

from unibct.examples.demo import GalleryStory, Stage
from unibct.gallery.gallery import NameCounts

_ROWS = [(1200, 0), (1200, 0), (900, 300), (600, 600), (300, 900), (0, 1200), (1200, 0), (0, 1200)]
_TITLES = (
    "before",
    "upgrade",
    *(f"backfill {share}%" for share in (25, 50, 75, 100)),
    "rollback",
    "upgrade again, finish",
)


def told_story() -> GalleryStory:
    """A story in which more names become right with every step."""
    stages = [
        Stage(
            title,
            "old" if title in ("before", "rollback") else "new",
            *rows,
            NameCounts(60 + number, 40 - number, 0),
            NameCounts(50 + number, 10, 40 - number),
        )
        for number, (title, rows) in enumerate(zip(_TITLES, _ROWS, strict=True))
    ]
    return GalleryStory(Path("G"), 5, 1e-3, tuple(stages), restored=True)

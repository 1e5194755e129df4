"""The tests by name: which model's queries search which model's gallery."""

from dataclasses import dataclass

OLD_SELF = "old→old"
CROSS = "new→old"
NEW_SELF = "new→new"
REVERSED_CROSS = "old→new"
FREE_SELF = "free→free"
FREE_CROSS = "free→old"
BLEND = "blend→old"  # the query is a blend of the old and the new model's


@dataclass(frozen=True)
class Direction:
    """The name of a test in tables, and what it means.

    Attributes:
        title: a few words, for a table's row.
        meaning: one line, for a report.
    """

    title: str
    meaning: str


# In the order in which tables show them.
DIRECTIONS: dict[str, Direction] = {
    OLD_SELF: Direction("old self test", "before the upgrade"),
    CROSS: Direction("cross test", "cross test: new queries, the old gallery as it stands"),
    BLEND: Direction("blended queries", "blends of old and new queries, the old gallery"),
    REVERSED_CROSS: Direction("cross test, reversed", "old queries, a gallery of the new model"),
    NEW_SELF: Direction("new self test", "new self test: after a backfill"),
    FREE_SELF: Direction("free self test", "a new model without compatibility, after a backfill"),
    FREE_CROSS: Direction("free, old gallery", "the same without a backfill"),
}


def sides(direction: str) -> tuple[str, str]:
    """Return the query model's and the gallery model's role: ``new→old`` is (new, old)."""
    query, _, gallery = direction.partition("→")
    return query, gallery


def direction_of(query: str, gallery: str) -> str:
    """Return the name of the test with these two sides."""
    return f"{query}→{gallery}"

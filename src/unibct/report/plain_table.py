"""A table as plain cells, which HTML pages, Markdown and the terminal render in their own way.

A number is never shown without its interval: the interval is the ``small`` text of its cell.
"""

from dataclasses import dataclass

from unibct.evaluation.criterion import Estimate, Verdict


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    small: str = ""  # shown in small type below the text, in parts separated by ``; ``
    kind: str = ""  # a verdict that colours the cell, such as ``within-noise``, or ``head``


NO_VALUE = Cell("—")


@dataclass(frozen=True)
class PlainTable:
    """A table with its heading, and a note of what a reader should know about it."""

    title: str
    note: str
    heads: tuple[str, ...]  # of the columns
    rows: tuple[tuple[Cell, ...], ...]  # as many cells in each row as there are heads

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds numbers; the others hold words."""
        return tuple(
            any(row[column].text[:1] in tuple("+-0123456789") for row in self.rows)
            for column in range(len(self.heads))
        )


def verdict_kind(verdict: Verdict) -> str:
    """Return the kind of a cell that shows a verdict."""
    return verdict.replace(" ", "-")


def verdict_cell(verdict: Verdict) -> Cell:
    """Return a cell with a verdict in its colour."""
    return Cell(verdict, kind=verdict_kind(verdict))


def share_cell(share: float) -> Cell:
    """Return a cell with a share in percent whose interval stands elsewhere in the report."""
    return Cell(f"{100 * share:.2f}")


def percent_cell(share: Estimate, *, paper: str | None = None, kind: str = "") -> Cell:
    """Return a cell with a share in percent, its interval, and the paper's figure if it has one.

    The interval of a few seeds may reach beyond 0 or 100 %; it is cut there.
    """
    low, high = max(share.low, 0.0), min(share.high, 1.0)
    interval = f"{100 * low:.2f} to {100 * high:.2f}"
    small = f"{interval}; paper {paper}" if paper else interval
    return Cell(f"{100 * share.mean:.2f}", small, kind)


def difference_cell(difference: Estimate, *, coloured: bool = True) -> Cell:
    """Return a cell with a difference in points and its interval, coloured by its verdict."""
    return Cell(
        f"{100 * difference.mean:+.2f}",
        f"{100 * difference.low:+.2f} to {100 * difference.high:+.2f}",
        verdict_kind(difference.verdict) if coloured else "",
    )


def as_markdown(table: PlainTable) -> str:
    """Return a Markdown table with its title and note."""

    def cell_text(cell: Cell) -> str:
        return f"{cell.text} ({cell.small})" if cell.small and cell.text else cell.text

    lines = [f"## {table.title}", "", table.note, "", "| " + " | ".join(table.heads) + " |"]
    lines.append("|" + " --- |" * len(table.heads))
    lines += ["| " + " | ".join(cell_text(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"

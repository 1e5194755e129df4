"""A table as plain cells, which HTML pages, Markdown and the terminal render in their own way.

A number is never shown without its interval: the interval is the ``small`` text of its cell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unibct.benchmark.results import Results
from unibct.evaluation.criterion import Estimate, Verdict
from unibct.evaluation.metrics import TOP_1


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what the cell says.
        small: what is shown in small type below the text, in parts separated by ``; ``.
        kind: a verdict that colours the cell, such as ``within-noise``, or ``head``.
    """

    text: str
    small: str = ""
    kind: str = ""


NO_VALUE = Cell("—")


@dataclass(frozen=True)
class PlainTable:
    """A table.

    Attributes:
        title: its heading.
        note: what a reader should know about it.
        heads: the heads of the columns.
        rows: the cells, as many in each row as there are heads.
    """

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

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


def percent_cell(share: Estimate, *, paper: str | None = None, kind: str = "") -> Cell:
    """Return a cell with a share in percent and its interval.

    The interval of a few seeds may reach beyond 0 or 100 %; it is cut there.

    Args:
        share: the share and its interval.
        paper: the paper's figure, if it has one.
        kind: the kind of the cell.
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


# A table of a benchmark with a row for each method and a column for each scenario.


def methods_by_scenarios(
    results: Results,
    title: str,
    note: str,
    methods: Sequence[str],
    cell: Callable[[str, str], Cell],
) -> PlainTable | None:
    """Return a table with a row for each method and a column for each scenario.

    Args:
        results: of the benchmark.
        title: of the table.
        note: of the table.
        methods: its rows.
        cell: returns the cell of a scenario and a method.
    """
    if not results.scenarios:
        return None
    rows = tuple(
        (Cell(method), *(cell(scenario, method) for scenario in results.scenarios))
        for method in methods
    )
    return PlainTable(title, note, ("method", *results.scenarios), rows)


def top_1_first(metrics: Sequence[str]) -> list[str]:
    """Return metrics in their order, but top-1 before the others."""
    return sorted(metrics, key=lambda metric: metric != TOP_1)

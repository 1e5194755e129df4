"""Tables for the terminal: pleasant there, plain in a pipe."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from unibct.evaluate import CONFIDENCE, Evaluation

TEST_TITLES = {
    "old→old": "old self test",
    "new→old": "cross test",
    "new→new": "new self test",
    "free→free": "free self test",
    "free→old": "free, old gallery",
}
_STYLES = {"compatible": "bold green", "not compatible": "bold red", "within noise": "bold yellow"}


def print_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """The tests, the criterion per metric, and the verdict."""
    console = console or Console()
    metrics = [criterion.metric for criterion in evaluation.criteria]
    tests = _table(console, "query → gallery, %", *metrics)
    for name, title in TEST_TITLES.items():
        if name in evaluation.tests:
            values = evaluation.metrics(name).values()
            style = "bold" if name == "new→old" else None
            row = [f"{100 * value:.2f}" for value in values]
            tests.add_row(f"{name}  {title}", *row, style=style)
    console.print(tests)
    interval = f"{100 * CONFIDENCE:.0f} % interval"
    criterion_table = _table(console, "cross − old self, points", "difference", interval, "verdict")
    for c in evaluation.criteria:
        criterion_table.add_row(
            c.metric,
            f"{100 * c.difference:+.2f}",
            f"{100 * c.low:+.2f} to {100 * c.high:+.2f}",
            f"[{_STYLES[c.verdict]}]{c.verdict}[/]",
        )
    console.print(criterion_table)
    verdict = evaluation.verdict
    if evaluation.note:
        console.print(evaluation.note, highlight=False)
    console.print(f"verdict: [{_STYLES[verdict]}]{verdict}[/]", highlight=False)


def print_counts(rows: dict[str, tuple[int, int]], console: Console | None = None) -> None:
    """Images and classes of each set of a split."""
    console = console or Console()
    table = _table(console, "set", "images", "classes")
    for name, (images, classes) in rows.items():
        table.add_row(name, f"{images:,}", f"{classes:,}")
    console.print(table)


def _table(console: Console, first: str, *others: str) -> Table:
    options: dict[str, Any] = {"box": box.SIMPLE_HEAD}
    if not console.is_terminal:
        console.width = 200
        options = {"box": None, "padding": (0, 3, 0, 0), "header_style": ""}
    table = Table(first, **options)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table

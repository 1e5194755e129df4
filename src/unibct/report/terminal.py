"""Print tables: with lines and colours in a terminal, as plain text in a pipe."""

import re
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unibct.benchmark.results import Results
from unibct.benchmark.run import Benchmark
from unibct.evaluation.criterion import CONFIDENCE, NOT_COMPATIBLE_RULE, seeds_note
from unibct.evaluation.evaluation import Evaluation, UpgradeEvaluation
from unibct.evaluation.search_test import CROSS, DIRECTIONS
from unibct.examples.demo import GalleryStory
from unibct.progress import clock
from unibct.report.benchmark_tables import (
    chain_tables,
    few_note,
    gain_table,
    left_out_note,
    seen_note,
    verdict_table,
    weak_note,
)
from unibct.report.decision_tables import decision_tables, old_model_text
from unibct.report.plain_table import Cell, PlainTable
from unibct.report.texts import story_table

_FIRST_WIDTH = 10  # to which the first column of a table may shrink
_BETWEEN_WORDS = re.compile(r"(?<=[a-z])-(?=[a-z])")  # in a scenario's name, not in "top-1"
_STYLES = {
    "compatible": "bold green",
    "not compatible": "bold red",
    "within noise": "bold yellow",
    "old model too weak": "bold red",
}


def print_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """Print the tests, the criterion of each metric, what a team decides on, and the verdict."""
    console = console or Console()
    tests = evaluation.values
    metrics = list(dict.fromkeys(metric for values in tests.values() for metric in values))
    table = _table(console, "query → gallery, %", *metrics)
    for direction in DIRECTIONS:
        if direction in tests:
            values = [tests[direction].get(metric) for metric in metrics]
            row = ["—" if value is None else f"{100 * value:.2f}" for value in values]
            table.add_row(
                f"{direction}  {direction.label}",
                *row,
                style="bold" if direction == CROSS else None,
            )
    _print_or_list(table, console)
    interval = f"{100 * CONFIDENCE:.0f} % interval"
    criterion_table = _table(console, "cross − old self, points", "difference", interval, "verdict")
    for c in evaluation.compared:
        criterion_table.add_row(
            c.metric if c.decides else f"{c.metric} (not in the verdict)",
            f"{100 * c.difference:+.2f}",
            f"{100 * c.low:+.2f} to {100 * c.high:+.2f}",
            f"[{_STYLES[c.verdict]}]{c.verdict}[/]",
        )
    _print_or_list(criterion_table, console)
    if any(c.high < 0 <= c.ceiling for c in evaluation.compared):
        console.print(NOT_COMPATIBLE_RULE, highlight=False)
    for plain in decision_tables(evaluation):
        _print_plain_table(plain, console)
        console.print(plain.note, highlight=False, markup=False)
    console.print()
    for note in filter(None, (evaluation.full_note, old_model_text(evaluation))):
        console.print(note, highlight=False, markup=False)
    if isinstance(evaluation, UpgradeEvaluation):
        single = evaluation.single_images_verdict
        console.print(
            f"on single images, as the rows of a gallery are: [{_STYLES[single]}]{single}[/]",
            highlight=False,
        )
    verdict = evaluation.verdict
    console.print(f"verdict: [{_STYLES[verdict]}]{verdict}[/]", highlight=False)


def _print_or_list(table: Table, console: Console) -> None:
    """Print a table; in a terminal that is too narrow for its numbers, print it as text."""
    if _fits(table, console):
        console.print(table)
        return
    heads = [str(column.header) for column in table.columns]
    rows = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    _print_list(heads, list(rows), console)


def _fits(table: Table, console: Console) -> bool:
    """Return whether no number of a table is cut off; the first column may be folded."""
    needed = 0
    for place, column in enumerate(table.columns):
        texts = [Text.from_markup(str(text)).plain for text in (column.header, *column.cells)]
        pieces = texts if column.no_wrap else [word for text in texts for word in text.split()]
        width = max((len(piece) for piece in pieces), default=0)
        needed += 3 + (width if place else min(width, _FIRST_WIDTH))
    return not console.is_terminal or needed <= console.width


def _print_list(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print the rows of a table as text, each cell after the head of its column."""
    for first, *cells in rows:
        values = [f"{head} {cell}" for head, cell in zip(heads[1:], cells, strict=True)]
        console.print(f"{first}: {', '.join(values)}", highlight=False)
    console.print()


def print_story(story: GalleryStory, console: Console | None = None) -> None:
    """Print how the demo's gallery searches after each step of the upgrade."""
    console = console or Console()
    table = story_table(story)
    if table.rows:
        _print_plain_table(table, console)
    console.print(table.note, highlight=False, markup=False)


def print_counts(rows: dict[str, tuple[int, int]], console: Console | None = None) -> None:
    """Print the number of images and classes of each set of a split."""
    console = console or Console()
    table = _table(console, "set", "images", "classes")
    for name, (images, classes) in rows.items():
        table.add_row(name, f"{images:,}", f"{classes:,}")
    console.print(table)


def _table(console: Console, first: str, *others: str) -> Table:
    """Return an empty table with these heads; all columns but the first hold numbers."""
    options: dict[str, Any] = {"box": box.SIMPLE_HEAD}
    if not console.is_terminal:
        console.width = 1000  # a pipe has no width: do not wrap
        options = {"box": None, "padding": (0, 3, 0, 0), "header_style": ""}
    table = Table(**options)
    # In a narrow terminal it gives way to the numbers, but stays readable.
    table.add_column(first, overflow="fold", min_width=min(len(first), _FIRST_WIDTH))
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_plan(benchmark: Benchmark, console: Console | None = None) -> None:
    """Print what a benchmark would run, and how long it will take."""
    console = console or Console()
    unfinished = {job.folder for job in benchmark.unfinished_jobs}
    table = _table(console, "job", "images through training", "state")
    for job in benchmark.chosen_jobs:
        state = "to run" if job.folder in unfinished else "finished"
        work = job.work if job.folder in unfinished else 0
        table.add_row(job.folder, f"{work:,}" if work else "—", state)
    console.print(table)
    seconds = benchmark.seconds_left()
    console.print(
        f"{len(unfinished)} of {len(benchmark.chosen_jobs)} jobs to run, {benchmark.workers} at a "
        f"time with {benchmark.threads} thread{'s' if benchmark.threads > 1 else ''} each"
        + ("" if seconds is None else f": about {clock(seconds)}"),
        highlight=False,
    )


def print_benchmark(results: Results, console: Console | None = None) -> None:
    """Print the verdicts, the gains of the cross test, and the upgrade chains."""
    console = console or Console()
    makers = (left_out_note, few_note, weak_note)
    notes = [note for make in makers if (note := make(results)) is not None]
    doubt = seen_note(results)
    notes += [] if doubt is None else [f"{doubt[0].upper()}{doubt[1:]}."]
    notes.append(seeds_note(len(results.seeds)))
    for table in (verdict_table(results), gain_table(results), *chain_tables(results)):
        if table is not None:
            _print_plain_table(table, console)
    for note in notes:
        console.print()
        console.print(note, highlight=False)


def _print_plain_table(plain: PlainTable, console: Console) -> None:
    """Print a table; in a narrow terminal its heads and cells take several lines."""
    longest = max(len(f"{cell.text} ({cell.small})") for row in plain.rows for cell in row)
    wide = not console.is_terminal or console.width >= len(plain.heads) * (longest + 3)
    heads = plain.heads if wide else [_BETWEEN_WORDS.sub("-\n", h) for h in plain.heads]
    table = _table(console, *heads)
    if not wide:
        table.padding = (0, 1, 0, 0)
    for column in table.columns[1:]:
        column.no_wrap = wide
        column.overflow = "fold"
    for row in plain.rows:
        table.add_row(*(_styled(cell, wide=wide) for cell in row))
    console.print(f"\n[bold]{plain.title}[/]", highlight=False)
    if _fits(table, console):
        console.print(table)
    else:
        rows = [[_styled(cell, wide=True) for cell in row] for row in plain.rows]
        _print_list(plain.heads, rows, console)


def _styled(cell: Cell, *, wide: bool) -> str:
    """Return a cell with its small text beside it, or below it in a narrow terminal."""
    style = _STYLES.get(cell.kind.replace("-", " "))
    text = f"[{style}]{cell.text}[/]" if style else cell.text
    small = f" ({cell.small})" if wide else f"\n{cell.small}"
    return text + small if cell.small else text

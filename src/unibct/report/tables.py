"""The tables of a benchmark, as plain cells that HTML, Markdown and the terminal render alike.

No number stands without its interval: a cell's ``small`` text holds it.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from unibct.benchmark.results import Measured, Results
from unibct.evaluation.criterion import CONFIDENCE, Estimate, Verdict, joint_verdict
from unibct.evaluation.metrics.table import TOP_1, find_metric
from unibct.maps.adapter import ADAPTERS
from unibct.methods import NO_METHOD
from unibct.progress import clock

BASELINE = "unibct"
# The paper's Table 3 and Table 4: the methods they compare, in extended-data.
PROTOTYPE_METHODS = ("unibct-centroid", "unibct-drop", "unibct", "unibct-plus")
EARLIER_METHODS = ("regress", "bct", "unibct-centroid", "unibct", "unibct-plus")
_SIGNS = {"compatible": "✓", "not compatible": "✗", "within noise": "≈"}


@dataclass(frozen=True)
class Cell:
    """A table's cell: the text, what stands small beneath it, and its kind (a verdict, a head)."""

    text: str
    small: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table: title, what to know of it, heads and rows."""

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers; the others hold words."""
        return tuple(
            any(row[column].text[:1] in tuple("+-0123456789") for row in self.rows)
            for column in range(len(self.heads))
        )


def verdicts(results: Results) -> Sheet | None:
    """The verdict of each method in each scenario: one line that answers the question."""
    if not results.scenarios:
        return None

    def cell(scenario: str, method: str) -> Cell:
        if not results.has(scenario, method):
            return Cell("—")
        found: list[Verdict] = [
            _gain(results, scenario, method, metric).verdict for metric in results.deciding_metrics
        ]
        signs = " ".join(_SIGNS[verdict] for verdict in found)
        return Cell(joint_verdict(found), signs, joint_verdict(found).replace(" ", "-"))

    rows = tuple(
        (Cell(method), *(cell(scenario, method) for scenario in results.scenarios))
        for method in results.grid.methods
    )
    note = (
        "Compatible: the cross test is above the old self test in every metric "
        f"({', '.join(results.deciding_metrics)}; one sign each), and the "
        f"{100 * CONFIDENCE:.0f} % interval of the difference lies above zero. "
        "≈ and within noise: it holds zero."
    )
    return Sheet("Verdicts", note, ("method", *results.scenarios), rows)


def gains(results: Results) -> Sheet | None:
    """Cross − old self in top-1: every method and scenario at one glance."""
    if not results.scenarios:
        return None

    def cell(scenario: str, method: str) -> Cell:
        if not results.has(scenario, method):
            return Cell("—")
        return difference_cell(_gain(results, scenario, method, TOP_1))

    rows = tuple(
        (Cell(method), *(cell(scenario, method) for scenario in results.scenarios))
        for method in results.grid.methods
    )
    title = f"Cross − old self, points of {TOP_1}"
    note = "The gain of new queries in the old gallery over old queries, with its interval."
    return Sheet(title, note, ("method", *results.scenarios), rows)


def criterion(results: Results, scenario: str) -> Sheet:
    """Cross − old self of each method in one scenario, and what its own self test pays."""
    rows: list[tuple[Cell, ...]] = []
    for method in _methods(results, scenario):
        gains = {metric: _gain(results, scenario, method, metric) for metric in results.metrics}
        prices = [
            (
                results.new_self(scenario, method, metric) - results.free_self(scenario, metric)
            ).estimate
            for metric in results.metrics
        ]
        verdict = joint_verdict([gains[metric].verdict for metric in results.deciding_metrics])
        rows.append(
            (
                Cell(method),
                *(difference_cell(gain) for gain in gains.values()),
                Cell(verdict, kind=verdict.replace(" ", "-")),
                *(difference_cell(price, coloured=False) for price in prices),
            )
        )
    heads = (
        "method",
        *(f"{metric}: cross − old self" for metric in results.metrics),
        "verdict",
        *(f"{metric}: new self − free self" for metric in results.metrics),
    )
    note = (
        "Differences in points, each with its interval. Left, the criterion; right, what the "
        "compatible model's own self test loses (−) or gains against the free model."
    )
    return Sheet(f"{scenario}: the criterion and its price", note, heads, tuple(rows))


def against_baseline(results: Results) -> Sheet | None:
    """Each method's cross test minus the baseline's, paired."""
    if BASELINE not in results.grid.methods or not results.scenarios:
        return None
    rows: list[tuple[Cell, ...]] = []
    for method in results.grid.methods:
        if method in (BASELINE, NO_METHOD):
            continue
        cells: list[Cell] = [Cell(method)]
        for scenario in results.scenarios:
            if not (results.has(scenario, method) and results.has(scenario, BASELINE)):
                cells.append(Cell("—"))
                continue
            pair = [results.cross(scenario, name, TOP_1) for name in (method, BASELINE)]
            cells.append(difference_cell((pair[0] - pair[1]).estimate))
        rows.append(tuple(cells))
    if not rows:
        return None
    note = (
        f"Cross test, points of {TOP_1} above (+) or below (−) {BASELINE}, on the same classes "
        "and seeds."
    )
    return Sheet(f"Against {BASELINE}", note, ("method", *results.scenarios), tuple(rows))


def scenario_table(results: Results) -> Sheet | None:
    """The paper's Table 2: every scenario and method, cross and self test, the paper's beside."""
    if not results.scenarios:
        return None
    columns = _paper_columns(results)
    rows: list[tuple[Cell, ...]] = []
    for scenario in results.scenarios:
        old = [
            _value(results.old_self(scenario, metric), _paper(scenario, "old", "self", metric))
            if test == "self"
            else Cell("—")
            for test, metric in columns
        ]
        rows.append((Cell(scenario, kind="head"), Cell("old", "the old model"), *old))
        measures = {"cross": results.cross, "self": results.new_self}
        for method in _methods(results, scenario):
            cells = [
                _value(
                    measures[test](scenario, method, metric),
                    _paper(scenario, method, test, metric),
                )
                for test, metric in columns
            ]
            title = Cell(method, "upper bound of the self test" if method == NO_METHOD else "")
            rows.append((Cell(""), title, *cells))
    note = (
        "Percent, means over the seeds with their intervals. Paper: its figure on IJB-C, trained "
        "on MS1Mv3, at TAR@1e-4, from one run. Compare the relations between rows, not the values: "
        "the images, the network and the false accept rate differ."
    )
    heads = ("scenario", "method", *(f"{test} {metric}" for test, metric in columns))
    return Sheet("All scenarios (the paper's Table 2)", note, heads, tuple(rows))


def _paper_columns(results: Results) -> list[tuple[str, str]]:
    """Return test and metric of each column, ordered as in the paper's Table 2.

    Cross and self test of the 1:1 metrics come first, then all cross and all self tests of 1:N.
    """
    kinds = dict.fromkeys(find_metric(metric).kind for metric in results.metrics)
    return [
        (test, metric)
        for kind in kinds
        for test in ("cross", "self")
        for metric in results.metrics
        if find_metric(metric).kind == kind
    ]


def prototype_table(results: Results) -> Sheet | None:
    """The paper's Table 3: kinds of prototypes, in extended-data."""
    titles = {
        "unibct-centroid": "plain mean",
        "unibct-drop": "mean without the farthest",
        "unibct": "structural refinement",
        "unibct-plus": "no prototype",
    }
    return _comparison(results, "Prototypes (the paper's Table 3)", PROTOTYPE_METHODS, titles)


def earlier_table(results: Results) -> Sheet | None:
    """The paper's Table 4: other losses, in extended-data."""
    titles = {"regress": "AML", "bct": "BCT", "unibct-centroid": "L*", "unibct": "UniBCT"}
    return _comparison(results, "Other losses (the paper's Table 4)", EARLIER_METHODS, titles)


def cost_table(results: Results) -> Sheet | None:
    """Training images per second of each method, against plain training, and the time it took."""
    if not results.scenarios:
        return None
    rows: list[tuple[Cell, ...]] = []
    for method in results.grid.methods:
        if method in ADAPTERS:
            continue
        cells: list[Cell] = [Cell(method)]
        for scenario in results.scenarios:
            plain, own = results.cost(scenario, NO_METHOD), results.cost(scenario, method)
            if own is None or plain is None:
                cells.append(Cell("—"))
                continue
            ratio = plain["images_per_second"] / own["images_per_second"]
            small = f"{ratio:.2f} × the time of none; {clock(own['seconds'])} a training"
            cells.append(Cell(f"{own['images_per_second']:,.0f}", small))
        rows.append(tuple(cells))
    note = (
        "Training images per second of one process, of the fastest seed, while other jobs ran "
        "beside it: a rough measure. measurements/step_cost.py measures the methods side by side."
    )
    return Sheet("Cost", note, ("method", *results.scenarios), tuple(rows))


def chain_table(results: Results, method: str) -> Sheet:
    """All pairs of versions: queries down, galleries across, and the averages."""
    versions = range(1, results.grid.versions + 1)
    rows: list[tuple[Cell, ...]] = []
    for query in versions:
        cells = [Cell(f"v{query} queries")]
        for gallery in versions:
            measured = results.versions(method, query, gallery, TOP_1)
            kind = ""
            if query > gallery:
                own = results.versions(method, gallery, gallery, TOP_1)
                kind = (measured - own).estimate.verdict.replace(" ", "-")
            cells.append(Cell(*_texts(measured.estimate), kind))
        rows.append(tuple(cells))
    average, share = chain_averages(results, method)
    note = (
        f"Percent {TOP_1}; below the diagonal, later queries in an earlier gallery, coloured by "
        f"the criterion. Average over the diagonal and below: {100 * average.mean:.2f} "
        f"({100 * average.low:.2f} to {100 * average.high:.2f}). Pairs below the diagonal "
        f"that beat their gallery's self test, over all seeds: {share}."
    )
    heads = ("", *(f"v{gallery} gallery" for gallery in versions))
    return Sheet(f"Upgrade chain, {method}", note, heads, tuple(rows))


def chain_averages(results: Results, method: str) -> tuple[Estimate, str]:
    """The mean over all pairs with query ≥ gallery, and how many with query > gallery gain."""
    versions = range(1, results.grid.versions + 1)
    pairs = [(query, gallery) for query in versions for gallery in versions if query >= gallery]
    measured = [results.versions(method, *pair, TOP_1) for pair in pairs]
    mean = Measured(
        np.mean([m.values for m in measured], axis=0),
        np.mean([m.samples for m in measured], axis=0),
    )
    wins = [
        (m - results.versions(method, gallery, gallery, TOP_1)).values > 0
        for m, (query, gallery) in zip(measured, pairs, strict=True)
        if query > gallery
    ]
    return mean.estimate, f"{int(np.sum(wins))} of {int(np.size(wins))}"


def difference_cell(found: Estimate, *, coloured: bool = True) -> Cell:
    """A difference in points with its interval."""
    kind = found.verdict.replace(" ", "-") if coloured else ""
    return Cell(
        f"{100 * found.mean:+.2f}", f"{100 * found.low:+.2f} to {100 * found.high:+.2f}", kind
    )


def as_markdown(sheet: Sheet) -> str:
    """A Markdown table with its title and note."""

    def text(cell: Cell) -> str:
        return f"{cell.text} ({cell.small})" if cell.small and cell.text else cell.text

    lines = [f"## {sheet.title}", "", sheet.note, "", "| " + " | ".join(sheet.heads) + " |"]
    lines.append("|" + " --- |" * len(sheet.heads))
    lines += ["| " + " | ".join(text(cell) for cell in row) + " |" for row in sheet.rows]
    return "\n".join(lines) + "\n"


def _comparison(
    results: Results, title: str, methods: Sequence[str], titles: dict[str, str]
) -> Sheet | None:
    scenario = "extended-data"
    present = [m for m in methods if m in results.grid.methods and results.has(scenario, m)]
    if scenario not in results.scenarios or len(present) < 2:
        return None
    heads: list[str] = ["method"]
    for metric in results.metrics:
        heads += [metric, f"{metric}: cross − old self"]
    old: list[Cell] = [Cell("old", "self test")]
    for metric in results.metrics:
        paper = _paper(scenario, "old", "self", metric)
        old += [_value(results.old_self(scenario, metric), paper), Cell("—")]
    rows: list[tuple[Cell, ...]] = [tuple(old)]
    for method in present:
        cells: list[Cell] = [Cell(method, titles.get(method, ""))]
        for metric in results.metrics:
            cells += [
                _value(
                    results.cross(scenario, method, metric),
                    _paper(scenario, method, "cross", metric),
                ),
                difference_cell(_gain(results, scenario, method, metric)),
            ]
        rows.append(tuple(cells))
    note = "Cross test in extended-data, percent; differences in points."
    return Sheet(title, note, tuple(heads), tuple(rows))


def _methods(results: Results, scenario: str) -> list[str]:
    return [method for method in results.grid.methods if results.has(scenario, method)]


def _gain(results: Results, scenario: str, method: str, metric: str) -> Estimate:
    return (results.cross(scenario, method, metric) - results.old_self(scenario, metric)).estimate


def _texts(found: Estimate) -> tuple[str, str]:
    """A share in percent; the interval of few seeds may be too wide for one, and is cut."""
    low, high = max(found.low, 0.0), min(found.high, 1.0)
    return f"{100 * found.mean:.2f}", f"{100 * low:.2f} to {100 * high:.2f}"


def _value(measured: Measured, paper: str | None) -> Cell:
    text, small = _texts(measured.estimate)
    return Cell(text, f"{small}; paper {paper}" if paper else small)


@cache
def _paper_rows() -> dict[tuple[str, str], dict[str, str]]:
    """The paper's figures by scenario and method, under our metrics' names."""
    text = (resources.files("unibct.report") / "paper_results.csv").read_text(encoding="utf-8")
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in csv.DictReader(text.splitlines()):
        values = {
            "cross TAR": row["cross_tar_1e-4"],
            "self TAR": row["self_tar_1e-4"],
            "cross top-1": row["cross_top1"],
            "cross top-5": row["cross_top5"],
            "self top-1": row["self_top1"],
            "self top-5": row["self_top5"],
        }
        found[row["scenario"], row["method"]] = {k: v for k, v in values.items() if v}
    return found


def _paper(scenario: str, method: str, test: str, metric: str) -> str | None:
    """The paper's figure, whatever the false accept rate in our metric's name is."""
    return _paper_rows().get((scenario, method), {}).get(f"{test} {metric.split('@')[0]}")


def all_tables(results: Results) -> list[Sheet]:
    """Every table of the report, in its order."""
    optional: list[Callable[[Results], Sheet | None]] = [
        verdicts,
        gains,
        scenario_table,
        prototype_table,
        earlier_table,
        against_baseline,
    ]
    tables = [table for make in optional if (table := make(results)) is not None]
    tables += [criterion(results, scenario) for scenario in results.scenarios]
    tables += [
        chain_table(results, method)
        for method in results.grid.chain_methods
        if results.has_chain(method)
    ]
    cost = cost_table(results)
    return tables if cost is None else [*tables, cost]

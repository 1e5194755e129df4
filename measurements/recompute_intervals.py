"""Recompute a committed report by the present rule of intervals, without its bootstrap samples.

    git worktree add ../earlier 13b4410
    python measurements/recompute_intervals.py ../earlier/docs/results docs/results

A benchmark whose folder is still there needs no such thing: `unibct benchmark … --report-only`. The
committed reports have values of each seed (results.csv) and intervals over classes and seeds by the
earlier rule: percentiles of m + a·z + √(S/(S−1))·(e − m), where m is the mean, a·z the deviation of
drawn classes and e the mean of S seeds that are drawn with replacement. The last part is known
exactly from the values. So each end of a published interval gives the one deviation a with which
it is that percentile, for each side on its own, and the new end is

    m ± √( (√(n/(n−1)) · t(n−1) · a)² + (t(S−1) · s/√S)² ),        below three seeds without s.

Approximations: a is normal on its side, also for the end that *not compatible* needs; the
published ends have two digits; and a contains once more what classes do differently in one seed,
so that the ends are rather too wide. In docs/decisions/0021-intervals.md is how far they are from
the exact ones. For one seed, and in results.csv, all is exact but for the digits.

Every cell's mean is checked against the values. Prints every verdict that has changed. A report
that has been recomputed says so.
"""

import argparse
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from unibct.arrays import Floats
from unibct.evaluation.criterion import (
    FEWEST_SEEDS,
    NOT_COMPATIBLE_RULE,
    Estimate,
    Verdict,
    half_width,
    joint_verdict,
    seeds_note,
)

RECOMPUTED = (
    "recomputed from the values of the seeds and the intervals of the earlier rule "
    "(measurements/recompute_intervals.py)"
)
TAIL, FAMILY_TAIL = 0.025, 0.025 / 3
SIGNS: dict[Verdict, str] = {"compatible": "✓", "not compatible": "✗", "within noise": "≈"}
TRIPLE = re.compile(r"([+-]?\d+\.\d+) \(([+-]?\d+\.\d+) to ([+-]?\d+\.\d+)")
_NORMAL = np.linspace(-8, 8, 16_001)
_BELOW = np.array([NormalDist().cdf(x) for x in _NORMAL])
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Published:
    """What a committed report says.

    Attributes:
        values: (scenario, method, test, metric) -> (seeds,) in percent or as they are.
        classes: how many test classes have queries.
    """

    values: dict[Key, Floats]
    classes: int

    @property
    def seeds(self) -> int:
        """How many seeds the report is over."""
        return max(len(values) for values in self.values.values())

    def of(self, scenario: str, method: str, test: str, metric: str) -> Floats:
        """Return a share over the seeds, in percent."""
        return 100 * self.values[scenario, method, test, metric]


@lru_cache
def drawn_seeds(seeds: int) -> tuple[Floats, Floats]:
    """Return (ways, seeds) how often each seed is drawn, and (ways,) with which probability."""
    ways = Counter(
        tuple(np.bincount(drawn, minlength=seeds))
        for drawn in itertools.product(range(seeds), repeat=seeds)
    )
    return np.array(list(ways), dtype=float), np.array(list(ways.values())) / seeds**seeds


def class_deviation(reach: float, values: Floats) -> float:
    """Return the deviation over classes with which the earlier end is that far from the mean.

    Args:
        reach: from the mean to the published end.
        values: (seeds,) towards that end.
    """
    seeds = len(values)
    if seeds == 1:
        return max(reach, 0.0) / NormalDist().inv_cdf(1 - TAIL)
    counts, shares = drawn_seeds(seeds)
    shifts = np.sqrt(seeds / (seeds - 1)) * (counts @ values / seeds - values.mean())

    def beyond(deviation: float) -> float:
        places: Floats = np.asarray((reach - shifts) / deviation, dtype=np.float64)
        return float(shares @ (1 - np.interp(places, _NORMAL, _BELOW)))

    low, high = 0.0, max(reach, 1e-9) / 1.9
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) < TAIL else (low, middle)
    return low


def recomputed(low: float, high: float, values: Floats, classes: int) -> Estimate:
    """Return the interval by the present rule, from the published ends."""
    mean = float(values.mean())

    def half(reach: float, towards: Floats, tail: float) -> float:
        deviation = class_deviation(reach, towards)
        # ``half_width`` takes this quantile of the deviations.
        quantile = np.array([deviation * NormalDist().inv_cdf(1 - tail)])
        return half_width(quantile, values, classes, tail)

    return Estimate(
        mean,
        mean - half(mean - low, -values, TAIL),
        mean + half(high - mean, values, TAIL),
        mean + half(high - mean, values, FAMILY_TAIL),
        len(values),
        classes,
    )


class Report:
    """A report that is being rewritten."""

    def __init__(self, folder: Path) -> None:
        """Read report.md and the values of results.csv."""
        self.lines = (folder / "report.md").read_text(encoding="utf-8").split("\n")
        text = "\n".join(self.lines)
        classes = int(re.findall(r"tested on ([\d,]+) classes", text)[0].replace(",", ""))
        values: dict[Key, list[tuple[int, float]]] = {}
        with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                key = (row["scenario"], row["method"], row["test"], row["metric"])
                values.setdefault(key, []).append((int(row["seed"]), float(row["value"])))
        arrays = {key: np.array([v for _, v in sorted(pairs)]) for key, pairs in values.items()}
        self.published = Published(arrays, classes)
        # Every interval and every verdict before and now, in their order.
        self.cells: list[tuple[str, str, Verdict]] = []
        self.verdicts: list[tuple[str, str]] = []
        self.gains: dict[tuple[str, str, str], Verdict] = {}  # scenario, method, metric
        self.changes: list[str] = []

    def rewrite(self) -> str:
        """Return the new report."""
        self._read_gains()
        title, heads, scenario, method = "", [], "", ""
        for place, line in enumerate(self.lines):
            if line.startswith("## "):
                title, heads = line[3:], []
            elif "Average over the diagonal" in line:
                self.lines[place] = self._chain_note(line, title)
            elif line.startswith("|") and not line.startswith("| ---") and title != "Cost":
                cells = line[2:-2].split(" | ") if not line.startswith("|  |") else [
                    "", *line[5:-2].split(" | ")
                ]  # fmt: skip
                if not heads:
                    heads = cells
                    continue
                names = [re.sub(r" \(.*", "", cell) for cell in cells[:3]]
                if heads[0] == "scenario":
                    scenario, method = names[0] or scenario, names[1] or method
                else:
                    method = names[0]
                row = [
                    self._cell(cell, title, heads[column], scenario, method, names)
                    for column, cell in enumerate(cells)
                ]
                self.lines[place] = f"| {' | '.join(row)} |"
        return self._with_notes("\n".join(self.lines).replace(", coloured by the criterion.", "."))

    def _read_gains(self) -> None:
        """Note the verdict of each gain of a cell, from the tables that have all metrics."""
        heads: list[str] = []
        scenario = ""
        for line in self.lines:
            if line.startswith("## "):
                scenario, heads = line[3:].removesuffix(": the criterion and its price"), []
            elif "criterion and its price" in line or not line.startswith("| "):
                continue
            elif any(head.endswith("cross − old self") for head in heads) and "verdict" in heads:
                cells = line[2:-2].split(" | ")
                for head, cell in zip(heads[1:], cells[1:], strict=True):
                    metric = head.removesuffix(": cross − old self")
                    triple = TRIPLE.match(cell)
                    if triple is not None and metric != head:
                        self.gains[scenario, cells[0], metric] = self._estimate(
                            triple, gain(self.published, scenario, cells[0], metric)
                        ).verdict
            elif not heads:
                heads = line[2:-2].split(" | ")

    def _cell(
        self, cell: str, title: str, head: str, scenario: str, method: str, names: list[str]
    ) -> str:
        """Return a cell with its intervals, or its verdict, by the present rule."""
        if title == "Verdicts" and "(" in cell:
            return self._verdict_cell(cell, head, method)
        if head == "verdict":
            place = title.removesuffix(": the criterion and its price")
            self.verdicts.append((cell, joint_verdict(self._deciding(place, method))))
            return self.verdicts[-1][1]
        triples = list(TRIPLE.finditer(cell))
        if not triples or head == "score scale":
            return cell
        sources = values_of(self.published, title, head, scenario, method, names)
        ends = iter(triples)

        def new(_: re.Match[str]) -> str:
            return self._text(next(ends), next(sources))

        return TRIPLE.sub(new, cell)

    def _text(self, triple: re.Match[str], values: Floats) -> str:
        estimate = self._estimate(triple, values)
        low, high = estimate.low, estimate.high
        digits = len(triple[1].split(".")[1])
        if triple[1][0] in "+-":
            ends = f"{low:+.{digits}f} to {high:+.{digits}f}"
        else:
            ends = f"{max(low, 0.0):.{digits}f} to {min(high, 100.0):.{digits}f}"
        self.cells.append((f"{triple[2]} to {triple[3]}", ends, estimate.verdict))
        return f"{triple[1]} ({ends}"

    def _estimate(self, triple: re.Match[str], values: Floats) -> Estimate:
        digits = len(triple[1].split(".")[1])
        if abs(float(triple[1]) - values.mean()) > 1.1 * 10**-digits:
            raise SystemExit(f"{triple[0]} has the mean {values.mean():.4f} in results.csv")
        return recomputed(float(triple[2]), float(triple[3]), values, self.published.classes)

    def _deciding(self, scenario: str, method: str) -> list[Verdict]:
        return [
            verdict
            for (place, name, metric), verdict in self.gains.items()
            if (place, name) == (scenario, method) and metric.startswith(("TAR", "top-"))
        ]

    def _verdict_cell(self, cell: str, scenario: str, method: str) -> str:
        verdicts = self._deciding(scenario, method)
        signs = " ".join(SIGNS[verdict] for verdict in verdicts)
        changed = f"{joint_verdict(verdicts)} ({signs})"
        self.verdicts.append((cell, changed))
        if changed != cell:
            self.changes.append(f"{scenario}, {method}: {cell} → {changed}")
        return changed

    def _chain_note(self, line: str, title: str) -> str:
        method = title.removeprefix("Upgrade chain, ")
        pairs = [(q, g) for q in range(1, 4) for g in range(1, q + 1)]
        tests = [self.published.of("chain", method, f"v{q}→v{g}", "top-1") for q, g in pairs]
        triple = TRIPLE.search(line)
        assert triple is not None
        return TRIPLE.sub(lambda _: self._text(triple, np.mean(tests, axis=0)), line)

    def _with_notes(self, text: str) -> str:
        """Return the report with what its intervals are over and how they were recomputed."""
        seeds = self.published.seeds
        text = with_rules(text, seeds)
        if seeds < FEWEST_SEEDS:
            tables = re.split(r"(?=^## )", text, flags=re.MULTILINE)
            for place, table in enumerate(tables):
                title, blank, note, *rest = [*table.split("\n"), "", ""][: table.count("\n") + 1]
                if title.startswith("## ") and title not in ("## Cost", "## What was run"):
                    tables[place] = "\n".join([title, blank, f"{note} {seeds_note(seeds)}", *rest])
            text = "".join(tables)
        return text.replace(
            "## What was run\n\n", f"## What was run\n\n- intervals: {RECOMPUTED}\n"
        )


def with_rules(text: str, seeds: int) -> str:
    """Return a report with the present rule of the verdict, and what intervals are over."""
    text = text.replace(
        "one template per class).", f"one template per class). {seeds_note(seeds)}", 1
    )
    return re.sub(
        r"(Compatible(?: means)?: the cross test is above [^<\n]*? (?:is|lies) above zero)"
        r"[^<\n]*?(?:contains|holds) zero\.",
        lambda rule: f"{rule[1]} (✓). {NOT_COMPATIBLE_RULE}: ✗ is such a difference, ≈ is neither.",
        text,
        count=1,
    )


def gain(published: Published, scenario: str, method: str, metric: str) -> Floats:
    """Return cross − old self."""
    cross = published.of(scenario, method, "new→old", metric)
    return cross - published.of(scenario, "old", "old→old", metric)


def price(published: Published, scenario: str, method: str, metric: str) -> Floats:
    """Return new self − free self."""
    self_test = published.of(scenario, method, "new→new", metric)
    return self_test - published.of(scenario, "free", "new→new", metric)


def values_of(
    published: Published, title: str, head: str, scenario: str, method: str, names: list[str]
) -> Iterator[Floats]:
    """Yield the values of each interval in a cell.

    Args:
        published: what the report says.
        title: of the table.
        head: of the column.
        scenario: of the row, in tables that have a column for it.
        method: of the row.
        names: the first three cells of the row, without their small text.
    """
    of = published.of
    criterion = title.removesuffix(": the criterion and its price")
    against = re.fullmatch(r"Against (\S+?)(, self test)?(?:, (\S+))?", title)
    if match := re.fullmatch(r"Cross − old self, points of (.+)", title):
        yield gain(published, head, method, match[1])
    elif match := re.fullmatch(r"New self − free self, points of (.+)", title):
        yield price(published, head, method, match[1])
    elif criterion != title:
        metric, _, kind = head.partition(": ")
        yield (gain if kind == "cross − old self" else price)(published, criterion, method, metric)
    elif against:
        test, metric = "new→new" if against[2] else "new→old", against[3] or "top-1"
        yield of(head, method, test, metric) - of(head, against[1], test, metric)
    elif title.startswith("All scenarios"):
        side, metric = head.split(" ")
        old, test = method == "old", {"cross": "new→old", "self": "new→new"}[side]
        yield of(scenario, method, "old→old" if old else test, metric)
    elif title.startswith(("Prototypes", "Other losses")):
        metric, _, kind = head.partition(": ")
        if kind:
            yield gain(published, "extended-data", method, metric)
        else:
            test = "old→old" if method == "old" else "new→old"
            yield of("extended-data", method, test, metric)
    elif title == "Negative flips":
        yield of(head, method, "new→old", "nfr")
        yield of(head, method, "new→old", "pfr")
        yield of(head, method, "new→old", "relative_nfr") / 100
    elif title == "At the old thresholds":
        yield _at_old_threshold(published, head, scenario, method)
    elif title.startswith("Blended"):
        yield _blended(published, title, head, scenario, method)
    elif title == "Mixed galleries":
        yield _mixed(published, head, scenario, method, names[2])
    elif title.startswith("Upgrade chain"):
        yield _chain(published, title, head, names[0])
    else:
        raise SystemExit(f"there is no rule for the table {title}")


def _at_old_threshold(published: Published, head: str, scenario: str, method: str) -> Floats:
    of = published.of
    if head.startswith("negative flips"):
        return of(scenario, method, "new→old", "nfr")
    if head == "scaled − old: TAR":
        scaled = of(scenario, method, "scaled at old threshold", "TAR")
        return scaled - of(scenario, method, "old at old threshold", "TAR")
    way, metric = head.split(": ")
    test = {"new": "cross"}.get(way, way)
    return of(scenario, method, f"{test} at old threshold", metric)


def _blended(published: Published, title: str, head: str, scenario: str, method: str) -> Floats:
    of = published.of
    metric, kind = head.split(": ")
    blend = "blend→old" if title == "Blended queries" else "between→old"
    if kind == "blended − old self":
        return of(scenario, method, blend, metric) - of(scenario, "old", "old→old", metric)
    if kind == "blended − cross":
        return of(scenario, method, blend, metric) - of(scenario, method, "new→old", metric)
    self_test = of(scenario, method, "between→between", metric)
    return self_test - of(scenario, method, "new→new", metric)


def _mixed(published: Published, head: str, scenario: str, method: str, merging: str) -> Floats:
    def of(metric: str, kind: str = merging) -> Floats:
        return published.of(scenario, method, f"mixed {kind}", metric)

    if head == "mean − raw":
        return of("top-1 mean") - of("top-1 mean", "raw")
    names = {
        "mean": "top-1 mean",
        "dip below the start": "top-1 dip below start",
        "dip below the line": "top-1 dip below line",
        "half: negative flips, %": "nfr at half",
    }
    return of(names.get(head, f"{head.removeprefix('half: ')} at half"))


def _chain(published: Published, title: str, head: str, name: str) -> Floats:
    method = title.removeprefix("Upgrade chain, ").removesuffix(": gains")
    if title.endswith(": gains"):
        pair, self_test = name.split(" − ")
        before = published.of("chain", method, self_test, head)
        return published.of("chain", method, pair, head) - before
    test = f"{name.split(' ')[0]}→{head.split(' ')[0]}"
    return published.of("chain", method, test, "top-1")


def new_page(page: str, report: Report) -> str:
    """Return report.html with the intervals, verdicts and colours of the rewritten report.md.

    The colours of a chain's matrix are taken away: its differences have no published interval.
    """
    intervals, verdicts = iter(report.cells), iter(report.verdicts)

    def interval(cell: re.Match[str]) -> str:
        before, now, verdict = next(intervals)
        start, kind, mean, ends = cell[1] or "", cell[2] or "", cell[3] or "", cell[4]
        if ends != before:
            raise SystemExit(f"report.html has {ends} where report.md has {before}")
        if kind:
            kind = f" is-{verdict.replace(' ', '-')}" if mean[0] in "+-" else ""
        return f'{start}{kind}">{mean}<small>{now}' if start else now

    def verdict(cell: re.Match[str]) -> str:
        before, now = next(verdicts)
        word, _, signs = now.partition(" (")
        if cell[2] != before.partition(" (")[0]:
            raise SystemExit(f"report.html has {cell[2]} where report.md has {before}")
        small = f"<small>{signs.removesuffix(')')}</small>" if signs else ""
        return f'<td class="word is-{word.replace(" ", "-")}">{word}{small}</td>'

    page = re.sub(
        r'(?:(<td class=")([^"]*)">([+-]?[\d.]+)<small>)?([+-]?\d+\.\d+ to [+-]?\d+\.\d+)',
        interval,
        page,
    )
    page = page.replace(", coloured by the criterion.", ".")
    return re.sub(
        r'<td class="word is-([a-z-]+)">([a-z ]+)(<small>[^<]*</small>)?</td>', verdict, page
    )


def new_csv(text: str, classes: int) -> str:
    """Return results.csv with intervals over classes by the present rule."""
    lines = text.rstrip("\n").split("\n")
    rows = [line.split(",") for line in lines]
    for row in rows[1:]:
        value, low, high = row[6:9]
        if low:
            interval = recomputed(float(low), float(high), np.array([float(value)]), classes)
            row[7:9] = [f"{interval.low:.6f}", f"{interval.high:.6f}"]
    return "\n".join(",".join(row) for row in rows) + "\n"


def main() -> None:
    """Rewrite every report, and print what has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("earlier", type=Path, help="the results as they were")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    for folder in sorted(path.parent for path in options.earlier.glob("*/report.md")):
        report = Report(folder)
        text, out = report.rewrite(), options.out / folder.name
        (out / "report.md").write_text(text, encoding="utf-8")
        if (folder / "report.html").exists():
            page = (folder / "report.html").read_text(encoding="utf-8")
            page = with_rules(new_page(page, report), report.published.seeds)
            page = page.replace("<dl>", f"<dl>\n<dt>intervals</dt><dd>{RECOMPUTED}</dd>", 1)
            (out / "report.html").write_text(page, encoding="utf-8")
        table = (folder / "results.csv").read_text(encoding="utf-8")
        (out / "results.csv").write_text(new_csv(table, report.published.classes), encoding="utf-8")
        print(f"{folder.name}: {len(report.cells)} intervals, {report.published.seeds} seeds")
        for change in report.changes:
            print(f"- {change}")


if __name__ == "__main__":
    main()

"""The paper's figures for IJB-C, from its Table 2, to show beside measured ones."""

import csv
from functools import cache
from importlib import resources

_COLUMNS = {
    "cross TAR": "cross_tar_1e-4",
    "self TAR": "self_tar_1e-4",
    "cross top-1": "cross_top1",
    "cross top-5": "cross_top5",
    "self top-1": "self_top1",
    "self top-5": "self_top5",
}


def paper_figure(scenario: str, method: str, test: str, metric: str) -> str | None:
    """Return the paper's figure in percent, or None if the paper has none.

    Args:
        scenario: a name from ``SCENARIOS``.
        method: a name from ``METHODS``, or ``old`` for the old model.
        test: ``cross`` or ``self``.
        metric: the title of a metric. The paper's TAR is at the false accept rate 1e-4; it is
            returned for a TAR at any rate.
    """
    figures = _figures().get((scenario, method), {})
    return figures.get(f"{test} {metric.split('@')[0]}")


@cache
def _figures() -> dict[tuple[str, str], dict[str, str]]:
    """Return (scenario, method) -> test and metric -> figure."""
    text = (resources.files("unibct.report") / "paper_results.csv").read_text(encoding="utf-8")
    return {
        (row["scenario"], row["method"]): {
            name: row[column] for name, column in _COLUMNS.items() if row[column]
        }
        for row in csv.DictReader(text.splitlines())
    }

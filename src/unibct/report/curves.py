"""ROC and CMC curves as inline SVG, readable on light and dark pages."""

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unibct.evaluate import SearchTest
from unibct.metrics import roc_curve

COLOURS = {
    "old→old": "#8a8f98",
    "new→old": "#2a9d4a",
    "new→new": "#2f7de1",
    "free→free": "#b07ae0",
    "free→old": "#d9534f",
}
_GREY = "#8a8f98"
_POINTS = 400  # a curve needs no more to look smooth


def roc_svg(tests: dict[str, SearchTest]) -> str:
    """TAR over FAR, logarithmic in FAR."""

    def draw(axes: Axes) -> None:
        lowest = 1 / min(len(test.impostor) for test in tests.values())
        grid = np.geomspace(max(lowest, 1e-7), 1, _POINTS)
        for name, test in tests.items():
            curve = roc_curve(test.genuine, test.impostor)
            at = np.searchsorted(curve.far, grid, side="right") - 1
            axes.plot(grid, 100 * curve.tar[at], label=name, color=COLOURS.get(name), lw=2)
        axes.set_xscale("log")
        axes.set_xlabel("false accept rate")
        axes.set_ylabel("true accept rate, %")

    return _svg(draw, "ROC: 1:1 verification")


def cmc_svg(tests: dict[str, SearchTest], most: int = 20) -> str:
    """The share of queries that find their class among the k best, over k."""

    def draw(axes: Axes) -> None:
        templates = next(iter(tests.values())).scores.shape[1]
        ks = np.arange(1, min(most, templates) + 1)
        curves = {name: [100 * test.top(int(k)) for k in ks] for name, test in tests.items()}
        # Free queries find nothing in the old gallery: shown in full they would flatten the rest.
        bottom = min(hits[0] for name, hits in curves.items() if name != "free→old") - 5
        for name, hits in curves.items():
            label = f"{name} (below)" if hits[-1] < bottom else name
            axes.plot(ks, hits, label=label, color=COLOURS.get(name), lw=2, marker=".")
        axes.set_ylim(bottom=max(0.0, bottom))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("k")
        axes.set_ylabel("found among the k best, %")

    return _svg(draw, "CMC: 1:N identification")


def _svg(draw: Callable[[Axes], None], title: str) -> str:
    style: dict[Any, Any] = {
        "svg.hashsalt": "unibct",  # the same curve gives the same file
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "text.color": _GREY,
        "axes.labelcolor": _GREY,
        "axes.edgecolor": _GREY,
        "xtick.color": _GREY,
        "ytick.color": _GREY,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(5.6, 4.2), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        axes.set_title(title)
        axes.set_ylim(top=101)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]

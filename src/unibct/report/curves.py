"""ROC, CMC and backfill curves and compatibility matrices as inline SVG.

Text and lines take the colour of the page, so that they are readable on light and dark pages.
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.evaluation.search_test import (
    BLEND,
    CROSS,
    FREE_CROSS,
    FREE_SELF,
    NEW_SELF,
    OLD_SELF,
    REVERSED_CROSS,
    SearchTest,
)
from unibct.evaluation.templates import GallerySplit
from unibct.examples.demo import GalleryStory

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise UserError("reports need matplotlib: pip install 'unibct[report]'") from error

COLOURS: dict[str, str] = {
    OLD_SELF: "#8a8f98",
    CROSS: "#2a9d4a",
    NEW_SELF: "#2f7de1",
    FREE_SELF: "#a872dc",
    FREE_CROSS: "#d9534f",
    REVERSED_CROSS: "#cc7722",
    BLEND: "#159a9a",
}
# For the methods of a benchmark; readable on white and on black.
METHOD_COLOURS = (
    "#2a9d4a", "#2f7de1", "#cc7722", "#a872dc", "#159a9a", "#d9534f", "#9c7a1d", "#dc5f95",
)  # fmt: skip
_TEXT = "#010203"  # replaced by the colour of the page's text, light or dark
_POINTS = 400  # enough for a curve to look smooth
_LONG_LABEL = 20  # letters; three of them side by side would be cut off


def roc_svg(tests: dict[str, SearchTest], colours: Mapping[str, str] = COLOURS) -> str:
    """Return the ROC curve of each test: TAR over FAR, on a logarithmic axis."""

    def draw(axes: Axes) -> None:
        lowest = 1 / min(len(test.impostor) for test in tests.values())
        grid = np.geomspace(max(lowest, 1e-7), 1, _POINTS)
        for name, test in tests.items():
            curve = test.pairs.roc()
            points = np.searchsorted(curve.far, grid, side="right") - 1
            axes.plot(grid, 100 * curve.tar[points], label=name, color=colours.get(name), lw=2)
        axes.set_xscale("log")
        axes.set_xlabel("false accept rate")
        axes.set_ylabel("true accept rate, %")

    return _svg(draw, "ROC: 1:1 verification")


def cmc_svg(
    tests: dict[str, SearchTest], colours: Mapping[str, str] = COLOURS, *, largest_k: int = 20
) -> str:
    """Return the CMC curve of each test: the share of queries with their class in the k best."""

    def draw(axes: Axes) -> None:
        templates = next(iter(tests.values())).templates
        ks = np.arange(1, min(largest_k, templates) + 1)
        curves = {name: [100 * test.top(int(k)) for k in ks] for name, test in tests.items()}
        # Free queries find nothing in the old gallery. Their curve would flatten all others.
        best = max(hits[0] for hits in curves.values())
        bottom = min(hits[0] for hits in curves.values() if hits[0] > best - 50) - 5
        for name, hits in curves.items():
            label = f"{name} (below)" if hits[-1] < bottom else name
            axes.plot(ks, hits, label=label, color=colours.get(name), lw=2, marker=".")
        axes.set_ylim(bottom=max(0.0, bottom))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("k")
        axes.set_ylabel("found among the k best, %")

    return _svg(draw, "CMC: 1:N identification")


def story_svg(story: GalleryStory) -> str:
    """Return top-1 and right names over the share of rows that the new model has made."""

    def draw(axes: Axes) -> None:
        shares = [100 * stage.share for stage in story.curve]
        before, after = story.stages[0], story.curve
        for label, test, old, values in (
            ("top-1", CROSS, before.top_1, [stage.top_1 for stage in after]),
            ("right names", NEW_SELF, before.right_names, [stage.right_names for stage in after]),
        ):
            colour, percent = COLOURS[test], [100 * value for value in values]
            axes.plot(shares, percent, label=label, color=colour, lw=2, marker="o")
            axes.axhline(100 * old, label=f"{label}, old model", color=colour, lw=1.5, ls="--")
        axes.set_xlabel("rows of the new model, %")
        axes.set_ylabel("queries, %")

    return _svg(draw, "The gallery during the backfill")


def standalone(svg: str) -> str:
    """Return a picture as a file of its own: dark text on white, whatever is around it."""
    return svg.replace("<svg ", '<svg style="background: #ffffff; color: #15181c" ', 1)


def matrix_svg(values: Sequence[Sequence[float]], names: Sequence[str], title: str) -> str:
    """Return a compatibility matrix in percent.

    ``values`` (versions, versions) are shares; rows are query models, columns are galleries.
    """

    def draw(axes: Axes) -> None:
        percent = 100 * np.asarray(values)
        lowest, highest = float(percent.min()), float(percent.max())
        picture = axes.imshow(percent, cmap="viridis", vmin=lowest, vmax=highest)
        luminance = (picture.to_rgba(percent)[..., :3] ** 2.2) @ (0.2126, 0.7152, 0.0722)
        for (row, column), value in np.ndenumerate(percent):
            colour = "#ffffff" if luminance[row, column] < 0.2 else "#15181c"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
        axes.set_xticks(range(len(names)), [f"{name} gallery" for name in names])
        axes.set_yticks(range(len(names)), [f"{name} queries" for name in names])

    return _svg(draw, title, curve=False)


def _svg(draw: Callable[[Axes], None], title: str, *, curve: bool = True) -> str:
    """Return the SVG element of a figure; a curve has a grid and a legend."""
    style: dict[Any, Any] = {
        "svg.hashsalt": "unibct",  # makes the same curve give the same text
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 11,  # readable on a phone, where the picture shrinks
        "axes.titlesize": "medium",
        "text.color": _TEXT,
        "axes.labelcolor": _TEXT,
        "axes.edgecolor": _TEXT,
        "xtick.color": _TEXT,
        "ytick.color": _TEXT,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.8, 4.4 if curve else 3.6), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        axes.set_title(title)
        if curve:
            axes.set_ylim(top=101)
            axes.grid(alpha=0.25)
            longest = max(len(str(line.get_label())) for line in axes.lines)
            columns = 3 if len(axes.lines) < 6 and longest < _LONG_LABEL else 2
            figure.legend(loc="outside lower center", ncols=columns, frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue().replace(_TEXT, "currentColor")
    return svg[svg.index("<svg") :]


# Query pictures with the templates that a search returns for them.


@dataclass(frozen=True)
class Hit:
    """A template that a search returned."""

    picture: str  # an image of its class, as a data URI
    class_name: str
    correct: bool  # whether its class is the query's


@dataclass(frozen=True)
class SearchedQuery:
    """A query and what the searches returned for it."""

    picture: str  # the query image, as a data URI
    class_name: str
    returned: dict[str, list[Hit]]  # the best templates of each test, best first


def searched_queries(
    images: ImageSet,
    split: GallerySplit,
    tests: dict[str, SearchTest],
    *,
    count: int = 12,
    k: int = 5,
    seed: int = 0,
) -> list[SearchedQuery]:
    """Return a random sample of queries, each with its ``k`` best templates in every test.

    ``split`` says which images are queries, and which are pooled into templates. The scores of the
    tests must be kept.
    """
    rng = np.random.default_rng([seed, 2])
    count = min(count, len(split.query))
    chosen_rows = np.sort(rng.choice(len(split.query), size=count, replace=False))
    first_of_class = {
        int(c): int(split.gallery[i])
        for c, i in zip(*np.unique(split.gallery_labels, return_index=True), strict=True)
    }
    pictures: dict[int, str] = {}

    def picture(index: int) -> str:
        if index not in pictures:
            pictures[index] = data_uri(images.read(images.ids[index]))
        return pictures[index]

    queries: list[SearchedQuery] = []
    for row in chosen_rows:
        label = int(split.query_labels[row])
        returned: dict[str, list[Hit]] = {}
        for name, test in tests.items():
            assert test.scores is not None, "a picture needs all scores"
            best_classes = np.argsort(-test.scores[row], kind="stable")[:k]
            returned[name] = [
                Hit(picture(first_of_class[int(c)]), images.class_names[int(c)], int(c) == label)
                for c in best_classes
            ]
        query = int(split.query[row])
        queries.append(SearchedQuery(picture(query), images.class_names[label], returned))
    return queries


def data_uri(pixels: Pixels, longest: int = 96) -> str:
    """Return an image as a data URI with a PNG whose longer side is at most ``longest``."""
    image = Image.fromarray(pixels)
    image.thumbnail((longest, longest))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

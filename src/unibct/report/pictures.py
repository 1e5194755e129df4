"""Query pictures with the templates that a search returns for them."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.evaluation.gallery_split import GallerySplit
from unibct.evaluation.search_test import SearchTest


@dataclass(frozen=True)
class Hit:
    """A template that a search returned.

    Attributes:
        picture: an image of its class, as a data URI.
        class_name: its class.
        correct: whether that is the query's class.
    """

    picture: str
    class_name: str
    correct: bool


@dataclass(frozen=True)
class SearchedQuery:
    """A query and what the searches returned for it.

    Attributes:
        picture: the query image, as a data URI.
        class_name: its class.
        returned: the best templates of each test, best first.
    """

    picture: str
    class_name: str
    returned: dict[str, list[Hit]]


def searched_queries(
    images: ImageSet,
    split: GallerySplit,
    tests: dict[str, SearchTest],
    *,
    count: int = 12,
    k: int = 5,
    seed: int = 0,
) -> list[SearchedQuery]:
    """Return a random sample of queries, each with its best templates in every test.

    Args:
        images: the test images.
        split: which of them are queries, and which are pooled into templates.
        tests: by name; their scores must be kept.
        count: number of queries.
        k: number of templates for each query.
        seed: chooses the queries.
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

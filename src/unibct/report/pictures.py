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
    """One returned template: a picture of its class, and whether it is the query's."""

    picture: str
    class_name: str
    correct: bool


@dataclass(frozen=True)
class SearchedQuery:
    """A query and what each test returns for it, best first."""

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
    """A random sample of queries (not a choice of the nicest), each with its k best templates."""
    rng = np.random.default_rng([seed, 2])
    count = min(count, len(split.query))
    chosen = np.sort(rng.choice(len(split.query), size=count, replace=False))
    first_pooled = {
        int(c): int(split.gallery[i])
        for c, i in zip(*np.unique(split.gallery_labels, return_index=True), strict=True)
    }
    pictures: dict[int, str] = {}

    def picture(index: int) -> str:
        if index not in pictures:
            pictures[index] = data_uri(images.read(images.ids[index]))
        return pictures[index]

    result: list[SearchedQuery] = []
    for row in chosen:
        label = int(split.query_labels[row])
        returned: dict[str, list[Hit]] = {}
        for name, test in tests.items():
            assert test.scores is not None, "a picture needs all scores"
            best = np.argsort(-test.scores[row], kind="stable")[:k]
            returned[name] = [
                Hit(picture(first_pooled[int(c)]), images.class_names[int(c)], int(c) == label)
                for c in best
            ]
        query = int(split.query[row])
        result.append(SearchedQuery(picture(query), images.class_names[label], returned))
    return result


def data_uri(pixels: Pixels, longest: int = 96) -> str:
    """A PNG inside a URI, made smaller where it is large."""
    image = Image.fromarray(pixels)
    image.thumbnail((longest, longest))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

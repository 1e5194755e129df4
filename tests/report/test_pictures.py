import base64
import io

import numpy as np
from PIL import Image

from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.search_test import search_test
from unibct.report.pictures import data_uri, searched_queries


def test_a_large_picture_becomes_a_small_png():
    pixels = np.random.default_rng(0).integers(256, size=(300, 150, 3), dtype=np.uint8)
    head, _, encoded = data_uri(pixels).partition(",")
    assert head == "data:image/png;base64"
    picture = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert (picture.format, picture.size) == ("PNG", (48, 96))


def test_a_small_picture_keeps_its_pixels():
    pixels = np.random.default_rng(0).integers(256, size=(20, 30), dtype=np.uint8)
    encoded = data_uri(pixels).partition(",")[2]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded)))), pixels)


def test_queries_come_with_the_best_templates_of_each_test(glyph_classes):
    split = split_gallery(glyph_classes.labels)
    perfect = np.eye(12)[glyph_classes.labels]  # every image is its class
    shifted = np.eye(12)[(glyph_classes.labels + 1) % 12]  # every image is the next class
    tests = {
        "right": search_test(perfect, perfect, split),
        "wrong": search_test(shifted, perfect, split),
    }
    queries = searched_queries(glyph_classes, split, tests, count=5, k=3)
    assert len(queries) == 5
    assert queries == searched_queries(glyph_classes, split, tests, count=5, k=3)
    names = list(glyph_classes.class_names)
    for query in queries:
        right, wrong = query.returned["right"], query.returned["wrong"]
        assert len(right) == len(wrong) == 3
        assert right[0].class_name == query.class_name
        assert [hit.correct for hit in right] == [True, False, False]
        assert names.index(wrong[0].class_name) == (names.index(query.class_name) + 1) % 12
        assert not wrong[0].correct
    many = searched_queries(glyph_classes, split, tests, count=10_000)
    assert len(many) == len(split.query)

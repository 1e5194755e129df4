import pytest

from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.gallery import Answer
from unibct.gallery.naming import Names, count_names
from unibct.gallery.search import Hit


def hit(label):
    return Hit("row", label, 0.9, "f", 0.9, "own", {})


def test_right_wrong_and_lost_names_are_counted():
    answers = [
        Answer("1", "a", [hit("a"), hit("b")], False),
        Answer("2", "a", [hit("b"), hit("a")], False),  # only the first row gives its name
        Answer("3", "a", [hit(None)], False),
        Answer("4", "b", [], False),
        Answer("5", "b", [hit("b")], False),
    ]
    names = count_names(answers)
    assert names == Names(right=2, wrong=2, lost=1)
    assert names.queries == 5
    assert names.as_json() == {"right": 2, "wrong": 2, "lost": 1}


def test_a_query_without_a_label_is_refused():
    with pytest.raises(UserError, match="'q' has no label"):
        count_names([Answer("q", None, [hit("a")], False)])


def test_a_threshold_that_nothing_passes_loses_every_name(toy_gallery):
    queries = toy_images(per_class=2, first=50)
    assert count_names(toy_gallery.search(queries, k=1)).lost == 0
    assert count_names(toy_gallery.search(queries, k=1, threshold=1.01)) == Names(0, 0, 12)

import json

import numpy as np
import pytest

from unibct.data.choices import BEST_EPOCH, SCORE_SCALE_MEASURED, Choice
from unibct.data.training_classes import (
    TrainingClasses,
    choice_on,
    choice_on_rows,
    identity_digests,
    training_classes,
)

CHOICE = Choice("α was chosen", "DATA", frozenset({"1"}), frozenset({"2", "3"}), "file")


def test_the_order_and_the_name_of_the_images_do_not_matter(glyph_classes):
    turned = glyph_classes.select(np.arange(len(glyph_classes))[::-1])
    first, second = choice_on("this", glyph_classes), choice_on("that", turned)
    assert turned.ids != glyph_classes.ids
    assert (first.images, first.classes) == (second.images, second.classes)
    assert first.classes == identity_digests(glyph_classes.class_names)
    rows = np.arange(len(glyph_classes) - 1)
    assert not choice_on("this", glyph_classes.select(rows)).images & first.images


@pytest.mark.parametrize(
    ("ids", "names", "source"),
    [(("1", "3"), ("a", "b"), None), (("1", "2"), ("a", "c"), None), (("1", "2"), ("a", "b"), "f")],
)
def test_other_images_have_another_digest(ids, names, source):
    """Images of many sets are named 0, 1, 2 …: they are the same if their classes are, too."""
    choices = [
        choice_on_rows("", None, *images, source)
        for images, source in (
            ((("1", "2"), np.arange(2), ("a", "b")), None),
            ((ids, np.arange(2), names), source),
        )
    ]
    assert not choices[0].images & choices[1].images


def test_names_of_classes_without_images_do_not_count():
    choice = choice_on_rows("", None, ("p", "q"), np.array([2, 2]), ("a", "b", "c"), None)
    assert choice.classes == identity_digests(["c"])


def test_vectors_find_the_same_images_under_any_name():
    vectors = np.random.default_rng(0).normal(size=(5, 3))
    choices = [
        Choice("", images=frozenset({name})).with_vectors(rows)
        for name, rows in (("x", vectors), ("y", vectors[::-1]), ("z", vectors[:4]))
    ]
    assert len(choices[0].images & choices[1].images) == 1
    assert not choices[0].images & choices[2].images


def test_a_choice_comes_back_from_a_file_with_the_classes_of_its_model():
    assert Choice.of_json(json.loads(json.dumps(CHOICE.as_json()))) == CHOICE
    unknown = Choice(BEST_EPOCH)
    assert Choice.of_json(json.loads(json.dumps(unknown.as_json()))) == unknown
    learnt = TrainingClasses(choices=frozenset({CHOICE, unknown}))
    both = learnt | training_classes(("a",), None)
    assert both.choices == learnt.choices
    assert TrainingClasses.of_json(json.loads(json.dumps(both.as_json()))) == both
    assert both.without(BEST_EPOCH).choices == {CHOICE}


def test_a_choice_says_of_which_model_it_is():
    told = Choice(SCORE_SCALE_MEASURED).of_model("new").what
    assert told == "the score scale of the new model was measured"
    assert CHOICE.of_model("new") == CHOICE

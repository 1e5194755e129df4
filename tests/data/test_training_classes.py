import json

import numpy as np
import pytest

from unibct.data.training_classes import (
    BEST_EPOCH,
    SCORE_SCALE_MEASURED,
    UNKNOWN_CLASSES,
    Choice,
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
        choice_on_rows("", None, one_ids, np.arange(2), one_names, one_source)
        for one_ids, one_names, one_source in ((("1", "2"), ("a", "b"), None), (ids, names, source))
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


def test_equal_identities_have_equal_digests():
    named = training_classes(("ann", "bob"), None)
    assert named.digests == identity_digests(["bob", "ann"])
    assert len(named.digests) == 2
    assert (named.sources, named.complete) == ({None}, True)
    numbered = training_classes(("0", "1"), "recordio-1")
    assert numbered.sources == {"recordio-1"}
    assert numbered.digests == identity_digests(["0 of recordio-1", "1 of recordio-1"])
    assert not numbered.digests & training_classes(("0", "1"), None).digests


def test_two_trainings_add_up_and_a_model_without_class_names_may_have_seen_anything():
    assert training_classes((), None) == UNKNOWN_CLASSES
    assert not UNKNOWN_CLASSES.complete
    named, numbered = training_classes(("a", "b"), None), training_classes(("0",), "file")
    both = named | numbered
    assert both == TrainingClasses(named.digests | numbered.digests, frozenset({None, "file"}))
    assert not (both | UNKNOWN_CLASSES).complete
    assert (both | UNKNOWN_CLASSES).digests == both.digests
    for kept in (both, both | UNKNOWN_CLASSES):
        assert TrainingClasses.of_json(json.loads(json.dumps(kept.as_json()))) == kept


def test_numbers_without_a_source_are_named_as_nothing():
    """Earlier versions took them for names, in files that hold digests only."""
    numbers = training_classes(("0", "1"), None)
    old = TrainingClasses(identity_digests(["0", "1"]), frozenset({None}))
    for classes in (numbers, old, TrainingClasses.of_json(old.as_json()), old | UNKNOWN_CLASSES):
        assert not classes.named_as(None)
        assert not classes.named_as("set-1")
        assert not classes.named_as("unknown")
    assert training_classes(("0", "1"), "set-1").named_as("set-1")
    assert training_classes(("a", "b"), None).named_as(None)
    assert not training_classes(("a", "b"), None).named_as("set-1")

import json

from unibct.data.training_classes import (
    UNKNOWN_CLASSES,
    TrainingClasses,
    identity_digests,
    training_classes,
)


def test_equal_identities_have_equal_digests():
    named = training_classes(("ann", "bob"), None)
    assert named.digests == identity_digests(["bob", "ann"])
    assert len(named.digests) == 2
    assert (named.sources, named.complete) == ({None}, True)
    numbered = training_classes(("0", "1"), "recordio-1")
    assert numbered.sources == {"recordio-1"}
    assert numbered.digests == identity_digests(["0 of recordio-1", "1 of recordio-1"])
    assert not numbered.digests & training_classes(("0", "1"), None).digests


def test_a_model_without_class_names_may_have_seen_anything():
    assert training_classes((), None) == UNKNOWN_CLASSES
    assert not UNKNOWN_CLASSES.complete


def test_two_trainings_add_up():
    named, numbered = training_classes(("a", "b"), None), training_classes(("0",), "file")
    both = named | numbered
    assert both == TrainingClasses(named.digests | numbered.digests, frozenset({None, "file"}))
    assert not (both | UNKNOWN_CLASSES).complete
    assert (both | UNKNOWN_CLASSES).digests == both.digests


def test_training_classes_come_back_from_a_file():
    both = training_classes(("a", "b"), None) | training_classes(("0",), "file") | UNKNOWN_CLASSES
    assert TrainingClasses.of_json(json.loads(json.dumps(both.as_json()))) == both


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

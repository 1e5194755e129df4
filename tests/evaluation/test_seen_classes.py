import re

import numpy as np
import pytest

from tests.data.example_images import png
from tests.data.readers.example_tars import write_tar
from unibct.data.scenarios import hold_out
from unibct.data.training_classes import UNKNOWN_CLASSES, training_classes
from unibct.embeddings.folder import NO_CLASS, Embeddings
from unibct.embeddings.forms.table import write_embeddings
from unibct.embeddings.vector_set import open_data
from unibct.errors import UserError
from unibct.evaluation.seen_classes import SeenClasses, count_seen_classes, models_under_test

NAMED = training_classes(("a", "b", "c"), None)
OTHERS = training_classes(("c", "d", "x"), None)
NUMBERED = training_classes(("0", "1"), "file")
TEST = ("a", "b", "c", "d", "e", "f", "g", "h")


@pytest.mark.parametrize(
    ("old", "new", "source", "count", "note"),
    [
        (NAMED, OTHERS, None, 4, "4 of the 8 test classes were in a model's training set"),
        (NAMED, NAMED, None, 3, "3 of the 8 test classes were"),
        (NUMBERED, NUMBERED, "file", 0, "none of the 8 test classes was in"),
        (NAMED, UNKNOWN_CLASSES, None, 3, "at least 3 of the 8 .*the new model's .* not recorded"),
        (NUMBERED, NAMED, None, 3, "at least 3 of the 8 .*the old .* name their classes differ"),
        (NUMBERED, UNKNOWN_CLASSES, "file", None, "is unknown: the new model's .* not recorded"),
        (NAMED, NAMED, "file", None, "is unknown: the old .* name their classes differently"),
        (UNKNOWN_CLASSES, UNKNOWN_CLASSES, None, None, "is unknown: the old model's"),
    ],
)
def test_classes_of_either_model_are_counted(old, new, source, count, note):
    seen = count_seen_classes(TEST, source, {"old": old, "new": new})
    assert (seen.count, seen.classes) == (count, 8)
    assert re.search(note, seen.note)


def test_numbers_mean_something_in_their_own_file_only():
    models = {"old": NUMBERED, "new": NUMBERED}
    assert count_seen_classes(("0", "1", "2"), "file", models).count == 2
    assert count_seen_classes(("0", "1", "2"), "another file", models).count is None


def test_a_majority_is_refused_or_marked():
    assert not SeenClasses(4, 8).require_minority().overridden
    assert not SeenClasses(4, 8).require_minority(allowed=True).overridden
    assert not SeenClasses(None, None, "no names").require_minority(allowed=True).overridden
    assert SeenClasses(8, 8).require_minority(allowed=True).basis == "overridden"
    with pytest.raises(UserError, match=r"^5 of the 8 test classes .*--hold-out.*--seen-classes"):
        SeenClasses(5, 8).require_minority()
    with pytest.raises(UserError, match=r"^5 of the 8 classes of others were"):
        SeenClasses(5, 8).require_minority(which="classes of others")
    with pytest.raises(UserError, match="5 of the 8"):  # more may have been seen
        SeenClasses(5, 8, "the old model's are not recorded").require_minority()
    with pytest.raises(UserError, match="1 of the 2"):  # one unseen class cannot be searched
        SeenClasses(1, 2).require_minority()


@pytest.mark.parametrize(
    ("seen", "basis", "tested", "verdict"),
    [
        (SeenClasses(0, 8), "unseen", 8, None),
        (SeenClasses(3, 8), "unseen", 5, "the verdict is over the 5 others"),
        (SeenClasses(3, 8, "?"), "unknown", 5, "over the 5 others, as far as is known; the .* if"),
        (SeenClasses(None, 8, "?"), "unknown", 8, "holds for new classes only if no model was"),
        (SeenClasses(None, None, "?"), "unknown", None, "holds for new classes only if no model"),
        (SeenClasses(5, 8, overridden=True), "overridden", 3, "the verdict is over the 3 others"),
        (SeenClasses(7, 8, overridden=True), "overridden", 8, "over them, and says nothing about"),
    ],
)
def test_a_count_says_what_the_verdict_rests_on(seen, basis, tested, verdict):
    assert (seen.basis, seen.tested) == (basis, tested)
    assert seen.as_json()["basis"] == basis
    assert re.search(verdict or "training set$", seen.note)
    assert ("the verdict" in seen.note) == (verdict is not None)


def embeddings(ids="pqr", labels=(2, 0, 2), **known):
    vectors = np.ones((len(ids), 2), np.float32)
    return Embeddings(vectors, tuple(ids), np.array(labels), ("a", "b", "c"), "model", **known)


def test_labels_and_names_are_those_of_the_embeddings():
    known = embeddings(class_source=None, training_classes=training_classes(("c", "b"), None))
    tested = models_under_test({"old": known, "new": known}, None)
    assert tested.labels.tolist() == [1, 0, 1]
    assert tested.seen_among(tested.labels) == SeenClasses(1, 2), "no image is of class b"
    assert tested.is_seen.tolist() == [True, False, True]
    other_numbers = models_under_test({"old": known, "new": known}, [0, 1, 0])
    assert other_numbers.is_seen.tolist() == [True, False, True]
    assert tested.vectors["old"].shape == (3, 2)


def test_one_side_may_be_an_array():
    known = embeddings(class_source=None, training_classes=training_classes(("c",), None))
    tested = models_under_test({"old": np.ones((3, 2)), "new": known}, None)
    assert tested.seen_among(tested.labels).count == 1
    assert tested.unknown == "the old model's training classes are not recorded"
    before = embeddings()  # from a folder that does not know its classes' source
    tested = models_under_test({"old": before, "new": known}, None)
    assert tested.seen_among(tested.labels).count == 1
    with pytest.raises(UserError, match="labels are missing"):
        models_under_test({"old": np.ones((3, 2))}, None)


def test_other_images_are_refused():
    with pytest.raises(UserError, match=r"the new model are not of the same images in the same"):
        models_under_test({"old": embeddings(), "new": embeddings("qpr")}, None)


def test_embeddings_without_classes_do_not_say():
    nameless = Embeddings(np.ones((2, 2), np.float32), ("p", "q"), np.full(2, NO_CLASS), (), "m")
    tested = models_under_test({"old": nameless, "new": nameless}, [0, 1])
    assert tested.seen_among(tested.labels) == SeenClasses(
        None, None, "the embeddings have no classes"
    )
    with pytest.raises(UserError, match="labels are missing: the embeddings have no classes"):
        models_under_test({"old": nameless, "new": nameless}, None)


def test_labels_are_those_of_the_model_that_has_classes():
    known = embeddings()
    nameless = Embeddings(known.vectors, known.ids, np.full(3, NO_CLASS), (), "m")
    tested = models_under_test({"old": nameless, "new": known}, None)
    alone = models_under_test({"old": known}, None)
    assert tested.labels.tolist() == alone.labels.tolist()


def test_models_that_disagree_on_the_classes_need_labels():
    ids, first = "pqrst", embeddings("pqrst", (2, 0, 2, 1, 1))
    renamed = embeddings(ids, (0, 1, 0, 2, 2))
    tested = models_under_test({"old": first, "new": renamed}, None)
    assert tested.labels.tolist() == [2, 0, 2, 1, 1]
    for other in ((2, 0, 0, 1, 1), (2, 0, 2, 1, 0), (1, 1, 1, 1, 1), (0, 1, 0, 1, 1)):
        models = {"old": first, "new": embeddings(ids, other)}
        with pytest.raises(UserError, match="the old and the new model have other classes"):
            models_under_test(models, None)
        labels = [0, 1, 0, 1, 1]
        assert models_under_test(models, labels).labels.tolist() == labels


NUMBERED_KINDS = ("list", "tar", "folder", "npy", "parquet", "safetensors")


def written(place, kind, labels, first=0):
    """Data in a layout whose classes may be numbers: one image, or vector, for each label."""
    place.mkdir()
    if kind in ("npy", "parquet", "safetensors"):
        vectors = np.eye(len(labels) + 3, dtype=np.float32)[
            [first % 3 + i for i in range(len(labels))]
        ]
        names = tuple(dict.fromkeys(labels))
        rows = np.array([names.index(label) for label in labels])
        ids = tuple(f"{row}" for row in range(len(labels)))
        path = place / (f"x.{kind}")
        write_embeddings(Embeddings(vectors, ids, rows, names, ""), path, kind)
        return open_data(f"embeddings:{path}")
    images = [(f"{i}.png", png(first + i)) for i in range(len(labels))]
    if kind == "tar":
        members = [
            (name.replace("png", "cls"), label.encode())
            for (name, _), label in zip(images, labels, strict=True)
        ]
        write_tar(place / "x.tar", images + members)
        return open_data(place / "x.tar")
    for (name, data), label in zip(images, labels, strict=True):
        folder = place / label if kind == "folder" else place
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    if kind == "folder":
        return open_data(place)
    lines = [f"{name} {label}\n" for (name, _), label in zip(images, labels, strict=True)]
    (place / "x.lst").write_text("".join(lines))
    return open_data(place / "x.lst")


def seen_of(test, training):
    trained = training_classes(training.class_names, training.class_source)
    return count_seen_classes(test.class_names, test.class_source, {"new": trained})


@pytest.mark.parametrize("kind", NUMBERED_KINDS)
def test_class_numbers_are_no_names(tmp_path, kind):
    labels = ("0", "0", "1", "1", "2", "2")
    training = written(tmp_path / "a", kind, labels)
    renumbered = written(tmp_path / "b", kind, ("7", "7", "8", "8", "9", "9"))
    others = written(tmp_path / "c", kind, labels, first=50)
    for test in (renumbered, others):
        seen = seen_of(test, training)
        assert seen.count is None
        assert "only number" in seen.note
    copied = written(tmp_path / "d", kind, labels)
    assert seen_of(copied, training).note.startswith("3 of the 3 test classes were")
    parts = hold_out(np.repeat([0, 1, 2, 3], 2), 0.5)
    whole = written(tmp_path / "e", kind, ("0", "0", "1", "1", "2", "2", "3", "3"))
    test, rest = whole.select(parts.test), whole.select(parts.train)
    assert seen_of(test, rest).note.startswith("none of the 2 test classes")
    words = [written(tmp_path / name, kind, ("a", "a", "b", "b")) for name in "fg"]
    assert seen_of(*words).note.startswith("2 of the 2 test classes")

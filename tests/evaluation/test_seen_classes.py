import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.data.example_images import png
from tests.data.readers.example_tars import write_tar
from tests.evaluation.noisy_classes import noisy_classes
from tests.models.cases import small_model, trained_from
from tests.training.runs import RECIPE
from unibct.data.readers import open_images
from unibct.data.scenarios import hold_out
from unibct.data.training_classes import (
    BEST_EPOCH,
    SCORE_MAP_FITTED,
    SCORE_SCALE_MEASURED,
    UNKNOWN_CLASSES,
    UNKNOWN_SOURCE,
    Choice,
    TrainingClasses,
    choice_on_rows,
    training_classes,
)
from unibct.embeddings.extraction import embed
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import NO_CLASS, Embeddings, save_embeddings
from unibct.embeddings.stored import open_data
from unibct.errors import UserError
from unibct.evaluation.blending import choose_alpha
from unibct.evaluation.certificate import Certificate
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.seen_classes import (
    SeenClasses,
    choices_of,
    compared_choices,
    count_seen_classes,
    models_under_test,
)
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.evaluation.weight_choice import choose_weights
from unibct.models.blended_weights import blend_weights
from unibct.models.model_folder import load_model, save_model
from unibct.training.train import train

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
    for seen, which, message in (
        (SeenClasses(5, 8), {}, r"^5 of the 8 test classes .*--hold-out.*seen_classes"),
        (SeenClasses(5, 8), {"which": "classes of others"}, "^5 of the 8 classes of others were"),
        # More may have been seen; and one unseen class cannot be searched.
        (SeenClasses(5, 8, "the old model's are not recorded"), {}, "5 of the 8"),
        (SeenClasses(1, 2), {}, "1 of the 2"),
    ):
        with pytest.raises(UserError, match=message):
            seen.require_minority(**which)


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


def test_labels_are_those_of_the_model_that_has_classes():
    known = embeddings()
    nameless = Embeddings(known.vectors, known.ids, np.full(3, NO_CLASS), (), "m")
    tested = models_under_test({"old": nameless, "new": known}, None)
    assert tested.labels.tolist() == models_under_test({"old": known}, None).labels.tolist()


def test_embeddings_without_classes_do_not_say():
    nameless = Embeddings(np.ones((2, 2), np.float32), ("p", "q"), np.full(2, NO_CLASS), (), "m")
    models, why = {"old": nameless, "new": nameless}, "the embeddings have no classes"
    tested = models_under_test(models, [0, 1])
    assert tested.seen_among(tested.labels) == SeenClasses(None, None, why)
    with pytest.raises(UserError, match=f"labels are missing: {why}"):
        models_under_test(models, None)


def test_models_that_disagree_on_the_classes_need_labels():
    ids, first = "pqrst", embeddings("pqrst", (2, 0, 2, 1, 1))
    renamed = embeddings(ids, (0, 1, 0, 2, 2))
    tested = models_under_test({"old": first, "new": renamed}, None)
    assert tested.labels.tolist() == [2, 0, 2, 1, 1]
    for other in ((2, 0, 0, 1, 1), (2, 0, 2, 1, 0), (1, 1, 1, 1, 1), (0, 1, 0, 1, 1)):
        models, labels = {"old": first, "new": embeddings(ids, other)}, [0, 1, 0, 1, 1]
        with pytest.raises(UserError, match="the old and the new model have other classes"):
            models_under_test(models, None)
        assert models_under_test(models, labels).labels.tolist() == labels


NUMBERED_KINDS = ("list", "tar", "folder", "npy", "parquet", "safetensors")


def written(place, kind, labels, first=0):
    """Data in a layout whose classes may be numbers: one image, or vector, for each label."""
    place.mkdir()
    if kind in ("npy", "parquet", "safetensors"):
        places = [first % 3 + i for i in range(len(labels))]
        vectors = np.eye(len(labels) + 3, dtype=np.float32)[places]
        names = tuple(dict.fromkeys(labels))
        rows = np.array([names.index(label) for label in labels])
        ids, path = tuple(map(str, range(len(rows)))), place / f"x.{kind}"
        write_embeddings(Embeddings(vectors, ids, rows, names, ""), path, kind)
        return open_data(f"embeddings:{path}")
    if kind == "tar":
        members = [
            member
            for i, label in enumerate(labels)
            for member in ((f"{i}.png", png(first + i)), (f"{i}.cls", label.encode()))
        ]
        write_tar(place / "x.tar", members)
        return open_data(place / "x.tar")
    for i, label in enumerate(labels):
        folder = place / label if kind == "folder" else place
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.png").write_bytes(png(first + i))
    if kind == "folder":
        return open_data(place)
    (place / "x.lst").write_text("".join(f"{i}.png {label}\n" for i, label in enumerate(labels)))
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


# What was chosen on the test classes says so, or is refused, on every way to a test.

ITSELF = "on the test images themselves.*seen_classes=True"


def evaluated(data, query, gallery, **options):
    return evaluate(data, old=gallery, new=query, backfill_curve=False, **options)


@pytest.fixture
def chosen(tmp_path, photo_folder):
    """Weights between two models, chosen on photographs."""
    old = replace(small_model(), class_names=("somebody else",), class_weights=None)
    new = trained_from(old)
    choice = choose_weights(open_images(photo_folder), old=old, new=new, alphas=(0.5, 0.8))
    for name, model in (("old", old), ("new", new), ("chosen", choice.model)):
        save_model(model, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_weights_that_were_chosen_on_the_test_images_are_refused(chosen, photo_folder, tmp_path):
    models = chosen / "chosen", chosen / "old"
    with pytest.raises(UserError, match=f"α of the new model's blended weights .*{ITSELF}"):
        evaluated(photo_folder, *models)
    assert "α" not in evaluated(photo_folder, chosen / "new", chosen / "old").note
    copied = shutil.copytree(photo_folder, tmp_path / "under another name")
    with pytest.raises(UserError, match=ITSELF):
        evaluated(copied, *models)
    # The old model's vectors of the images tell them, too.
    for folder in sorted(copied.iterdir()):
        folder.rename(copied / f"renamed {folder.name}")
    with pytest.raises(UserError, match=ITSELF):
        evaluated(copied, *models)
    # Through stored embeddings, and with one image left out: then the classes tell.
    images = open_images(photo_folder)
    save_embeddings(embed(load_model(models[0]), images), tmp_path / "stored")
    some = tmp_path / "some.txt"
    some.write_text("".join(f"{i}\n" for i in images.ids[1:]), encoding="utf-8")
    for query in (models[0], f"embeddings:{tmp_path / 'stored'}"):
        with pytest.raises(UserError, match=r"on 12 of the 12 test classes.*seen_classes"):
            evaluated(photo_folder, query, models[1], images=some)
    # Whoever insists is told, and so is every reader of the result.
    result = evaluated(photo_folder, *models, seen_classes=True)
    assert "α of the new model's blended weights was chosen on the test images" in result.note
    (told,) = [one for one in result.as_json()["choices"] if one["what"].startswith("α of")]
    assert (told["seen_classes"], told["same_images"]) == (12, True)
    assert (result.seen.count, result.seen.basis) == (0, "overridden")
    assert Certificate.of(result).content["metrics"]["choices"] == result.as_json()["choices"]


@pytest.mark.slow
def test_some_of_the_test_classes_are_counted(chosen, photo_folder):
    images = open_images(photo_folder)
    rows = np.flatnonzero(images.labels < 5)
    old, new = (load_model(chosen / name) for name in ("old", "new"))
    model = choose_weights(images.select(rows), old=old, new=new, alphas=(0.5,)).model
    save_model(model, chosen / "five")
    note = evaluated(photo_folder, chosen / "five", chosen / "old").note
    assert "blended weights was chosen on 5 of the 12 test classes" in note
    # A model that goes on from these weights, a blend with it, and a load and a save keep it.
    later = trained_from(load_model(chosen / "five"))
    later = replace(later, further_classes=model.training_classes)
    for number, one in enumerate((later, blend_weights(model, later, 0.5))):
        save_model(one, chosen / f"later {number}")
        note = evaluated(photo_folder, chosen / f"later {number}", chosen / "old").note
        assert "blended weights was chosen on 5 of the 12 test classes" in note


def test_an_earlier_version_did_not_keep_what_was_chosen(chosen, photo_folder):
    path = chosen / "chosen" / "model.json"
    content = json.loads(path.read_text())
    del content["further_classes"]
    path.write_text(json.dumps(content))
    note = evaluated(photo_folder, chosen / "chosen", chosen / "old").note
    assert "whether anything about the new model was chosen on test classes is unknown" in note
    assert "about the old model" not in note


def pair(seed=0, classes=12):
    old, labels = noisy_classes(classes=classes, images=8, noise=1.2, seed=seed)
    new, _ = noisy_classes(classes=classes, images=8, noise=0.9, seed=seed + 100)
    return old, new, labels


def named(vectors, labels, classes="abcdefghijkl", ids=None):
    trained = training_classes(("somebody else",), None)
    ids = ids or tuple(map(str, range(len(vectors))))
    return Embeddings(
        vectors, ids, labels, tuple(classes), "model", class_source=None, training_classes=trained
    )


def test_alpha_of_queries_that_was_chosen_on_the_test_is_refused_for_plain_arrays():
    old, new, labels = pair()
    alpha = choose_alpha(labels, old=old, new=new)
    with pytest.raises(UserError, match=f"α of the blended queries was chosen {ITSELF}"):
        evaluate_embeddings(labels, old=old, new=new, alpha=alpha)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    with pytest.raises(UserError, match=ITSELF):
        evaluate_embeddings(labels[shuffled], old=old[shuffled], new=new[shuffled], alpha=alpha)
    other_old, other_new, _ = pair(seed=1)
    note = evaluate_embeddings(labels, old=other_old, new=other_new, alpha=alpha).note
    assert "whether α of the blended queries was chosen on test classes is unknown" in note
    assert "α" not in evaluate_embeddings(labels, old=old, new=new, alpha=alpha.alpha).note


def test_alpha_of_queries_that_was_chosen_on_named_classes_counts_them():
    old, new, labels = pair()
    sides = named(old, labels), named(new, labels)

    def note(classes):
        ids = tuple(map(str, range(200, 296)))
        tested = [named(side, labels, classes, ids) for side in pair(seed=1)[:2]]
        alpha = choose_alpha(old=sides[0], new=sides[1], chosen_on="VAL")
        return evaluate_embeddings(old=tested[0], new=tested[1], alpha=alpha).note

    assert "α of the blended queries was chosen on none of the 12 test" in note("mnopqrstuvwx")
    assert "chosen on 3 of the 12 test classes" in note("abcpqrstuvwx")
    with pytest.raises(UserError, match="chosen on 7 of the 12 test classes"):
        note("abcdefguvwxy")
    with pytest.raises(UserError, match=ITSELF):
        alpha = choose_alpha(old=sides[0], new=sides[1])
        evaluate_embeddings(old=sides[0], new=sides[1], alpha=alpha)


@pytest.mark.slow
def test_a_score_map_of_the_test_images_is_refused(photo_folder, tmp_path):
    for seed, name in enumerate(("old", "new")):
        save_model(small_model(seed, class_names=("somebody else",)), tmp_path / name)
    sides = tmp_path / "new", tmp_path / "old"
    evaluated(photo_folder, *sides, save_score_map=True)
    with pytest.raises(UserError, match=f"the score map was fitted {ITSELF}"):
        evaluated(photo_folder, *sides, old_thresholds=True)


@pytest.mark.slow
def test_the_best_epoch_was_chosen_on_the_classes_that_were_set_aside(glyph_classes, tmp_path):
    train(glyph_classes, RECIPE, tmp_path / "m", validation=0.25, device="cpu")
    last, best = load_model(tmp_path / "m"), load_model(tmp_path / "m" / "best")
    aside = [c for c in glyph_classes.class_names if c not in best.class_names]
    rows = [glyph_classes.class_names.index(name) for name in aside]
    validation = glyph_classes.select(np.flatnonzero(np.isin(glyph_classes.labels, rows)))
    sides = {name: embed(model, validation) for name, model in (("l", last), ("b", best))}
    found = evaluate_embeddings(old=sides["l"], new=sides["l"], images=validation)
    assert "epoch" not in found.note
    with pytest.raises(UserError, match=f"the best epoch of the new model was chosen {ITSELF}"):
        evaluate_embeddings(old=sides["l"], new=sides["b"])
    with pytest.raises(UserError, match=f"the best epoch of the old model was chosen {ITSELF}"):
        evaluate_embeddings(old=sides["b"], new=sides["l"])
    # Of twelve classes nine were trained on; the verdict is over the three that chose the epoch.
    whole = embed(best, glyph_classes)
    found = evaluate_embeddings(old=whole, new=whole, seen_classes=True)
    assert "the best epoch of the new model was chosen on 3 of the 3 test classes" in found.note
    assert found.seen.basis == "overridden"


def learnt(*choices):
    return TrainingClasses(choices=frozenset(choices))


def one_row(name, source=None):
    return choice_on_rows("x was chosen", "D", ("p",), np.array([0]), (name,), source)


CHOICES_TEST = choice_on_rows("", None, tuple("pqrs"), np.arange(4), tuple("abcd"), None)
NOBODY_KNOWS = (
    "whether x was chosen on test classes is unknown: they are not recorded, or not named alike"
)


@pytest.mark.parametrize(
    ("choice", "count", "note"),
    [
        (one_row("e"), 0, "x was chosen on none of the 4 test classes"),
        (one_row("a"), 1,
         "x was chosen on 1 of the 4 test classes: there the numbers say little about others"),
        (one_row("a", "file"), None, NOBODY_KNOWS),
        (Choice("x was chosen"), None, NOBODY_KNOWS),
        (replace(CHOICES_TEST, what="x was chosen", data="D"), 4,
         "x was chosen on the test images themselves (D)"),
    ],
)  # fmt: skip
def test_each_choice_is_compared_with_the_test(choice, count, note):
    (seen,) = compared_choices([choice], CHOICES_TEST, allowed=True)
    assert (seen.count, seen.note, seen.same_images) == (count, note, count == 4)


def test_most_of_the_test_classes_are_refused_and_half_of_them_are_not():
    def on(names):
        rows = np.arange(len(names))
        return choice_on_rows(f"{names} was chosen", None, tuple(names), rows, tuple(names), None)

    compared_choices([on("ab")], CHOICES_TEST, allowed=False)
    with pytest.raises(UserError, match=r"abc was chosen on 3 of the 4 .*; bcd was .*seen_cl"):
        compared_choices([on("abc"), on("a"), on("bcd")], CHOICES_TEST, allowed=False)
    unnamed = Choice("", images=frozenset({"1"}))
    assert compared_choices([on("abcd")], unnamed, allowed=False)[0].count is None
    unknown = replace(CHOICES_TEST, class_source=UNKNOWN_SOURCE)
    assert compared_choices([unknown], unknown, allowed=True)[0].count is None


def test_only_the_score_scale_that_is_used_counts():
    scale, epoch = Choice(SCORE_SCALE_MEASURED), Choice(BEST_EPOCH)
    models = {"old": learnt(scale, epoch), "new": learnt(scale)}
    told = ["the best epoch of the old model was chosen"]
    assert [one.what for one in choices_of(models)] == told
    told.append("the score scale of the new model was measured")
    assert [one.what for one in choices_of(models, uses_scale=True)] == told
    given = ScoreMap("fitted", knots=(np.array([0.0, 1.0]), np.array([0.0, 1.0])))
    assert choices_of({}, score_map=given) == [Choice(SCORE_MAP_FITTED)]

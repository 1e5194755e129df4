from dataclasses import replace

import numpy as np
import pytest

from tests.maps.cases import rotation, unit
from tests.notes import Notes, show
from unibct.data.training_classes import UNKNOWN_CLASSES, training_classes
from unibct.embeddings.mapping import apply_map, fit_map
from unibct.embeddings.score_scale import score_scale
from unibct.embeddings.store import NO_CLASS, Embeddings
from unibct.errors import UserError
from unibct.maps.space_map import load_map, save_map

IDS = tuple(f"image {i}" for i in range(300))


def side(vectors, fingerprint, ids=IDS, labelled=True):
    vectors = unit(np.asarray(vectors)).astype(np.float32)
    labels = np.arange(len(ids)) % 30 if labelled else np.full(len(ids), NO_CLASS)
    names = tuple(f"class {c}" for c in range(30)) if labelled else ()
    return Embeddings(vectors, tuple(ids), labels, names, fingerprint)


@pytest.fixture(scope="module")
def models():
    """A new model of dimension 12 and an old one of 8 that sees less, and with noise."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(300, 12))
    old = truth @ rotation(12)[:, :8] + 0.2 * rng.normal(size=(300, 8)) + 1
    return truth, old


@pytest.fixture
def new(models):
    return side(models[0], "new")


@pytest.fixture
def old(models):
    return side(models[1], "old")


def without_classes(models):
    return [side(v, n, labelled=False) for v, n in zip(models, ("new", "old"), strict=True)]


@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_a_map_between_spaces_of_different_dimension(direction, new, old):
    fitted = fit_map(new, old, direction=direction)
    assert fitted.found_share > 0.8
    assert len(fitted.known.ids) == 30
    source, target = (new, old) if direction == "backward" else (old, new)
    mapped = apply_map(fitted, source)
    assert mapped.vectors.shape == target.vectors.shape
    assert mapped.ids == source.ids
    assert mapped.fingerprint == fitted.fingerprint
    if direction == "backward":
        fitted_rows = [row for row, i in enumerate(IDS) if i not in fitted.known.ids]
        sides = (np.asarray(part.vectors)[fitted_rows] for part in (mapped, old))
        scale = score_scale(*sides, old.labels[fitted_rows])
        assert fitted.score_scale == pytest.approx(scale, rel=1e-5)
    else:
        assert fitted.score_scale is None
    cosine = (mapped.vectors * target.vectors).sum(axis=1).mean()
    assert cosine > 0.75
    with pytest.raises(UserError, match="in the space that this map leads to"):
        apply_map(fitted, target)
    with pytest.raises(UserError, match="was made by model third"):
        apply_map(fitted, side(source.vectors, "third"))


@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_mapped_rows_have_learnt_from_the_classes_of_the_model_and_of_the_map(
    direction, new, old, tmp_path
):
    """Of the map those whose images both models have embedded, and after saving too."""
    trained = training_classes(("x", "y"), None)

    def named(part, rows):
        vectors, ids = np.asarray(part.vectors)[rows], tuple(part.ids[row] for row in rows)
        classes = part.labels[rows], part.class_names
        known = {"class_source": None, "training_classes": trained}
        return Embeddings(vectors, ids, *classes, part.fingerprint, **known)

    sources = [named(part, list(range(300))) for part in (new, old)]
    first_classes = [row for row in range(300) if old.labels[row] < 20]
    fitted = fit_map(sources[0], named(old, first_classes), direction=direction)
    save_map(fitted, tmp_path / "map")
    source = sources[0] if direction == "backward" else sources[1]
    mapped = apply_map(load_map(tmp_path / "map"), source)
    expected = training_classes(("x", "y", *new.class_names[:20]), None)
    assert mapped.training_classes == expected


def test_a_map_of_classes_that_cannot_be_compared_is_of_unknown_ones(new, old, models):
    known = training_classes(("x", "y"), None)
    trained = new.changed(fingerprint=new.fingerprint, training_classes=known)
    mapped = apply_map(fit_map(trained, old), trained)
    assert mapped.training_classes == replace(known, complete=False)
    assert fit_map(*without_classes(models)).fitted_on == UNKNOWN_CLASSES


def test_ids_decide_what_belongs_together_whatever_their_order(new, models):
    turn = np.random.default_rng(1).permutation(300)[:200]
    shuffled = side(models[1][turn], "old", [IDS[row] for row in turn])
    notes, fitted = show(Notes()), fit_map(new, shuffled)
    assert fitted.found_share > 0.8
    alone = next(i for i in IDS if i not in shuffled.ids)
    said = f"100 images have a new embedding only, first {alone!r}; they are not used"
    assert notes.texts == [said]
    with pytest.raises(UserError, match="0 ids in common, such as 'image 0' and 'x 0'"):
        fit_map(new, side(models[1], "old", [f"x {i}" for i in range(300)]))


def test_ids_that_mean_other_images_are_found_out(new, models):
    with pytest.raises(UserError, match="the map finds nothing"):
        fit_map(new, side(models[1][::-1], "old"))


def test_a_map_the_wrong_way_round_writes_nothing(models):
    """Both spaces have one dimension, and the user has given the files the wrong names."""
    truth = models[0]
    new, old = side(truth, "new"), side(truth @ rotation(12, seed=3), "old")
    mislabelled = {"forward": side(new.vectors, "old"), "backward": side(old.vectors, "new")}
    for direction, wrong in mislabelled.items():
        fitted = fit_map(new, old, direction=direction, kind="procrustes")
        assert fitted.found_share == 1
        with pytest.raises(UserError, match=r"only \d+% of 30 known queries find their mates"):
            apply_map(fitted, wrong)


def test_rows_of_other_images_need_known_embeddings_of_the_target_space(new, old, models):
    fitted = fit_map(new, old, direction="forward")
    others = side(models[1], "old", [f"row {i}" for i in range(300)])
    with pytest.raises(UserError, match=r"has none of the 30 images .*--known"):
        apply_map(fitted, others)
    queries = side(models[0], "new", [f"query {i}" for i in range(300)])
    assert len(apply_map(fitted, others, known=queries)) == 300  # by their classes
    with pytest.raises(UserError, match="--known was made by model old"):
        apply_map(fitted, others, known=old)
    unlabelled = side(models[0], "new", queries.ids, labelled=False)
    with pytest.raises(UserError, match="has none of"):
        apply_map(fitted, others, known=unlabelled)


def test_without_classes_each_image_counts_the_same(models):
    assert fit_map(*without_classes(models)).found_share > 0.8


def changed_row(embeddings, row, value):
    vectors = np.array(embeddings.vectors)
    vectors[row] = value
    return embeddings.changed(vectors=vectors, fingerprint=embeddings.fingerprint)


@pytest.mark.parametrize(("value", "problem"), [(np.nan, "has NaN"), (0.0, "is all zeros")])
def test_rows_that_are_no_embeddings_are_named_and_never_mapped(new, old, value, problem):
    fitted = fit_map(new, old)
    for row in (5, *(IDS.index(known) for known in fitted.known.ids[:1])):  # fitted on, and kept
        bad_new, bad_old = changed_row(new, row, value), changed_row(old, row, value)
        message = rf"row {row} \('image {row}'\) {problem}"
        with pytest.raises(UserError, match=f"new, {message}"):
            fit_map(bad_new, old)
        with pytest.raises(UserError, match=f"old, {message}"):
            fit_map(new, bad_old)
        with pytest.raises(UserError, match=f"gallery, {message}"):
            apply_map(fitted, bad_new, name="gallery")
        with pytest.raises(UserError, match=f"--known, {message}"):
            apply_map(fitted, new, known=bad_old)


def test_what_a_map_cannot_be_fitted_or_tried_with_is_refused(new, old, models):
    doubled = ("image 1", *IDS[1:])
    with pytest.raises(UserError, match=r"old, row 1 has the id 'image 1' of row 0"):
        fit_map(new, side(models[1], "old", doubled))
    with pytest.raises(UserError, match="seed must not be negative, not -1"):
        fit_map(new, old, seed=-1)
    fitted = fit_map(new, old)
    with pytest.raises(UserError, match=r"--known has dimension 7 but what the map makes has .* 8"):
        apply_map(fitted, new, known=side(models[1][:, :7], "old"))

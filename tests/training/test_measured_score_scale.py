import json
from dataclasses import replace

import numpy as np
import pytest

from tests.notes import Notes
from tests.tiny_models import LARGEST_SHIFT
from tests.training.recipes import SMALL
from unibct.data.decoding import Frame
from unibct.data.loader import read_pixels
from unibct.data.training_classes import (
    NO_CLASSES,
    UNKNOWN_CLASSES,
    identity_digests,
    training_classes,
)
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.score_scale import score_scale
from unibct.embeddings.stored import StoredEmbeddings
from unibct.models.folder import load_model
from unibct.models.old_space import to_old_space
from unibct.training.measured_score_scale import with_score_scale
from unibct.training.train import train


def by_hand(new_vectors, old, images):
    return score_scale(new_vectors, embed_images(old, images).vectors, images.labels)


@pytest.mark.slow
def test_a_compatible_model_knows_the_scale_of_its_scores(four_classes, four_classes_old, tmp_path):
    model = train(four_classes, SMALL, tmp_path / "m", old=four_classes_old, device="cpu")
    vectors = embed_images(model, four_classes).vectors
    expected = by_hand(vectors, four_classes_old, four_classes)
    assert model.score_scale == pytest.approx(expected, rel=1e-6)
    stored = json.loads((tmp_path / "m" / "model.json").read_text())["training"]
    assert stored["score_scale"] == model.score_scale == load_model(tmp_path / "m").score_scale
    again = train(
        four_classes, SMALL, tmp_path / "m", old=four_classes_old, resume=True, device="cpu"
    )
    assert again.score_scale == model.score_scale
    unknown = model.with_score_scale(None)
    assert unknown.score_scale is None
    assert unknown.fingerprint == model.fingerprint
    free = train(
        four_classes, SMALL, tmp_path / "f", old=four_classes_old, method="none", device="cpu"
    )
    assert free.score_scale is None


@pytest.mark.slow
def test_the_scale_of_a_projecting_model_is_that_of_its_projected_vectors(
    four_classes, four_classes_old, tmp_path
):
    recipe = SMALL.updated(dim=24, epochs=1, warmup_epochs=0)
    model = train(
        four_classes, recipe, tmp_path / "m", old=four_classes_old, method="unibct", device="cpu"
    )
    projected = to_old_space(model, np.asarray(embed_images(model, four_classes).vectors))
    expected = by_hand(projected, four_classes_old, four_classes)
    assert model.score_scale == pytest.approx(expected, rel=1e-6)


def test_models_whose_scores_a_factor_would_lift_have_no_scale(
    four_classes, four_classes_old, tmp_path, monkeypatch
):
    monkeypatch.setattr("unibct.embeddings.score_scale._LARGEST_SHIFT", LARGEST_SHIFT)
    notes = Notes()
    options = {"old": four_classes_old, "method": "unibct", "device": "cpu", "progress": notes}
    model = train(four_classes, SMALL, tmp_path / "m", **options)
    assert model.score_scale is None
    assert any("no factor sets right" in line for line in notes.texts)


def test_a_sample_gives_the_scale_of_many_images(four_classes, four_classes_old, monkeypatch):
    """The old model may be stored embeddings, or take images of another size."""
    rows = np.arange(0, 24, 2)
    monkeypatch.setattr("unibct.training.measured_score_scale.sample_rows", lambda _: rows)
    embeddings = embed_images(four_classes_old, four_classes)
    vectors = np.asarray(embeddings.vectors)
    turned = np.ascontiguousarray(vectors[:, ::-1])
    expected = score_scale(vectors[rows], turned[rows], four_classes.labels[rows])
    stored = StoredEmbeddings("turned", embeddings.changed(vectors=turned, fingerprint="turned"))
    pixels = read_pixels(four_classes, four_classes_old.input.frame)
    found = with_score_scale(four_classes_old, stored, pixels)
    assert found.score_scale == pytest.approx(expected, rel=1e-5)
    other_frame = read_pixels(four_classes, Frame(24, 24, 1))
    itself = with_score_scale(four_classes_old, four_classes_old, other_frame)
    assert itself.score_scale == pytest.approx(1, rel=1e-6)


def test_a_scale_that_cannot_be_measured_is_no_reason_to_lose_the_model(
    four_classes, four_classes_old, monkeypatch
):
    monkeypatch.setattr("unibct.training.measured_score_scale.sample_rows", lambda _: np.arange(3))
    pixels = read_pixels(four_classes, four_classes_old.input.frame)
    notes = Notes()
    found = with_score_scale(
        four_classes_old.with_score_scale(2.0), four_classes_old, pixels, notes
    )
    assert found.score_scale is None
    assert notes.texts == [
        "the score scale is unknown: a score scale needs images of at least two classes"
    ]


def test_classes_that_were_set_aside_are_measured_if_they_are_enough(
    glyph_classes, four_classes, four_classes_old, monkeypatch
):
    other = embed_images(four_classes_old, glyph_classes)
    turned = np.ascontiguousarray(np.asarray(other.vectors)[:, ::-1])
    stored = StoredEmbeddings("turned", other.changed(vectors=turned, fingerprint="turned"))
    training, aside = (
        read_pixels(images, four_classes_old.input.frame)
        for images in (four_classes, glyph_classes)
    )
    expected = score_scale(other.vectors, turned, glyph_classes.labels)
    found = with_score_scale(four_classes_old, stored, training, set_aside=aside)
    assert found.score_scale == pytest.approx(expected, rel=1e-5)
    # An old model that does not know them, and too few of them: the training images are measured.
    known = embed_images(four_classes_old, four_classes)
    only_training = StoredEmbeddings("known", known)
    same = with_score_scale(four_classes_old, only_training, training, set_aside=aside)
    assert same.score_scale == pytest.approx(1, rel=1e-6)
    monkeypatch.setattr("unibct.training.measured_score_scale._CLASSES_NEEDED", 13)
    same = with_score_scale(four_classes_old, four_classes_old, training, set_aside=aside)
    assert same.score_scale == pytest.approx(1, rel=1e-6)


def test_training_images_give_no_scale_where_the_classes_set_aside_have_none(
    glyph_classes, four_classes, four_classes_old, monkeypatch
):
    monkeypatch.setattr("unibct.embeddings.score_scale._LARGEST_SHIFT", LARGEST_SHIFT)
    training, aside = (
        read_pixels(images, four_classes_old.input.frame)
        for images in (four_classes, glyph_classes)
    )
    embeddings = embed_images(four_classes_old, glyph_classes)
    vectors = np.array(embeddings.vectors)
    vectors[~np.isin(embeddings.ids, four_classes.ids), ::2] *= -1
    stored = StoredEmbeddings("o", embeddings.changed(vectors=vectors, fingerprint="other"))
    notes = Notes()
    assert with_score_scale(four_classes_old, stored, training).score_scale == pytest.approx(1)
    model = with_score_scale(four_classes_old, stored, training, notes, set_aside=aside)
    assert model.score_scale is None
    assert "no factor sets right" in notes.texts[0]


def test_a_run_measures_on_what_it_sets_aside(
    four_classes, four_classes_old, tmp_path, monkeypatch
):
    monkeypatch.setattr("unibct.training.measured_score_scale._CLASSES_NEEDED", 2)
    model = train(
        four_classes,
        SMALL.updated(epochs=1, warmup_epochs=0),
        tmp_path / "m",
        old=four_classes_old,
        validation=0.5,
        device="cpu",
    )
    trained = set(model.class_names)
    aside = [row for row, label in enumerate(four_classes.labels)
             if four_classes.class_names[label] not in trained]  # fmt: skip
    images = four_classes.select(np.array(aside))
    assert 2 == len(images.class_names) == len(trained)
    vectors = embed_images(model, images).vectors
    expected = by_hand(vectors, four_classes_old, images)
    assert model.score_scale == pytest.approx(expected, rel=1e-6)


def test_classes_that_the_old_model_learnt_are_left_out_if_enough_others_are_left(
    glyph_classes, four_classes, four_classes_old, monkeypatch
):
    """Of the twelve classes set aside, the old model has learnt some; there its scores differ."""
    monkeypatch.setattr("unibct.training.measured_score_scale._CLASSES_NEEDED", 4)
    embeddings = embed_images(four_classes_old, glyph_classes)
    names = glyph_classes.class_names
    new = replace(four_classes_old, class_names=("another",), class_weights=None)
    training, aside = (
        read_pixels(images, four_classes_old.input.frame)
        for images in (four_classes, glyph_classes)
    )

    def measured(learnt):
        vectors = np.array(embeddings.vectors)
        is_learnt = np.isin(glyph_classes.labels, learnt)
        vectors[is_learnt] = vectors[is_learnt, ::-1]
        classes = training_classes([names[i] for i in learnt], glyph_classes.class_source)
        changed = embeddings.changed(
            vectors=vectors, fingerprint="o", training_classes=classes if learnt else NO_CLASSES
        )
        notes, old = Notes(), StoredEmbeddings("o", changed)
        model = with_score_scale(new, old, training, notes, set_aside=aside)
        return model, notes.texts, vectors

    expected = {}
    for learnt in ([], [0, 1, 2, 3, 4, 5], list(range(10))):
        model, notes, vectors = measured(learnt)
        kept = ~np.isin(glyph_classes.labels, learnt if len(learnt) < 10 else [])
        by_formula = score_scale(
            embeddings.vectors[kept], vectors[kept], glyph_classes.labels[kept]
        )
        assert model.score_scale == pytest.approx(by_formula, rel=1e-5)
        expected[len(learnt)] = by_formula
        (choice,) = model.further_classes.choices
        shown = {names[label] for label in glyph_classes.labels[kept]}
        assert choice.classes == identity_digests(shown)
        said = model.training["score_scale_measured_on"]
        if len(learnt) < 10:
            assert (said, notes) == ("classes that neither model was trained on", [])
        else:
            assert "of which a model has learnt some" in said
            assert [said in note for note in notes] == [True]
    assert abs(expected[6] - expected[10]) > 0.01, "what was learnt would have changed the scale"
    unknown = StoredEmbeddings(
        "o", embeddings.changed(fingerprint="o", training_classes=UNKNOWN_CLASSES)
    )
    model = with_score_scale(new, unknown, training, set_aside=aside)
    assert "or may have" in model.training["score_scale_measured_on"]
    model = with_score_scale(four_classes_old, unknown, training)
    assert not model.further_classes.choices, "its own classes are counted already"
    assert "was trained on" in model.training["score_scale_measured_on"]
    warm = replace(new, further_classes=training_classes(names, glyph_classes.class_source))
    neither = StoredEmbeddings(
        "o", embeddings.changed(fingerprint="o", training_classes=NO_CLASSES)
    )
    model = with_score_scale(warm, neither, training, set_aside=aside)
    assert "has learnt some" in model.training["score_scale_measured_on"]
    assert "score_scale_measured_on" not in model.with_score_scale(None).training

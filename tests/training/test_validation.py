import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.notes import Notes, show
from tests.tiny_models import LARGEST_SHIFT
from tests.training.runs import (
    FINISHED,
    RECIPE,
    SHORT,
    SMALL,
    metrics,
    names_in,
    stopped_before_epoch,
    train,
)
from unibct import progress
from unibct.data.decoding import Frame
from unibct.data.loader import read_pixels
from unibct.data.training_classes import (
    NO_CLASSES,
    UNKNOWN_CLASSES,
    identity_digests,
    training_classes,
)
from unibct.embeddings.extraction import embed
from unibct.embeddings.recall import ModelRecall, pixel_vectors, recall_at_1
from unibct.embeddings.score_scale import score_scale
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.models.model_folder import load_model
from unibct.models.old_space import to_old_space
from unibct.training import loop
from unibct.training.run_folder import find_checkpoint, read_checkpoint
from unibct.training.set_aside import set_aside
from unibct.training.validation import best_row, note_result, with_score_scale

SHARE = 0.25
OPTIONS = {"validation": SHARE}


@pytest.fixture(scope="module")
def validated_run(glyph_classes, tmp_path_factory):
    """The folder of a run with three classes set aside, and what it said."""
    out, notes = tmp_path_factory.mktemp("validated") / "m", Notes()
    with progress.shown(notes):
        train(glyph_classes, RECIPE, out, **OPTIONS)
    return out, notes


def same_but_times(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


@pytest.mark.slow
def test_metrics_have_the_recall_of_classes_that_were_not_trained_on(validated_run, glyph_classes):
    out, _ = validated_run
    sets, model = set_aside(glyph_classes, SHARE, seed=0), load_model(out)
    assert model.class_names == sets.training.class_names
    assert len(sets.validation.class_names) == 3
    rows, labels = metrics(out), sets.validation.labels
    pixels = np.stack([sets.validation.read(image_id) for image_id in sets.validation.ids])
    assert {float(row["pixel_recall_at_1"]) for row in rows} == {
        recall_at_1(pixel_vectors(pixels), labels)
    }
    best = max(rows, key=lambda row: float(row["recall_at_1"]))
    for folder, row in ((out, rows[-1]), (out / "best", best)):
        embedded = embed(load_model(folder), sets.validation)
        assert float(row["recall_at_1"]) == recall_at_1(embedded.vectors, labels)
        described = json.loads((folder / "model.json").read_text())["training"]
        validation, validated = described["validation"], described["validated"]
        assert (validation["classes"], validation["images"]) == (3, 36)
        epochs = (validated["epoch"], validated["best_epoch"])
        assert epochs == (int(row["epoch"]), int(best["epoch"]))
        assert validated["recall_at_1"] == float(row["recall_at_1"])
    assert list(rows[0])[-2:] == ["recall_at_1", "pixel_recall_at_1"]
    assert names_in(out) == ["best", *FINISHED]


def test_each_epoch_and_the_best_one_are_reported(validated_run):
    out, notes = validated_run
    rows, texts = metrics(out), notes.texts
    assert texts[0].startswith("3 of 12 classes (36 images) are set aside to measure recall@1")
    for row, text in zip(rows, texts[1:], strict=False):
        strength = ModelRecall(float(row["recall_at_1"]), float(row["pixel_recall_at_1"]))
        assert text.startswith(f"epoch {int(row['epoch']) + 1} of 3: loss ")
        assert text.endswith(str(strength))
        assert notes.statuses[int(row["epoch"])] == str(strength)
    assert len(notes.statuses) == len(rows)
    assert texts[4].startswith("best epoch: ")
    assert texts[4].endswith(" on 3 classes that were set aside")


@pytest.mark.slow
def test_a_stopped_run_keeps_its_classes_and_its_metrics(validated_run, glyph_classes, tmp_path):
    whole, out = validated_run[0], tmp_path / "m"
    with stopped_before_epoch(1):
        train(glyph_classes, RECIPE, out, **OPTIONS)
    for other in (0, 0.2):
        with pytest.raises(UserError, match=rf"its validation is 0.25, not {other}"):
            train(glyph_classes, RECIPE, out, resume=True, validation=other)
    notes = Notes()
    with progress.shown(notes):
        train(glyph_classes, RECIPE, out, resume=True)  # keeps its share
    assert notes.statuses == validated_run[1].statuses  # begins with that of the stored epoch
    assert same_but_times(metrics(out)) == same_but_times(metrics(whole))
    for folder in ("", "best"):
        assert load_model(out / folder).fingerprint == load_model(whole / folder).fingerprint
    again = train(glyph_classes, RECIPE, out, resume=True)
    assert again.fingerprint == load_model(whole).fingerprint


def test_a_run_without_validation_goes_on_without_it(four_classes, four_classes_old, tmp_path):
    assert "validation" not in four_classes_old.training
    with stopped_before_epoch(1):
        train(four_classes, SMALL, tmp_path / "m", validation=0)
    with pytest.raises(UserError, match=r"its validation is 0\.0, not 0\.5"):
        train(four_classes, SMALL, tmp_path / "m", resume=True, validation=0.5)
    with pytest.MonkeyPatch.context() as patch:  # enough classes for the default
        patch.setattr("unibct.training.set_aside._AUTOMATIC_CLASSES", 0)
        model = train(four_classes, SMALL, tmp_path / "m", resume=True)
    assert model.fingerprint == four_classes_old.fingerprint
    with (tmp_path / "m" / "metrics.csv").open() as file:
        assert "recall_at_1" not in (csv.DictReader(file).fieldnames or ())


def test_the_best_epoch_is_the_first_of_the_best_after_the_warm_up():
    rows = [
        {"epoch": epoch, "recall_at_1": recall, "pixel_recall_at_1": 0.5}
        for epoch, recall in enumerate([0.9, 0.6, 0.8, 0.8, 0.7])
    ]
    images = SimpleNamespace(class_names=("a", "b"), vector_dim=None)
    context = SimpleNamespace(
        validation=SimpleNamespace(images=images), run=SimpleNamespace(first_usable_epoch=1)
    )
    assert best_row(context, rows)["epoch"] == 2
    assert best_row(context, rows[:1]) is None
    notes = show(Notes())
    note_result(context, rows)
    assert notes.texts == [
        "best epoch: 3 (the last one has 70.0 %), recall@1 80.0 % (raw pixels 50.0 %) on 2 "
        "classes that were set aside"
    ]
    weak, weak_row = show(Notes()), rows[1] | {"recall_at_1": 0.54}
    note_result(context, [*rows[:2], weak_row])
    assert len(weak.texts) == 1
    note_result(context, [weak_row])
    assert weak.texts[1].startswith("best epoch: 2 (the last one), recall@1 54.0 %")
    assert weak.texts[2].startswith("this model is hardly better than raw pixels")
    images.vector_dim = 8  # finished vectors are trained on
    note_result(context, [weak_row])
    assert "recall@1 54.0 % (the given vectors 50.0 %)" in weak.texts[3]
    assert weak.texts[4].startswith("this model is hardly better than the given vectors")


@pytest.mark.slow
def test_a_run_from_old_weights_measures_on_new_classes_and_keeps_them(
    glyph_classes, four_classes_old, tmp_path
):
    notes, options = show(Notes()), OPTIONS | {"old": four_classes_old}
    model = train(glyph_classes, SHORT, tmp_path / "m", **options)
    assert set(four_classes_old.class_names) <= set(model.class_names)
    assert len(model.class_names) == 9
    assert not any("may have learnt them" in text for text in notes.texts)
    again = train(glyph_classes, SHORT, tmp_path / "m", resume=True, **options)
    assert again.class_names == model.class_names


@pytest.mark.slow
def test_a_run_of_an_earlier_version_keeps_the_classes_that_it_drew_from_all(
    glyph_classes, four_classes_old, tmp_path, monkeypatch
):
    options = OPTIONS | {"old": four_classes_old}
    with monkeypatch.context() as patch:
        patch.setattr("unibct.training.plan.set_aside", lambda *given: set_aside(*given[:3]))
        model = train(glyph_classes, SHORT, tmp_path / "m", **options)
    assert model.class_names == set_aside(glyph_classes, SHARE, seed=1).training.class_names
    assert not set(four_classes_old.class_names) <= set(model.class_names)
    again = train(glyph_classes, SHORT, tmp_path / "m", resume=True, **options)
    assert again.class_names == model.class_names


def test_a_run_from_old_weights_says_if_the_old_model_may_know_the_classes(
    four_classes, four_classes_old, tmp_path
):
    notes = show(Notes())
    train(four_classes, SHORT, tmp_path / "m", old=four_classes_old, validation=0.5)
    assert "may have learnt them: recall@1 on new classes is lower" in notes.texts[0]


BEST_STATE_OPTIONS = {"validation": 0.25}


@pytest.fixture
def second_is_best(monkeypatch):
    """Runs whose second epoch has the best recall."""

    def scripted(context, state):
        return {"recall_at_1": (0.5, 0.9, 0.7)[state.epoch], "pixel_recall_at_1": 0.4}

    monkeypatch.setattr(loop, "validated", scripted)


@pytest.mark.slow
@pytest.mark.parametrize("killed_before_the_copy", [False, True])
def test_the_best_state_outlives_a_stop(
    glyph_classes, tmp_path, monkeypatch, second_is_best, killed_before_the_copy
):
    out = tmp_path / "m"
    with monkeypatch.context() as patch:
        if killed_before_the_copy:
            patch.setattr(loop, "keep_best", lambda context, state: None)
        with stopped_before_epoch(2):
            train(glyph_classes, RECIPE, out, **BEST_STATE_OPTIONS)
    kept = [path.name for path in out.glob(".best-*")]
    assert kept == ([] if killed_before_the_copy else [".best-00001"])
    second = read_checkpoint(find_checkpoint(out))
    model = train(glyph_classes, RECIPE, out, resume=True)
    best = load_model(out / "best")
    weights = {f"network.{name}": tensor for name, tensor in best.network.state_dict().items()}
    for name, tensor in weights.items():
        assert torch.equal(tensor, second.tensors[name]), name
    assert torch.equal(best.class_weights, second.class_tensors["class_weights"])
    assert best.fingerprint != model.fingerprint
    assert best.class_names == model.class_names
    assert list(out.glob(".best-*")) == []


def stored_as(name, embeddings, **changes):
    """An old model that is known by its embeddings only."""
    return StoredEmbeddings(name, embeddings.changed(fingerprint=name, **changes))


@pytest.fixture
def training_and_aside(four_classes, glyph_classes, four_classes_old):
    """The pixels of the training images and of those that were set aside."""
    frame = four_classes_old.input.frame
    return read_pixels(four_classes, frame), read_pixels(glyph_classes, frame)


def by_hand(new_vectors, old, images):
    return score_scale(new_vectors, embed(old, images).vectors, images.labels)


@pytest.mark.slow
def test_a_compatible_model_knows_the_scale_of_its_scores(four_classes, four_classes_old, tmp_path):
    model = train(four_classes, SMALL, tmp_path / "m", old=four_classes_old)
    vectors = embed(model, four_classes).vectors
    expected = by_hand(vectors, four_classes_old, four_classes)
    assert model.score_scale == pytest.approx(expected, rel=1e-6)
    stored = json.loads((tmp_path / "m" / "model.json").read_text())["training"]
    assert stored["score_scale"] == model.score_scale == load_model(tmp_path / "m").score_scale
    again = train(four_classes, SMALL, tmp_path / "m", old=four_classes_old, resume=True)
    assert again.score_scale == model.score_scale
    unknown = model.with_score_scale(None)
    assert unknown.score_scale is None
    assert unknown.fingerprint == model.fingerprint
    free = train(four_classes, SMALL, tmp_path / "f", old=four_classes_old, method="none")
    assert free.score_scale is None


@pytest.mark.slow
def test_the_scale_of_a_projecting_model_is_that_of_its_projected_vectors(
    four_classes, four_classes_old, tmp_path
):
    recipe = SHORT.updated(dim=24)
    model = train(four_classes, recipe, tmp_path / "m", old=four_classes_old, method="unibct")
    projected = to_old_space(model, np.asarray(embed(model, four_classes).vectors))
    expected = by_hand(projected, four_classes_old, four_classes)
    assert model.score_scale == pytest.approx(expected, rel=1e-6)


def test_models_whose_scores_a_factor_would_lift_have_no_scale(
    four_classes, four_classes_old, tmp_path, monkeypatch
):
    monkeypatch.setattr("unibct.embeddings.score_scale._LARGEST_SHIFT", LARGEST_SHIFT)
    notes = show(Notes())
    model = train(four_classes, SMALL, tmp_path / "m", old=four_classes_old, method="unibct")
    assert model.score_scale is None
    assert any("no factor sets right" in line for line in notes.texts)


def test_a_sample_gives_the_scale_of_many_images(four_classes, four_classes_old, monkeypatch):
    """The old model may be stored embeddings, or take images of another size."""
    rows = np.arange(0, 24, 2)
    monkeypatch.setattr("unibct.training.validation.sample_rows", lambda _: rows)
    embeddings = embed(four_classes_old, four_classes)
    vectors = np.asarray(embeddings.vectors)
    turned = np.ascontiguousarray(vectors[:, ::-1])
    expected = score_scale(vectors[rows], turned[rows], four_classes.labels[rows])
    stored = stored_as("turned", embeddings, vectors=turned)
    pixels = read_pixels(four_classes, four_classes_old.input.frame)
    found = with_score_scale(four_classes_old, stored, pixels)
    assert found.score_scale == pytest.approx(expected, rel=1e-5)
    other_frame = read_pixels(four_classes, Frame(24, 24, 1))
    itself = with_score_scale(four_classes_old, four_classes_old, other_frame)
    assert itself.score_scale == pytest.approx(1, rel=1e-6)


def test_a_scale_that_cannot_be_measured_is_no_reason_to_lose_the_model(
    four_classes, four_classes_old, monkeypatch
):
    monkeypatch.setattr("unibct.training.validation.sample_rows", lambda _: np.arange(3))
    pixels = read_pixels(four_classes, four_classes_old.input.frame)
    notes = show(Notes())
    found = with_score_scale(four_classes_old.with_score_scale(2.0), four_classes_old, pixels)
    assert found.score_scale is None
    assert notes.texts == [
        "the score scale is unknown: a score scale needs images of at least two classes"
    ]


def test_classes_that_were_set_aside_are_measured_if_they_are_enough(
    glyph_classes, four_classes, four_classes_old, training_and_aside, monkeypatch
):
    other = embed(four_classes_old, glyph_classes)
    turned = np.ascontiguousarray(np.asarray(other.vectors)[:, ::-1])
    stored = stored_as("turned", other, vectors=turned)
    training, aside = training_and_aside
    expected = score_scale(other.vectors, turned, glyph_classes.labels)
    found = with_score_scale(four_classes_old, stored, training, set_aside=aside)
    assert found.score_scale == pytest.approx(expected, rel=1e-5)
    # An old model that does not know them, and too few of them: the training images are measured.
    only_training = StoredEmbeddings("known", embed(four_classes_old, four_classes))
    for old, needed in ((only_training, None), (four_classes_old, 13)):
        if needed is not None:
            monkeypatch.setattr("unibct.training.validation._CLASSES_NEEDED", needed)
        same = with_score_scale(four_classes_old, old, training, set_aside=aside)
        assert same.score_scale == pytest.approx(1, rel=1e-6)


def test_training_images_give_no_scale_where_the_classes_set_aside_have_none(
    glyph_classes, four_classes, four_classes_old, training_and_aside, monkeypatch
):
    monkeypatch.setattr("unibct.embeddings.score_scale._LARGEST_SHIFT", LARGEST_SHIFT)
    training, aside = training_and_aside
    embeddings = embed(four_classes_old, glyph_classes)
    vectors = np.array(embeddings.vectors)
    vectors[~np.isin(embeddings.ids, four_classes.ids), ::2] *= -1
    stored = stored_as("other", embeddings, vectors=vectors)
    assert with_score_scale(four_classes_old, stored, training).score_scale == pytest.approx(1)
    notes = show(Notes())
    model = with_score_scale(four_classes_old, stored, training, set_aside=aside)
    assert model.score_scale is None
    assert "no factor sets right" in notes.texts[0]


def test_a_run_measures_on_what_it_sets_aside(
    four_classes, four_classes_old, tmp_path, monkeypatch
):
    monkeypatch.setattr("unibct.training.validation._CLASSES_NEEDED", 2)
    model = train(four_classes, SHORT, tmp_path / "m", old=four_classes_old, validation=0.5)
    names = np.array(four_classes.class_names)[four_classes.labels]
    images = four_classes.select(np.flatnonzero(~np.isin(names, model.class_names)))
    assert 2 == len(images.class_names) == len(model.class_names)
    expected = by_hand(embed(model, images).vectors, four_classes_old, images)
    assert model.score_scale == pytest.approx(expected, rel=1e-6)


def test_classes_that_the_old_model_learnt_are_left_out_if_enough_others_are_left(
    glyph_classes, four_classes_old, training_and_aside, monkeypatch
):
    """Of the twelve classes set aside, the old model has learnt some; there its scores differ."""
    monkeypatch.setattr("unibct.training.validation._CLASSES_NEEDED", 4)
    embeddings = embed(four_classes_old, glyph_classes)
    names = glyph_classes.class_names
    new = replace(four_classes_old, class_names=("another",), class_weights=None)
    training, aside = training_and_aside

    def measured(learnt):
        vectors = np.array(embeddings.vectors)
        is_learnt = np.isin(glyph_classes.labels, learnt)
        vectors[is_learnt] = vectors[is_learnt, ::-1]
        classes = training_classes([names[i] for i in learnt], glyph_classes.class_source)
        known = classes if learnt else NO_CLASSES
        old = stored_as("o", embeddings, vectors=vectors, training_classes=known)
        notes = show(Notes())
        model = with_score_scale(new, old, training, set_aside=aside)
        return model, notes.texts, vectors

    expected = {}
    for learnt in ([], [0, 1, 2, 3, 4, 5], list(range(10))):
        model, notes, vectors = measured(learnt)
        kept = ~np.isin(glyph_classes.labels, learnt if len(learnt) < 10 else [])
        labels = glyph_classes.labels[kept]
        by_formula = score_scale(embeddings.vectors[kept], vectors[kept], labels)
        assert model.score_scale == pytest.approx(by_formula, rel=1e-5)
        expected[len(learnt)] = by_formula
        (choice,) = model.further_classes.choices
        shown = {names[label] for label in labels}
        assert choice.classes == identity_digests(shown)
        said = model.training["score_scale_measured_on"]
        if len(learnt) < 10:
            assert (said, notes) == ("classes that neither model was trained on", [])
        else:
            assert "of which a model has learnt some" in said
            assert [said in note for note in notes] == [True]
    assert abs(expected[6] - expected[10]) > 0.01, "what was learnt would have changed the scale"
    unknown = stored_as("o", embeddings, training_classes=UNKNOWN_CLASSES)
    model = with_score_scale(new, unknown, training, set_aside=aside)
    assert "or may have" in model.training["score_scale_measured_on"]
    model = with_score_scale(four_classes_old, unknown, training)
    assert not model.further_classes.choices, "its own classes are counted already"
    assert "was trained on" in model.training["score_scale_measured_on"]
    warm = replace(new, further_classes=training_classes(names, glyph_classes.class_source))
    neither = stored_as("o", embeddings, training_classes=NO_CLASSES)
    model = with_score_scale(warm, neither, training, set_aside=aside)
    assert "has learnt some" in model.training["score_scale_measured_on"]
    assert "score_scale_measured_on" not in model.with_score_scale(None).training

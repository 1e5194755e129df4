import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.notes import Notes
from tests.training.interruption import stopped_before_epoch
from tests.training.recipes import RECIPE, SMALL
from tests.training.run_results import metrics
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.recall import recall_at_1
from unibct.embeddings.strength import Strength, pixel_vectors
from unibct.errors import UserError
from unibct.models.folder import load_model
from unibct.training.set_aside import set_aside
from unibct.training.train import train
from unibct.training.validation_recall import best_row, note_result

SHARE = 0.25
OPTIONS = {"validation": SHARE, "device": "cpu"}


@pytest.fixture(scope="module")
def validated_run(glyph_classes, tmp_path_factory):
    """The folder of a run with three classes set aside, and what it said."""
    out, notes = tmp_path_factory.mktemp("validated") / "m", Notes()
    train(glyph_classes, RECIPE, out, progress=notes, **OPTIONS)
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
        embedded = embed_images(load_model(folder), sets.validation)
        assert float(row["recall_at_1"]) == recall_at_1(embedded.vectors, labels)
        described = json.loads((folder / "model.json").read_text())["training"]
        assert described["validation"]["classes"] == 3
        assert described["validation"]["images"] == 36
        assert described["validated"]["epoch"] == int(row["epoch"])
        assert described["validated"]["recall_at_1"] == float(row["recall_at_1"])
        assert described["validated"]["best_epoch"] == int(best["epoch"])
    files = {"best", "classifier.safetensors", "metrics.csv", "model.json", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == files


def test_each_epoch_and_the_best_one_are_reported(validated_run):
    out, notes = validated_run
    rows, texts = metrics(out), notes.texts
    assert texts[0].startswith("3 of 12 classes (36 images) are set aside to measure recall@1")
    for row, text in zip(rows, texts[1:], strict=False):
        strength = Strength(float(row["recall_at_1"]), float(row["pixel_recall_at_1"]))
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
            train(glyph_classes, RECIPE, out, resume=True, validation=other, device="cpu")
    notes = Notes()
    train(glyph_classes, RECIPE, out, resume=True, device="cpu", progress=notes)  # keeps its share
    assert notes.statuses == validated_run[1].statuses  # begins with that of the stored epoch
    assert same_but_times(metrics(out)) == same_but_times(metrics(whole))
    for folder in ("", "best"):
        assert load_model(out / folder).fingerprint == load_model(whole / folder).fingerprint
    again = train(glyph_classes, RECIPE, out, resume=True, device="cpu")
    assert again.fingerprint == load_model(whole).fingerprint


def test_a_run_without_validation_goes_on_without_it(four_classes, four_classes_old, tmp_path):
    many = four_classes_old.training
    assert "validation" not in many
    with stopped_before_epoch(1):
        train(four_classes, SMALL, tmp_path / "m", validation=0, device="cpu")
    with pytest.raises(UserError, match=r"its validation is 0\.0, not 0\.5"):
        train(four_classes, SMALL, tmp_path / "m", resume=True, validation=0.5, device="cpu")
    with pytest.MonkeyPatch.context() as patch:  # enough classes for the default
        patch.setattr("unibct.training.set_aside._AUTOMATIC_CLASSES", 0)
        model = train(four_classes, SMALL, tmp_path / "m", resume=True, device="cpu")
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
        validation=SimpleNamespace(pixels=SimpleNamespace(images=images)),
        run=SimpleNamespace(first_usable_epoch=1),
    )
    assert best_row(context, rows)["epoch"] == 2
    assert best_row(context, rows[:1]) is None
    notes = Notes()
    note_result(context, rows, notes)
    assert notes.texts == [
        "best epoch: 3 (the last one has 70.0 %), recall@1 80.0 % (raw pixels 50.0 %) on 2 "
        "classes that were set aside"
    ]
    weak = Notes()
    note_result(context, [*rows[:2], rows[1] | {"recall_at_1": 0.54}], weak)
    assert len(weak.texts) == 1
    note_result(context, [rows[1] | {"recall_at_1": 0.54}], weak)
    assert weak.texts[1].startswith("best epoch: 2 (the last one), recall@1 54.0 %")
    assert weak.texts[2].startswith("this model is hardly better than raw pixels")
    images.vector_dim = 8  # finished vectors are trained on
    note_result(context, [rows[1] | {"recall_at_1": 0.54}], weak)
    assert "recall@1 54.0 % (the given vectors 50.0 %)" in weak.texts[3]
    assert weak.texts[4].startswith("this model is hardly better than the given vectors")


@pytest.mark.slow
def test_a_run_from_old_weights_measures_on_new_classes_and_keeps_them(
    glyph_classes, four_classes_old, tmp_path
):
    notes, short = Notes(), SMALL.updated(epochs=1, warmup_epochs=0)
    options = OPTIONS | {"old": four_classes_old, "progress": notes}
    model = train(glyph_classes, short, tmp_path / "m", **options)
    assert set(four_classes_old.class_names) <= set(model.class_names)
    assert len(model.class_names) == 9
    assert not any("may have learnt them" in text for text in notes.texts)
    again = train(glyph_classes, short, tmp_path / "m", resume=True, **options)
    assert again.class_names == model.class_names


@pytest.mark.slow
def test_a_run_of_an_earlier_version_keeps_the_classes_that_it_drew_from_all(
    glyph_classes, four_classes_old, tmp_path, monkeypatch
):
    short = SMALL.updated(epochs=1, warmup_epochs=0)
    options = OPTIONS | {"old": four_classes_old}
    with monkeypatch.context() as patch:
        patch.setattr("unibct.training.run.set_aside", lambda *arguments: set_aside(*arguments[:3]))
        model = train(glyph_classes, short, tmp_path / "m", **options)
    assert model.class_names == set_aside(glyph_classes, SHARE, seed=1).training.class_names
    assert not set(four_classes_old.class_names) <= set(model.class_names)
    again = train(glyph_classes, short, tmp_path / "m", resume=True, **options)
    assert again.class_names == model.class_names


def test_a_run_from_old_weights_says_if_the_old_model_may_know_the_classes(
    four_classes, four_classes_old, tmp_path
):
    notes = Notes()
    options = {"old": four_classes_old, "validation": 0.5, "device": "cpu", "progress": notes}
    train(four_classes, SMALL.updated(epochs=1, warmup_epochs=0), tmp_path / "m", **options)
    assert "may have learnt them: recall@1 on new classes is lower" in notes.texts[0]

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.models.cases import small_model
from tests.notes import Notes
from unibct import progress
from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.data.training_classes import identity_digests
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import Embeddings, open_embeddings, save_embeddings
from unibct.errors import UserError
from unibct.evaluation.blending import choose_alpha
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.models.model_folder import save_model


def noisy_vectors(images: ImageSet, noise: float, dim: int = 16) -> np.ndarray:
    """One random centre per class, and noise around it."""
    centres = np.random.default_rng(0).normal(size=(len(images.class_names), dim))
    rng = np.random.default_rng(int(10 * noise))
    vectors = centres[images.labels] + noise * rng.normal(size=(len(images), dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def save(folder: Path, images: ImageSet, vectors: np.ndarray) -> Path:
    """An embeddings folder of these images, with its rows in reverse order."""
    rows = np.arange(len(images))[::-1]
    ids = tuple(images.ids[row] for row in rows)
    labels = images.labels[rows]
    save_embeddings(Embeddings(vectors[rows], ids, labels, images.class_names, "x"), folder)
    return folder


@pytest.mark.slow
def test_embeddings_are_matched_to_the_images_by_id(photo_folder, tmp_path):
    images = open_images(photo_folder)
    old, new = noisy_vectors(images, 1.3), noisy_vectors(images, 0.4)
    sides = {"old": old, "new": new}
    folders = {side: save(tmp_path / side, images, vectors) for side, vectors in sides.items()}
    result = evaluate(photo_folder, **folders, far=0.1, seed=3, backfill_curve=False)
    expected = evaluate_embeddings(images.labels, old=old, new=new, images=images, far=0.1, seed=3)
    known = {"note": "", "fingerprints": {"query": "x", "gallery": "x"}}  # of stored embeddings
    known["classes"] = result.seen.as_json()
    assert known["classes"]["tested"] == 12
    assert result.as_json() | {"note": ""} == expected.as_json() | known
    assert "the old model's training classes are not recorded" in result.note


def test_models_of_different_dimensions_are_refused(photo_folder, tmp_path):
    images = open_images(photo_folder)
    new = save(tmp_path / "new", images, noisy_vectors(images, 0.4, dim=8))
    old = save(tmp_path / "old", images, noisy_vectors(images, 1.3))
    with pytest.raises(UserError, match=r"dimension 8 but .* dimension 16: one cannot search"):
        evaluate(photo_folder, old=old, new=new)


def test_images_without_embedding_are_an_error_unless_they_may_be_skipped(photo_folder, tmp_path):
    images = open_images(photo_folder)
    vectors = noisy_vectors(images, 1.0)
    some = np.arange(len(images))[5:]
    partial = save(tmp_path / "partial", images.select(some), vectors[some])
    whole = save(tmp_path / "whole", images, vectors)
    with pytest.raises(UserError, match="no embedding"):
        evaluate(photo_folder, old=whole, new=partial)
    notes = Notes()
    with progress.shown(notes):
        result = evaluate(photo_folder, old=whole, new=partial, skip_bad_images=True)
    assert "are the same model" in notes.texts[0]
    assert notes.texts[1:] == [f"left out 5 images without embedding in {partial}"]
    assert len(result.split.labels) == len(images) - 5


def test_a_folder_with_embeddings_of_other_images_is_refused(photo_folder, tmp_path):
    glyphs = open_images("glyphs:val")
    foreign = save(tmp_path / "foreign", glyphs, noisy_vectors(glyphs, 1.0))
    with pytest.raises(UserError, match="foreign has no embedding of any image of"):
        evaluate(photo_folder, old=foreign, new=foreign, skip_bad_images=True)


@pytest.mark.slow
def test_lists_choose_the_queries_and_the_gallery(photo_folder, tmp_path):
    images = open_images(photo_folder)
    old, new = noisy_vectors(images, 1.3), noisy_vectors(images, 0.4)
    folders = {
        "new": save(tmp_path / "new", images, new),
        "old": save(tmp_path / "old", images, old),
    }
    gallery = np.concatenate([np.flatnonzero(images.labels == c)[:3] for c in range(12)])
    query = np.setdiff1d(np.arange(0, len(images), 2), gallery)
    for name, rows in (("queries", query), ("gallery", gallery)):
        text = "".join(f"{images.ids[row]}\n" for row in rows)
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")

    lists = {"queries": tmp_path / "queries.txt", "gallery_images": tmp_path / "gallery.txt"}

    def evaluated(**options):
        return evaluate(photo_folder, **folders, **lists, **options)

    result = evaluated()
    chosen = images.select(np.sort(np.concatenate([query, gallery])))
    assert len(result.split.query) == len(query)
    assert {chosen.ids[row] for row in result.split.gallery} == {images.ids[r] for r in gallery}
    as_images = evaluated(gallery_mode="images")
    assert as_images.tests["new→old"].templates == 36
    assert as_images.values["new→old"]["mAP"] == result.values["new→old"]["mAP"]
    (tmp_path / "gallery.txt").write_text(f"{images.ids[0]}\n", encoding="utf-8")
    with pytest.raises(UserError, match="has queries but no image in"):
        evaluated()


def test_only_listed_images_are_embedded_and_judged_and_a_bad_one_may_be_left_out(
    photo_folder, tmp_path
):
    images = open_images(photo_folder)
    some = np.flatnonzero(images.labels < 5)
    listed, embedded = images.select(some), images.select(some[1:])
    folder = save(tmp_path / "some", embedded, noisy_vectors(embedded, 0.4))
    rows = [np.argmax(listed.labels == label) + 1 for label in range(5)]
    in_gallery = np.isin(np.arange(len(listed)), rows)
    for name, rows in (("queries", ~in_gallery), ("gallery", in_gallery)):
        text = "".join(f"{listed.ids[row]}\n" for row in np.flatnonzero(rows))
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    lists = {"queries": tmp_path / "queries.txt", "gallery_images": tmp_path / "gallery.txt"}
    result = evaluate(photo_folder, old=folder, new=folder, skip_bad_images=True, **lists)
    assert len(result.split.query) == len(listed) - 5 - 1
    assert result.split.classes == 5
    assert "only 5 classes have queries" in result.note


def test_what_cannot_work_is_refused_before_anything_is_embedded(
    photo_folder, tmp_path, monkeypatch
):
    images = open_images(photo_folder)
    stored = save(tmp_path / "old", images, noisy_vectors(images, 0.4))
    embedded = "unibct.evaluation.protocols.images._embedded"
    monkeypatch.setattr(embedded, lambda *_: pytest.fail("embedded"))
    file = "embeddings:" + str(tmp_path / "x.npy")
    write_embeddings(open_embeddings(stored), tmp_path / "x.npy", "npy")
    damaged = save(tmp_path / "damaged", images, noisy_vectors(images, 0.4))
    (tmp_path / "damaged" / "score_maps.json").write_text("[]")
    alone = tmp_path / "alone"
    for name in ("a", "b", "c"):
        (alone / name).mkdir(parents=True)
        shutil.copy(next(photo_folder.rglob("*.png")), alone / name)
    lists = {"queries": tmp_path / "q.txt", "gallery_images": tmp_path / "g.txt"}
    for new, options, message in (
        (damaged, {"save_score_map": True}, "holds no score maps; remove it"),
        (stored, {"alpha_from": str(alone)}, "alone: fewer than two classes have two"),
        (stored, {"queries": tmp_path / "q.txt"}, "give both lists"),
        (stored, lists, "q.txt"),
        (stored, {"old_thresholds": True}, "score map"),
        (file, {"save_score_map": True}, "a score map is kept in a folder"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate(photo_folder, old=stored, new=new, **options)
    with pytest.raises(UserError, match="alone: fewer than two classes have two images"):
        evaluate(alone, old=stored, new=stored)


@pytest.mark.slow
def test_a_score_map_that_cannot_be_kept_does_not_cost_the_evaluation(
    photo_folder, tmp_path, monkeypatch
):
    images = open_images(photo_folder)
    old, new = (
        save(tmp_path / name, images, noisy_vectors(images, noise))
        for name, noise in (("old", 1.3), ("new", 0.4))
    )

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unibct.evaluation.protocols.images.save_score_map", full)
    notes = Notes()
    options = {"save_score_map": True, "backfill_curve": False}
    with progress.shown(notes):
        assert evaluate(photo_folder, old=old, new=new, **options).compared
    assert any("no score map is kept: [Errno 28]" in text for text in notes.texts)


@pytest.mark.slow
def test_a_score_map_is_kept_with_the_new_model_and_used(photo_folder, tmp_path):
    images = open_images(photo_folder)
    folders = {
        "new": save(tmp_path / "new", images, noisy_vectors(images, 0.4)),
        "old": save(tmp_path / "old", images, noisy_vectors(images, 1.3)),
    }

    def evaluated(**options):
        with progress.shown(notes):
            return evaluate(photo_folder, **folders, backfill_curve=False, **options)

    notes = Notes()
    with pytest.raises(UserError, match="has no score map for the old model"):
        evaluated(old_thresholds=True)
    with pytest.raises(UserError, match="use one of them, each on other classes"):
        evaluated(old_thresholds=True, save_score_map=True)
    evaluated(save_score_map=True)
    assert "in place of" not in notes.texts[-1]
    folders["new"] = f"embeddings:{folders['new']}"
    with pytest.raises(UserError, match="the score map was fitted on the test images themselves"):
        evaluated(old_thresholds=True)
    few = evaluated(old_thresholds=True, seen_classes=True)
    assert few.at_old_threshold[0].mapped is None
    file = tmp_path / "new" / "score_maps.json"
    maps = json.loads(file.read_text())
    (kept,) = maps.values()
    rate = f"thresholds for false accept rates below {30 / kept['impostors']:.2g} are beyond it"
    assert rate in few.note
    kept["impostors"] = 3000  # as if it had seen more
    file.write_text(json.dumps(maps))
    result = evaluated(old_thresholds=True, seen_classes=True)
    row = result.at_old_threshold[0]
    # The map was fitted on the same data: impostors pass as often as before.
    assert row.mapped.far == pytest.approx(row.old.far, abs=0.002)
    classes = len(images.class_names)
    assert "the score map was fitted on the test images themselves" in result.note
    assert "score map" not in evaluated().note
    # Fitted on some of the classes, and by an earlier version, which kept none of them.
    listed = tmp_path / "some.txt"
    some = [i for i, label in zip(images.ids, images.labels, strict=True) if label >= 8]
    listed.write_text("".join(f"{i}\n" for i in some), encoding="utf-8")
    evaluated(images=listed, save_score_map=True)
    assert "in place of the one that was fitted before; the score map was" in notes.texts[-1]
    assert " impostor pairs: thresholds for false accept rates below " in notes.texts[-1]
    assert f" {classes - 8} of the {classes} test" in evaluated(old_thresholds=True).note
    maps = json.loads(file.read_text())
    for kept in maps.values():
        del kept["fitted_on"], kept["impostors"]
    file.write_text(json.dumps(maps))
    note = evaluated(old_thresholds=True).note
    assert "whether the score map was fitted on test classes is unknown" in note
    assert "it is unknown for which false accept rates it holds" in note


@pytest.mark.slow
def test_a_model_s_score_scale_is_used_for_its_own_old_model(photo_folder, tmp_path):
    old, other = small_model(1), small_model(2)
    new = small_model(3, old_fingerprint=old.fingerprint).with_score_scale(1.25)
    for name, model in (("old", old), ("other", other), ("new", new)):
        save_model(model, tmp_path / name)

    def evaluated(gallery, query="new"):
        with progress.shown(notes):
            sides = {"old": tmp_path / gallery, "new": tmp_path / query}
            return evaluate(photo_folder, **sides, backfill_curve=False)

    notes = Notes()
    found = evaluated("old")
    assert not any("old clients" in text for text in notes.texts)
    row, scores = found.at_old_threshold[0], found.tests["new→old"].genuine.astype(np.float64)
    assert found.score_scale == 1.25
    images = open_images(photo_folder)
    with_objects = evaluate(images, old=old, new=new, backfill_curve=False)
    assert with_objects.as_json() == found.as_json(), "a set and models, as well as their names"
    assert row.scaled.tar == np.mean(1.25 * scores > row.threshold)
    assert evaluated("other").score_scale is None
    assert f"gallery of model {old.fingerprint}, not that of" in notes.texts[-1]
    evaluated("new", query="old")
    assert "exchange the new and the old model; this one is about old clients" in notes.texts[-1]
    evaluated("old", query="old")
    assert "are the same model: there is no upgrade to test" in notes.texts[-1]


@pytest.mark.slow
def test_alpha_is_chosen_on_other_classes(photo_folder, tmp_path):
    glyphs = open_images("glyphs:val")
    others = glyphs.select(np.flatnonzero(glyphs.labels < 6))
    folder = tmp_path / "others"
    for image_id, label in zip(others.ids, others.labels, strict=True):
        path = folder / f"other {label}" / f"{image_id.replace('/', ' ')}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(others.read(image_id)).save(path)
    tested, validation = open_images(photo_folder), open_images(folder)
    sides = {}
    for side, noise in (("old", 1.5), ("new", 1.2)):
        parts = [noisy_vectors(images, noise) for images in (tested, validation)]
        names = (*tested.class_names, *validation.class_names)
        labels = np.concatenate([tested.labels, validation.labels + len(tested.class_names)])
        rows = Embeddings(np.concatenate(parts), (*tested.ids, *validation.ids), labels, names, "x")
        save_embeddings(rows, tmp_path / side)
        sides[side] = tmp_path / side, parts
    models = {side: path for side, (path, _) in sides.items()}

    def evaluated(**options):
        return evaluate(photo_folder, **models, backfill_curve=False, **options)

    result = evaluated(alpha_from=str(folder)).blended_queries
    old, new = (sides[side][1][1] for side in ("old", "new"))
    expected = choose_alpha(validation.labels, old=old, new=new, chosen_on=str(folder))
    assert result.choice.mean_reciprocal_ranks == expected.mean_reciprocal_ranks
    assert result.choice.chosen_on.classes == identity_digests(validation.class_names)
    assert 0 < result.alpha < 1
    assert result.as_json()["chosen_on"]["data"] == str(folder)
    with pytest.raises(UserError, match=r"have 12 classes in common.*that are not tested"):
        evaluated(alpha_from=str(photo_folder))

from dataclasses import replace

import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from tests.training.runs import SMALL
from unibct.data.readers import open_images
from unibct.embedders import open_embedder
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.recall import pixel_vectors, recall_at_1
from unibct.errors import UserError
from unibct.evaluation.pixel_baseline import embedder_frame, old_model_recall
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.models.architectures import build_network
from unibct.models.model import Model
from unibct.models.model_folder import save_model
from unibct.training.network import recipe_architecture, recipe_input


def random_vectors(images, strength: float) -> np.ndarray:
    """Noise, and so much of each class's own direction."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(images.class_names), 16))
    return rng.normal(size=(len(images), 16)) + strength * centres[images.labels]


def test_the_old_model_is_compared_with_the_pixels_that_it_gets(glyph_classes):
    images = glyph_classes
    vectors = random_vectors(images, 5.0)
    pixels = np.stack([images.read(image_id) for image_id in images.ids])
    of_array = old_model_recall(vectors, images.labels, pixels)
    assert of_array is not None
    assert of_array.recall_at_1 == recall_at_1(vectors, images.labels)
    assert of_array.pixel_recall_at_1 == recall_at_1(pixel_vectors(pixels), images.labels)
    assert old_model_recall(vectors, images.labels, images) == of_array
    for without in (None, replace(images, vector_dim=16)):  # finished vectors have no pixels
        assert old_model_recall(vectors, images.labels, without) is None


def test_wrong_images_are_refused(glyph_classes):
    vectors, labels = random_vectors(glyph_classes, 1.0), glyph_classes.labels
    for images, message in (
        (np.zeros((3, 8, 8), np.uint8), r"images must be uint8 of shape \(144, height"),
        (np.zeros((144, 8, 8)), "not float64 of shape"),
        (np.zeros((144, 0, 8), np.uint8), r"not uint8 of shape \(144, 0, 8\)"),
        (glyph_classes.select([0, 1]), "glyphs:train has 2 images for 144 embeddings"),
        ("glyphs:train", "images must be an image set or an array"),
    ):
        with pytest.raises(UserError, match=message):
            old_model_recall(vectors, labels, images)


def test_an_upgrade_of_a_weak_old_model_gets_no_verdict(photo_folder):
    images = open_images(photo_folder)
    weak, good = random_vectors(images, 0.5), random_vectors(images, 9.0)
    said = "whether the old model is too weak to judge an upgrade by was not checked: it was not"
    for old, pixels, verdict, too_weak in (
        (weak, images, "old model too weak", True),
        (good, images, "within noise", False),
        (weak, None, "compatible", None),  # without pixels it is not known
    ):
        sides = {"old": old, "new": good, "images": pixels}
        found = evaluate_embeddings(images.labels, **sides, far=0.1, repeats=50)
        described = found.as_json()
        assert found.verdict == described["verdict"] == verdict
        assert (described["old_model"] and described["old_model"]["too_weak"]) == too_weak
        assert (said in (described["note"] or "")) == (too_weak is None)
        if old is weak:
            assert {criterion.verdict for criterion in found.criteria} == {"compatible"}


def first_pixels(images):
    """A callable that stands in place of a model."""
    return images.reshape(len(images), -1)[:, :5].astype(np.float32)


def test_every_kind_of_model_says_in_which_form_it_takes_images(tmp_path):
    architecture = recipe_architecture(SMALL)
    spec = recipe_input(SMALL.updated(size=(24, 40)), architecture)
    network = build_network(architecture, spec, 8)
    save_model(Model(network, architecture.name, spec, 8), tmp_path / "m")
    for reference in (f"{tmp_path / 'm'}", f"model:{tmp_path / 'm'}"):
        assert embedder_frame(open_embedder(reference)) == spec.frame
    callable_ = "python:tests.evaluation.test_pixel_baseline:first_pixels?size=24x40&channels=1"
    assert embedder_frame(open_embedder(callable_)) == (24, 40, 1, "stretch")
    write_embeddings(random_embeddings(3), tmp_path / "e")
    assert embedder_frame(open_embedder(tmp_path / "e")) is None

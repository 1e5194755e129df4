import hashlib

import numpy as np

from unibct.evaluation import subjects
from unibct.evaluation.subjects import (
    Subjects,
    known_fingerprints,
    subject_data,
    subject_model,
)


class Embedder:
    name = "models/a"
    dim = 3
    fingerprint = "f" * 32


def test_a_model_is_named_by_its_fingerprint_and_its_vectors(monkeypatch, glyph_classes):
    vectors = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    found = subject_model(Embedder(), vectors)
    assert found.vectors == hashlib.sha256(vectors.astype("<f4").tobytes()).hexdigest()
    assert (found.fingerprint, found.dim, found.name) == ("f" * 32, 3, "models/a")
    monkeypatch.setattr(subjects, "_ROWS_AT_ONCE", 2)
    assert subject_model(Embedder(), vectors) == found, "block by block"
    changed = vectors.copy()
    changed[6, 2] += 1e-6
    assert subject_model(Embedder(), changed) != found
    data = subject_data(glyph_classes)
    assert (data.images, data.classes) == (144, 12)
    assert data.digest != subject_data(glyph_classes.select(range(100))).digest
    assert Subjects(found, found, data).as_json()["data"] == {
        "name": "glyphs:train",
        "digest": glyph_classes.digest,
        "images": 144,
        "classes": 12,
    }


def test_only_sides_that_know_their_model_have_a_fingerprint():
    assert known_fingerprints(query=Embedder(), gallery=np.ones((2, 3))) == {"query": "f" * 32}
    assert known_fingerprints(query=None, gallery=Embedder()) == {"gallery": "f" * 32}

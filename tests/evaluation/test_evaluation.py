import hashlib

import numpy as np

from unibct.evaluation import evaluation
from unibct.evaluation.evaluation import (
    Evaluated,
    EvaluatedData,
    EvaluatedModel,
    known_fingerprints,
)


class Embedder:
    name = "models/a"
    dim = 3
    fingerprint = "f" * 32


def test_a_model_is_named_by_its_fingerprint_and_its_vectors(monkeypatch, glyph_classes):
    vectors = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    found = EvaluatedModel.of(Embedder(), vectors)
    assert found.vectors == hashlib.sha256(vectors.astype("<f4").tobytes()).hexdigest()
    assert (found.fingerprint, found.dim, found.name) == ("f" * 32, 3, "models/a")
    monkeypatch.setattr(evaluation, "_ROWS_AT_ONCE", 2)
    assert EvaluatedModel.of(Embedder(), vectors) == found, "block by block"
    changed = vectors.copy()
    changed[6, 2] += 1e-6
    assert EvaluatedModel.of(Embedder(), changed) != found
    data = EvaluatedData.of(glyph_classes)
    assert (data.images, data.classes) == (144, 12)
    assert data.digest != EvaluatedData.of(glyph_classes.select(range(100))).digest
    assert Evaluated(found, found, data).as_json()["data"] == {
        "name": "glyphs:train",
        "digest": glyph_classes.digest,
        "images": 144,
        "classes": 12,
    }


def test_only_sides_that_know_their_model_have_a_fingerprint():
    assert known_fingerprints(new=Embedder(), old=np.ones((2, 3))) == {"query": "f" * 32}
    assert known_fingerprints(new=None, old=Embedder()) == {"gallery": "f" * 32}

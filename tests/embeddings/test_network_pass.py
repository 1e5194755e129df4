import numpy as np
import pytest

from tests.models.test_model import small_model
from unibct.embeddings.network_pass import finite_embeddings
from unibct.errors import UserError


def test_embeddings_are_those_of_the_model_and_the_first_bad_one_is_named(monkeypatch):
    model = small_model()
    pixels = np.random.default_rng(0).integers(0, 256, (4, *model.input.size), dtype=np.uint8)
    vectors = model.embed_pixels(pixels)
    assert np.array_equal(finite_embeddings(model, pixels, list("abcd")), vectors)
    vectors[2:, 1] = np.inf
    monkeypatch.setattr(type(model), "embed_pixels", lambda *_: vectors)
    with pytest.raises(UserError, match="no finite embedding for c"):
        finite_embeddings(model, pixels, list("abcd"))

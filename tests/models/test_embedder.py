"""The protocol has no behaviour of its own: a model follows it, as a type checker sees it."""

import inspect

from tests.models.cases import small_model
from unibct.models.embedder import Embedder, ImageEmbedder


def test_a_model_has_everything_that_the_protocol_names():
    model = small_model()
    for protocol in (Embedder, ImageEmbedder):
        for name, _ in inspect.getmembers(protocol):
            if not name.startswith("_"):
                assert hasattr(model, name), name
    assert model.fingerprint[:8] in model.name

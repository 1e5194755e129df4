import numpy as np
import pytest

from tests.gallery.toys import OLD
from unibct.embedders.table import Opening
from unibct.errors import UserError
from unibct.gallery.shelf import describe_model, keep_model, open_maker, query_view


def test_a_callable_is_opened_where_it_is(tmp_path):
    maker, embedder = describe_model(OLD, Opening())
    keep_model(tmp_path, embedder)
    assert not (tmp_path / "models").exists()
    assert open_maker(tmp_path, maker, Opening()).fingerprint == maker.fingerprint


def test_a_model_that_has_changed_is_refused(tmp_path):
    maker, _ = describe_model(OLD, Opening())
    changed = type(maker)(**(vars(maker) | {"fingerprint": "f" * 32}))
    with pytest.raises(UserError, match="has changed"):
        open_maker(tmp_path, changed, Opening())


def test_vectors_of_another_dimension_need_a_projection():
    vectors = np.eye(3, 4, dtype=np.float32)
    assert query_view(None, vectors, 4, "m") is vectors
    with pytest.raises(UserError, match="no projection into dimension 5"):
        query_view(None, vectors, 5, "m")

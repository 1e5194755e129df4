import shutil

import numpy as np
import pytest

from tests.gallery import toys
from tests.gallery.toys import OLD
from unibct.embedders.table import Opening
from unibct.errors import UserError
from unibct.files import CACHE_VARIABLE
from unibct.gallery.folder import GalleryFolder
from unibct.gallery.gallery import Gallery
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


def test_a_gallery_knows_a_callable_again_on_another_machine(tmp_path, monkeypatch):
    """Another device changes its vectors by the size of TF32; nothing but the gallery moves."""
    model, weights, rng = toys.old_model, toys.old_model.weights, np.random.default_rng(0)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    gallery = Gallery.create(tmp_path / "g", OLD)
    known = gallery.folder.state.searching.fingerprint
    gallery.close()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "another"))
    monkeypatch.setattr(model, "weights", weights * (1 + 1e-3 * rng.standard_normal(weights.shape)))
    alone = Opening().open(OLD)
    assert alone.fingerprint != known, "without the gallery it is another one"
    folder = GalleryFolder(tmp_path / "g")
    assert folder.model(known).embedder.fingerprint == known
    assert describe_model(OLD, folder.opening)[0].fingerprint == known
    shutil.rmtree(tmp_path / "g" / "probes")  # as in galleries of earlier versions
    with pytest.raises(UserError, match=f"if it is the same, .* fingerprint = '{known}'"):
        GalleryFolder(tmp_path / "g").model(known)
    monkeypatch.setattr(model, "weights", weights)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "third"))
    assert GalleryFolder(tmp_path / "g").model(known).embedder.fingerprint == known


def test_vectors_of_another_dimension_need_a_projection():
    vectors = np.eye(3, 4, dtype=np.float32)
    assert query_view(None, vectors, 4, "m") is vectors
    with pytest.raises(UserError, match="no projection into dimension 5"):
        query_view(None, vectors, 5, "m")

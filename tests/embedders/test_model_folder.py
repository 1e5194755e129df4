import pytest

from tests.models.cases import small_model
from unibct.embedders import open_embedder
from unibct.errors import UserError
from unibct.models.model_folder import save_model


def test_a_model_folder_needs_no_kind(tmp_path):
    model = small_model()
    save_model(model, tmp_path / "old")
    for reference in (tmp_path / "old", f"model:{tmp_path / 'old'}"):
        opened = open_embedder(reference)
        assert opened.fingerprint == model.fingerprint
        assert opened.class_weights is None
    assert open_embedder(tmp_path / "old", with_classifier=True).class_weights is not None
    with pytest.raises(UserError, match="is not a model folder"):
        open_embedder(tmp_path / "none")

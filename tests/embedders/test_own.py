import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from tests.models.cases import small_model
from unibct.embedders import open_embedder
from unibct.embeddings.forms import write_embeddings
from unibct.errors import UserError
from unibct.models.model_folder import save_model


def test_every_form_stands_in_place_of_its_model(tmp_path):
    written = random_embeddings(9, fingerprint="model")
    for form, place in (("folder", "a"), ("parquet", "a.parquet"), ("npy", "a.npy")):
        write_embeddings(written, tmp_path / place, form)
        for reference in (tmp_path / place, f"embeddings:{tmp_path / place}"):
            opened = open_embedder(reference)
            assert (opened.dim, opened.fingerprint) == (6, "model")
            assert np.array_equal(
                opened.embeddings.vectors_of(written.ids[2:4]), written.vectors[2:4]
            )


def test_files_that_the_user_gives_one_name_belong_to_one_model(tmp_path):
    for number in (1, 2):
        write_embeddings(random_embeddings(3, first=number), tmp_path / f"{number}.npy", "npy")
    named = [f"embeddings:{tmp_path}/{n}.npy?model=clip" for n in (1, 2)]
    assert len({open_embedder(reference).fingerprint for reference in named}) == 1


def test_bad_rows_are_refused_on_opening(tmp_path):
    np.save(tmp_path / "old.npy", np.array([[1.0, 0], [0, 0]]))
    (tmp_path / "old.ids.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"old\.npy, row 1 \('b'\) is all zeros"):
        open_embedder(f"embeddings:{tmp_path / 'old.npy'}")


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

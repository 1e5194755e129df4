import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from tests.models.cases import small_model
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.folder import NO_CLASS, Embeddings
from unibct.embeddings.forms.table import write_embeddings
from unibct.embeddings.vector_set import open_data, training_data, vector_set
from unibct.errors import UserError


def test_rows_are_images_of_one_row(tmp_path):
    embeddings = random_embeddings(9)
    write_embeddings(embeddings, tmp_path / "a.npy", "npy")
    (tmp_path / "list.txt").write_text("\n".join(embeddings.ids[2:5]))
    for rows in (
        open_data(f"embeddings:{tmp_path / 'a.npy'}"),
        training_data(None, str(tmp_path / "a.npy"), None),
    ):
        assert rows.vector_dim == 6
        assert rows.ids == embeddings.ids
        vector = rows.read(embeddings.ids[3])
        assert vector.shape == (1, 6, 1)
        assert np.array_equal(vector.ravel(), embeddings.vectors[3])
        names = [[s.class_names[c] for c in s.labels] for s in (rows, embeddings)]
        assert names[0] == names[1]
    some = open_data(f"embeddings:{tmp_path / 'a.npy'}", tmp_path / "list.txt")
    assert some.ids == embeddings.ids[2:5]
    assert some.vector_dim == 6
    assert open_data("glyphs:val").vector_dim is None


def test_what_cannot_be_data_is_refused():
    full = random_embeddings(3)
    plain = Embeddings(full.vectors, full.ids, np.full(3, NO_CLASS), (), "")
    with pytest.raises(UserError, match="x has no classes: add a column `label`"):
        vector_set(plain, "x")
    for given in ((None, None), ("glyphs:val", "a.npy")):
        with pytest.raises(UserError, match="give DATA, the images, or --from-embeddings"):
            training_data(*given, None)
    with pytest.raises(UserError, match="takes images, not finished vectors"):
        embed_images(small_model(), vector_set(full, "x"))


def test_numbers_of_classes_keep_their_source():
    plain = random_embeddings(9)
    for source, expected in (("train.rec x", "train.rec x"), (None, None), ("unknown", None)):
        rows = Embeddings(
            plain.vectors, plain.ids, plain.labels, plain.class_names, "m", class_source=source
        )
        assert vector_set(rows, "x").class_source == expected

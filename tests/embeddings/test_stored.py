import re
from dataclasses import replace

import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from tests.models.cases import small_model
from tests.notes import Notes, show
from unibct.embeddings.extraction import embed
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import (
    StoredEmbeddings,
    content_fingerprint,
    named_fingerprint,
    open_data,
    training_data,
    usable_embeddings,
    vector_set,
)
from unibct.errors import UserError


def with_rows(vectors, ids=None, fingerprint=""):
    vectors = np.asarray(vectors, dtype=np.float32)
    ids = tuple(f"i{row}" for row in range(len(vectors))) if ids is None else ids
    return Embeddings(vectors, ids, np.zeros(len(vectors), dtype=np.int64), ("a",), fingerprint)


def test_rows_of_length_1_stay_to_the_bit_and_others_are_scaled():
    unit = random_embeddings(20)
    assert usable_embeddings(unit, "x").vectors is unit.vectors
    scaled = usable_embeddings(with_rows([[3, 4], [0, 2]]), "x")
    assert np.allclose(scaled.vectors, [[0.6, 0.8], [0, 1]])


@pytest.mark.parametrize(
    ("vectors", "ids", "message"),
    [
        ([[1, 0], [np.nan, 1]], None, r"x, row 1 \('i1'\) has NaN or infinite values"),
        ([[1, 0], [np.inf, 1]], None, r"x, row 1 \('i1'\) has NaN or infinite values"),
        ([[1, 0], [0, 1], [0, 0]], None, r"x, row 2 \('i2'\) is all zeros, as 1 of rows 0 to 2"),
        ([[1, 0], [0, 1], [1, 1]], ("a", "b", "a"), "x, row 2 has the id 'a' of row 0; 1 rows"),
    ],
)
def test_bad_rows_are_named_by_row_and_id(vectors, ids, message):
    with pytest.raises(UserError, match=message):
        usable_embeddings(with_rows(vectors, ids), "x")


def test_the_fingerprint_of_unknown_models_follows_ids_and_vectors():
    embeddings = with_rows([[1, 0], [0, 1]])
    found = usable_embeddings(embeddings, "x").fingerprint
    assert found == content_fingerprint(embeddings)
    changed = [with_rows([[1, 0], [0, -1]]), with_rows([[1, 0], [0, 1]], ("i0", "other"))]
    assert len({found, *map(content_fingerprint, changed)}) == 3
    stated = with_rows([[1, 0]], fingerprint="stated")
    assert usable_embeddings(stated, "x").fingerprint == "stated"
    assert named_fingerprint("a", 4) != named_fingerprint("b", 4)
    assert named_fingerprint("a", 4) != named_fingerprint("a", 5)


def stored(ids, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(len(ids), 4)).astype(np.float32)
    labels = np.zeros(len(ids), dtype=np.int64)
    return StoredEmbeddings("old.npy", Embeddings(vectors, tuple(ids), labels, ("x",), "model"))


def test_rows_are_found_by_id(glyph_classes, tmp_path):
    images = glyph_classes.select(range(10))
    old = stored(["surplus", *reversed(images.ids)])
    found = embed(old, images)
    assert np.array_equal(found.vectors, old.embeddings.vectors[:0:-1])
    assert found.ids == images.ids
    assert found.class_names == images.class_names
    assert (found.fingerprint, old.dim) == ("model", 4)
    kept = embed(old, images, out=tmp_path / "emb")
    assert np.array_equal(np.asarray(kept.vectors), found.vectors)


def test_missing_and_surplus_ids_are_counted_and_the_first_is_named(glyph_classes):
    images = glyph_classes.select(range(10))
    old = stored([*images.ids[:7], "one more", "two more"])
    first = re.escape(repr(images.ids[7]))
    with pytest.raises(
        UserError, match=f"old.npy has no .* of 3 of 10 images of .*, first {first}"
    ):
        embed(old, images)
    notes, skipping = show(Notes()), replace(images, skip_bad=True)
    assert len(embed(old, skipping)) == 7
    assert "old.npy has 2 embeddings of none of the" in notes.texts[0]
    assert "first 'one more'" in notes.texts[0]
    assert "left out 3 images" in notes.texts[1]
    with pytest.raises(UserError, match="no embedding of any image"):
        embed(stored(["a"]), skipping)


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
    with pytest.raises(UserError, match="x has no classes: add a column `label`"):
        vector_set(random_embeddings(3, classes=(), fingerprint=""), "x")
    for given in ((None, None), ("glyphs:val", "a.npy")):
        with pytest.raises(UserError, match="give DATA, the images, or --from-embeddings"):
            training_data(*given, None)
    with pytest.raises(UserError, match="takes images, not finished vectors"):
        embed(small_model(), vector_set(random_embeddings(3), "x"))


def test_numbers_of_classes_keep_their_source():
    for source, expected in (("train.rec x", "train.rec x"), (None, None), ("unknown", None)):
        rows = random_embeddings(9, class_source=source)
        assert vector_set(rows, "x").class_source == expected

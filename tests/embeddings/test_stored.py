import re

import numpy as np
import pytest

from tests.notes import Notes
from unibct.embeddings.extraction import embed_images, embed_images_to_store
from unibct.embeddings.folder import Embeddings
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError


def stored(ids, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(len(ids), 4)).astype(np.float32)
    labels = np.zeros(len(ids), dtype=np.int64)
    return StoredEmbeddings("old.npy", Embeddings(vectors, tuple(ids), labels, ("x",), "model"))


def test_rows_are_found_by_id(glyph_classes, tmp_path):
    images = glyph_classes.select(range(10))
    old = stored(["surplus", *reversed(images.ids)])
    found = embed_images(old, images)
    assert np.array_equal(found.vectors, old.embeddings.vectors[:0:-1])
    assert found.ids == images.ids
    assert found.class_names == images.class_names
    assert (found.fingerprint, old.dim) == ("model", 4)
    kept = embed_images_to_store(old, images, tmp_path / "emb")
    assert np.array_equal(np.asarray(kept.vectors), found.vectors)


def test_missing_and_surplus_ids_are_counted_and_the_first_is_named(glyph_classes):
    images = glyph_classes.select(range(10))
    old = stored([*images.ids[:7], "one more", "two more"])
    message = (
        f"old.npy has no embedding of 3 of 10 images of .*, first {re.escape(repr(images.ids[7]))}"
    )
    with pytest.raises(UserError, match=message):
        embed_images(old, images)
    notes = Notes()
    assert len(embed_images(old, images, skip_bad=True, progress=notes)) == 7
    assert "old.npy has 2 embeddings of none of the" in notes.texts[0]
    assert "first 'one more'" in notes.texts[0]
    assert "left out 3 images" in notes.texts[1]
    with pytest.raises(UserError, match="no embedding of any image"):
        embed_images(stored(["a"]), images, skip_bad=True)

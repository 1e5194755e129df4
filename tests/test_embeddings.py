import json

import numpy as np
import pytest

from tests.test_models import small_model
from unibct.embeddings import Embeddings, embed_images, open_embeddings, save_embeddings
from unibct.errors import UserError


@pytest.fixture
def folder(tmp_path, glyph_classes):
    embeddings = embed_images(small_model(), glyph_classes)
    save_embeddings(embeddings, tmp_path / "emb")
    return tmp_path / "emb"


def test_round_trip_is_memory_mapped(folder, glyph_classes):
    opened = open_embeddings(folder)
    fresh = embed_images(small_model(), glyph_classes)
    assert isinstance(opened.vectors, np.memmap)
    assert np.array_equal(opened.vectors, fresh.vectors)
    assert np.allclose(np.linalg.norm(opened.vectors, axis=1), 1, atol=1e-5)
    assert (opened.ids, opened.class_names) == (glyph_classes.ids, glyph_classes.class_names)
    assert np.array_equal(opened.labels, glyph_classes.labels)
    assert opened.fingerprint == small_model().fingerprint


def test_rows_follow_the_ids(folder, glyph_classes):
    opened = open_embeddings(folder)
    some = glyph_classes.select([50, 3, 20])
    assert np.array_equal(opened.rows_of(some), opened.vectors[[50, 3, 20]])
    fewer = Embeddings(
        np.array(opened.vectors[:2]),
        opened.ids[:2],
        opened.labels[:2],
        opened.class_names,
        opened.fingerprint,
    )
    with pytest.raises(UserError, match=r"3 images of .* have no embedding"):
        fewer.rows_of(some)


def test_damage_is_found_on_opening(folder):
    vectors = folder / "vectors.npy"
    data = bytearray(vectors.read_bytes())
    data[-1] ^= 1
    vectors.write_bytes(data)
    with pytest.raises(UserError, match=r"vectors.npy is damaged"):
        open_embeddings(folder)
    open_embeddings(folder, verify=False)
    vectors.write_bytes(data[:-64])
    with pytest.raises(UserError, match="cannot be opened"):
        open_embeddings(folder, verify=False)


def test_wrong_counts_are_found_without_checksums(folder):
    ids = folder / "ids.txt"
    ids.write_text("one\n")
    with pytest.raises(UserError, match="do not match"):
        open_embeddings(folder, verify=False)
    description = folder / "embeddings.json"
    described = json.loads(description.read_text())
    description.write_text(json.dumps(described | {"images": 7}))
    with pytest.raises(UserError, match="says"):
        open_embeddings(folder, verify=False)
    description.write_text("[]")
    with pytest.raises(UserError, match="cannot be opened"):
        open_embeddings(folder, verify=False)
    del described["model"]
    description.write_text(json.dumps(described))
    with pytest.raises(UserError, match="lacks the entry"):
        open_embeddings(folder, verify=False)


def test_nothing_is_written_over(folder):
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UserError, match="exists already"):
        save_embeddings(open_embeddings(folder), folder)
    assert sorted(folder.parent.rglob("*")) == before
    with pytest.raises(UserError, match="not an embeddings folder"):
        open_embeddings(folder.parent)

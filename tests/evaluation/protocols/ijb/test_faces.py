from dataclasses import replace

import numpy as np
import pytest

from unibct.data.readers.table import open_images
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb.faces import aligned_images, image_embeddings
from unibct.evaluation.protocols.ijb.meta import read_meta
from unibct.examples.miniatures import coloured
from unibct.models.folder import load_model


@pytest.mark.slow
def test_alignment_brings_an_image_back(faces_root):
    images = aligned_images(faces_root / "ijbc", read_meta(faces_root / "ijbc"))
    rng = np.random.default_rng([0, 2])
    source = open_images("glyphs:test")
    first = images.read(images.ids[0]).astype(int)
    # The same glyph, drawn with the same colours: only the corners are cut and the edges soft.
    candidates = [i for i in source.ids if source.labels[source.position[i]] < 400]
    state = rng.bit_generator.state
    best = 255.0
    for image_id in candidates:
        rng.bit_generator.state = state
        aligned = coloured(source.read(image_id), rng).astype(int)
        best = min(best, float(np.abs(aligned[20:92, 20:92] - first[20:92, 20:92]).mean()))
    assert best < 6


@pytest.mark.slow
def test_a_killed_embedding_goes_on_and_a_changed_image_is_embedded_again(
    faces_root, monkeypatch, tmp_path
):
    monkeypatch.setattr("unibct.evaluation.protocols.ijb.faces._ROWS_PER_FILE", 50)
    meta, model = read_meta(faces_root / "ijbc"), load_model(faces_root / "old")
    whole = image_embeddings(model, faces_root / "ijbc", meta, tmp_path)
    files = sorted(tmp_path.rglob("*.npy"))
    assert [len(np.load(f)) for f in files] == [50, 50, 44]
    header = files[0].read_bytes()
    for damaged in (b"", b"damaged", header[:60], header[:200], header.replace(b"}", b"'", 1)):
        files[0].write_bytes(damaged)
        files[1].unlink()
        np.save(files[2], np.zeros((44, 7), dtype=np.float32))  # of another dimension
        again = image_embeddings(model, faces_root / "ijbc", meta, tmp_path)
        assert np.array_equal(again, whole)
    picture = faces_root / "ijbc/loose_crop/1.jpg"
    before = picture.read_bytes()
    picture.write_bytes((faces_root / "ijbc/loose_crop/2.jpg").read_bytes())
    changed = image_embeddings(model, faces_root / "ijbc", meta, tmp_path)
    picture.write_bytes(before)
    assert not np.array_equal(changed[0], whole[0])
    assert np.array_equal(changed[1:], whole[1:])


@pytest.mark.slow
def test_models_whose_stated_fingerprints_begin_alike_share_no_cache(faces_root, tmp_path):
    meta, model = read_meta(faces_root / "ijbc"), load_model(faces_root / "old")
    for version in (1, 2):
        named = Named(model, f"acme-faces-2021-v{version}")
        image_embeddings(named, faces_root / "ijbc", meta, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


class Named:
    """A model with a fingerprint that somebody has stated."""

    def __init__(self, model, fingerprint):
        self._model, self.fingerprint = model, fingerprint

    def __getattr__(self, name):
        return getattr(self._model, name)


def test_landmarks_that_fix_no_position_are_named(faces_root, tmp_path):
    meta = read_meta(faces_root / "ijbc")
    landmarks = meta.landmarks.copy()
    landmarks[4] = 50
    with pytest.raises(UserError, match=r"4:5\.jpg cannot be read: the landmarks .* no position"):
        image_embeddings(
            load_model(faces_root / "old"),
            faces_root / "ijbc",
            replace(meta, landmarks=landmarks),
            tmp_path,
        )

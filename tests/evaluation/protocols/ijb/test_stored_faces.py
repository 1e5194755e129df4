from dataclasses import replace

import numpy as np
import pytest

from unibct.embeddings.folder import open_embeddings
from unibct.embeddings.writing import append_embeddings
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb import stored_faces
from unibct.evaluation.protocols.ijb.faces import image_embeddings
from unibct.evaluation.protocols.ijb.meta import read_meta
from unibct.evaluation.protocols.ijb.stored_faces import (
    embed_ijbc,
    read_face_array,
    read_face_folder,
)
from unibct.evaluation.protocols.request import EmbeddingRequest
from unibct.evaluation.protocols.table import embed_data
from unibct.models.folder import load_model


@pytest.fixture(scope="module")
def request_of(faces_root):
    def make(out, **options):
        data, model = str(faces_root / "ijbc"), faces_root / "old"
        return EmbeddingRequest(data, model, out, device="cpu", **options)

    return make


@pytest.mark.slow
def test_the_folder_holds_raw_sums_of_both_views(faces_root, request_of, tmp_path):
    meta = read_meta(faces_root / "ijbc")
    stored = embed_ijbc(request_of(tmp_path / "out"))
    model = load_model(faces_root / "old")
    want = image_embeddings(model, faces_root / "ijbc", meta, faces_root / "cache")
    assert np.array_equal(stored.vectors, want)
    assert np.array_equal(read_face_folder(tmp_path / "out", meta, "ijbc"), want)
    assert stored.fingerprint == model.fingerprint
    assert stored.ids[:2] == ("0:1.jpg", "1:2.jpg")
    assert [stored.class_names[i] for i in stored.labels] == [str(t) for t in meta.templates]
    landmarks = meta.landmarks + 1
    with pytest.raises(UserError, match="made with other meta files"):
        read_face_folder(tmp_path / "out", replace(meta, landmarks=landmarks), "ijbc")
    with pytest.raises(UserError, match="made for --protocol ijbc, whose images are fixed"):
        append_embeddings(tmp_path / "out", stored)
    with pytest.raises(UserError, match="exists already"):
        embed_ijbc(request_of(tmp_path / "out"))


def test_a_stopped_run_goes_on(request_of, tmp_path, monkeypatch):
    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stored_faces, "save_embeddings", full_disk)
        with pytest.raises(OSError, match="No space"):
            embed_ijbc(request_of(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    monkeypatch.setattr("unibct.evaluation.protocols.ijb.faces.raw_embeddings", None)
    assert len(embed_ijbc(request_of(tmp_path / "out", dtype="float16"))) == 144
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert open_embeddings(tmp_path / "out").vectors[:3].dtype == np.float32


def test_what_it_does_not_take_is_refused_at_once(request_of, tmp_path):
    out = tmp_path / "out"
    for options, message in (
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"images": tmp_path / "list.txt"}, "--images has no effect on --protocol ijbc"),
        ({"skip_bad": True}, "--skip-bad-images has no effect on --protocol ijbc"),
    ):
        with pytest.raises(UserError, match=message):
            embed_data(request_of(out, **options))
    with pytest.raises(UserError, match=r"lfw\.bin is a \.bin pair set, whose embeddings are not"):
        embed_data(replace(request_of(out), data="lfw.bin"))
    assert not out.exists()


def test_normalised_rows_are_told_by_their_length(faces_root, tmp_path):
    meta = read_meta(faces_root / "ijbc")
    rows = np.random.default_rng(0).normal(size=(len(meta.images), 16))
    np.save(tmp_path / "raw.npy", rows)
    assert np.array_equal(read_face_array(tmp_path / "raw.npy", meta, lengths_count=True), rows)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for dtype in (np.float64, np.float16):
        np.save(tmp_path / "unit.npy", rows.astype(dtype))
        with pytest.raises(UserError, match=r"it needs a row for each row of the meta files: the"):
            read_face_array(tmp_path / "unit.npy", meta, lengths_count=True)
        assert len(read_face_array(tmp_path / "unit.npy", meta, lengths_count=False)) == len(rows)

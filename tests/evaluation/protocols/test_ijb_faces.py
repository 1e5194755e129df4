from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from measurements.miniatures import coloured

from unibct.data.readers import open_images
from unibct.embeddings.store import append_embeddings, open_embeddings
from unibct.errors import UserError
from unibct.evaluation.protocols import embed_data
from unibct.evaluation.protocols import ijb_faces as stored_faces
from unibct.evaluation.protocols.ijb_faces import (
    TEMPLATE,
    align,
    aligned_images,
    image_embeddings,
    read_face_array,
    read_face_folder,
    similarity,
    warp,
)
from unibct.evaluation.protocols.ijb_files import read_meta
from unibct.models.model_folder import load_model


def umeyama(points, target):
    """The published form, by singular values."""
    p, t = points - points.mean(0), target - target.mean(0)
    u, d, v = np.linalg.svd(t.T @ p / len(p))
    sign = np.array([1, np.sign(np.linalg.det(u) * np.linalg.det(v))])
    rotation = (u * sign) @ v
    scale = (d * sign).sum() / (p**2).sum(axis=1).mean()
    shift = target.mean(0) - scale * rotation @ points.mean(0)
    return np.column_stack([scale * rotation, shift])


def test_similarity_of_a_known_move():
    angle, scale, shift = 0.7, 1.8, np.array([4.0, -9.0])
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    found = similarity(TEMPLATE, TEMPLATE @ turn.T + shift)
    assert np.allclose(found, np.column_stack([turn, shift]))


@pytest.mark.parametrize("mirrored", [False, True])
def test_similarity_is_least_squares_and_umeyamas(mirrored):
    rng = np.random.default_rng(int(mirrored))
    points = rng.normal(size=(5, 2)) * 20 + 100
    target = points * [-1 if mirrored else 1, 1] + rng.normal(size=(5, 2))
    found = similarity(points, target)
    assert np.allclose(found, umeyama(points, target))
    # x′ = a x − b y + c, y′ = b x + a y + d
    x, y = points.T
    one, zero = np.ones(5), np.zeros(5)
    system = np.vstack([np.c_[x, -y, one, zero], np.c_[y, x, zero, one]])
    a, b, c, d = np.linalg.lstsq(system, target.T.ravel())[0]
    assert np.allclose(found, [[a, -b, c], [b, a, d]])


def test_similarity_errors():
    no_position = r"the landmarks \[\[.* fix no position; detect"
    for points, message in (
        *((np.full((5, 2), value), no_position) for value in (33.3, 1e8 / 3, 0)),
        (
            np.where(np.arange(5)[:, None] == 3, np.nan, TEMPLATE),
            "NaN or infinite values, first in point 3",
        ),
        (TEMPLATE[:4], "4 points but 5 targets"),
        (np.ones((5, 3)), r"shape \(n, 2\), not \(5, 3\)"),
    ):
        with pytest.raises(UserError, match=message):
            similarity(points, TEMPLATE)


def naive_warp(image, matrix, size):
    """Exact bilinear values, not rounded."""
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    height, width, channels = image.shape
    result = np.zeros((size, size, channels))
    for v in range(size):
        for u in range(size):
            x, y, _ = back @ [u, v, 1]
            left, top = int(np.floor(x)), int(np.floor(y))
            for row in (top, top + 1):
                for column in (left, left + 1):
                    if 0 <= row < height and 0 <= column < width:
                        weight = (1 - abs(x - column)) * (1 - abs(y - row))
                        result[v, u] += weight * image[row, column]
    return result


@pytest.mark.parametrize("scale", [0.4, 1.7, 6.0])
def test_warp_equals_a_naive_loop(scale):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (37, 29, 3), dtype=np.uint8)
    turn = scale * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    matrix = np.column_stack([turn, [6.3, -2.2]])  # a part of the result lies outside
    expected = naive_warp(image, matrix, 40)
    assert (expected == 0).any()
    # Single precision may round a value within 1e-3 of a half to the other side.
    assert np.abs(warp(image, matrix, 40) - expected).max() <= 0.5 + 1e-3


def test_align_of_a_face_in_place_and_of_a_shifted_grey_one():
    rng = np.random.default_rng(4)
    image = rng.integers(0, 256, (112, 112, 3), dtype=np.uint8)
    assert np.array_equal(align(image, TEMPLATE), image)
    grey = rng.integers(0, 256, (130, 140), dtype=np.uint8)
    found = align(grey, TEMPLATE + np.array([28, 20]))
    assert found.dtype == np.uint8
    assert np.array_equal(found[:110], np.repeat(grey[20:130, 28:, None], 3, axis=2))
    assert not found[110:].any()
    big = align(np.kron(image[..., 0], np.ones((2, 2), np.uint8)), TEMPLATE * 2, size=224)
    assert big.shape == (224, 224, 3)
    assert np.array_equal(big[::2, ::2, 0], image[..., 0])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 3)), "uint8 of the shape .* not float64"),
        (np.zeros((4, 4, 4), np.uint8), r"not uint8 of the shape \(4, 4, 4\)"),
        (np.zeros((0, 4, 3), np.uint8), "has no pixel"),
    ],
)
def test_align_errors(image, message):
    with pytest.raises(UserError, match=message):
        align(image, TEMPLATE)


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
    monkeypatch.setattr("unibct.evaluation.protocols.ijb_faces._ROWS_PER_FILE", 50)
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
        changed, model = replace(meta, landmarks=landmarks), load_model(faces_root / "old")
        image_embeddings(model, faces_root / "ijbc", changed, tmp_path)


@pytest.fixture(scope="module")
def embed(faces_root):
    """Embeds the miniature's faces with the old model."""
    given = {"model": faces_root / "old", "protocol": "ijbc", "device": "cpu"}
    return partial(embed_data, str(faces_root / "ijbc"), **given)


@pytest.mark.slow
def test_the_folder_holds_raw_sums_of_both_views(faces_root, embed, tmp_path):
    meta = read_meta(faces_root / "ijbc")
    stored = embed(out=tmp_path / "out")
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
        embed(out=tmp_path / "out")


def test_a_stopped_run_goes_on(embed, tmp_path, monkeypatch):
    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stored_faces, "save_embeddings", full_disk)
        with pytest.raises(OSError, match="No space"):
            embed(out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    monkeypatch.setattr("unibct.evaluation.protocols.ijb_faces.raw_embeddings", None)
    assert len(embed(out=tmp_path / "out", dtype="float16")) == 144
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert open_embeddings(tmp_path / "out").vectors[:3].dtype == np.float32


def test_what_it_does_not_take_is_refused_at_once(embed, tmp_path):
    out = tmp_path / "out"
    for options, message in (
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"images": tmp_path / "list.txt"}, "images has no effect on the protocol ijbc"),
        ({"skip_bad_images": True}, "skip_bad_images has no effect on the protocol ijbc"),
    ):
        with pytest.raises(UserError, match=message):
            embed(out=out, **options)
    with pytest.raises(UserError, match=r"lfw\.bin is a \.bin pair set, whose embeddings are not"):
        embed_data("lfw.bin", model="old", out=out)
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

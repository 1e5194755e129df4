"""The whole path of faces on miniature sets: RecordIO, training, alignment, templates, tables."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import TINY
from unibct import cli
from unibct.data.decoding import encode_png
from unibct.data.readers.pair_file import read_pair_file
from unibct.data.readers.table import open_images
from unibct.embeddings.folder import Embeddings
from unibct.embeddings.writing import save_embeddings
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb.compare import compare_on_ijb
from unibct.evaluation.protocols.ijb.images import aligned_images, image_embeddings, mapped_array
from unibct.evaluation.protocols.ijb.meta import read_meta
from unibct.evaluation.protocols.images import recognised_protocol
from unibct.evaluation.protocols.pairs import compare_on_pairs, evaluate_pairs
from unibct.examples.miniatures import coloured, make_ijbc, make_ms1mv3
from unibct.models.model import load_model


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main([str(argument) for argument in arguments])
    return stop.value.code


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two miniature sets, and an old and a new model trained on the first."""
    root = tmp_path_factory.mktemp("faces")
    make_ms1mv3(root / "ms1mv3", identities=20, images_each=6)
    make_ijbc(root / "ijbc", subjects=12)
    sets = [a for item in TINY for a in ("--set", item)] + ["--set", "flip=true"]
    assert run("split", root / "ms1mv3", "--scenario", "open-class", "--out", root / "split") == 0
    train = ("train", root / "ms1mv3", "--device", "cpu", *sets)
    old = ("--images", root / "split/old.txt", "--out", root / "old")
    new = ("--images", root / "split/new.txt", "--old", root / "old", "--out", root / "new")
    assert run(*train, *old) == 0
    assert run(*train, *new) == 0
    return root


def test_the_miniature_has_the_true_layout(root):
    images = open_images(root / "ms1mv3")
    assert (len(images), len(images.class_names)) == (120, 20)
    assert images.read(images.ids[0]).shape == (112, 112, 3)
    assert (root / "ms1mv3/property").read_text() == "20,112,112"
    meta = read_meta(root / "ijbc")
    assert len(meta.images) == 12 * 12
    assert len(meta.first) == 12 * 24
    assert meta.same.sum() == 24
    assert [len(g.templates) for g in meta.galleries.values()] == [6, 6]


def test_alignment_brings_an_image_back(root):
    images = aligned_images(root / "ijbc", read_meta(root / "ijbc"))
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


def test_evaluation_on_ijbc_is_cached_and_takes_precomputed_embeddings(root, capsys, monkeypatch):
    cache = root / "cache"
    common = ("evaluate", root / "ijbc", "--query", root / "new", "--gallery", root / "old",
              "--device", "cpu", "--cache", cache)  # fmt: skip
    assert run(*common, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["tests"]) == {"old→old", "new→old", "old→new", "new→new"}
    assert found["pairs"] == {"genuine": 24, "impostor": 12 * 24 - 24}
    assert {"top-1", "top-5", "top-10", "TPIR@0.01", "TPIR@0.1"} <= set(found["tests"]["new→old"])
    with monkeypatch.context() as patch:
        patch.setattr(
            "unibct.evaluation.protocols.ijb.images.raw_embeddings", None
        )  # a second pass would need it
        assert run(*common, "--json", "--protocol", "ijbc") == 0
    assert json.loads(capsys.readouterr().out) == found
    assert run(*common) == 0
    table = capsys.readouterr().out
    assert "cross test, reversed" in table
    assert "verdict:" in table

    meta = read_meta(root / "ijbc")
    for name in ("old", "new"):
        model = load_model(root / name)
        np.save(root / f"{name}.npy", image_embeddings(model, root / "ijbc", meta, cache))
    given = compare_on_ijb(root / "ijbc", root / "new.npy", root / "old.npy")
    assert given.metrics("new→old") == pytest.approx(found["tests"]["new→old"])
    plain = compare_on_ijb(
        root / "ijbc", root / "new", root / "old", flip_test=False, detector_scores=False,
        media_mean=False, cache=cache, device="cpu",
    )  # fmt: skip
    assert plain.metrics("new→old") != given.metrics("new→old")


@pytest.mark.parametrize(
    "option",
    [
        {"flip_test": False},
        {"detector_scores": False},
        {"media_mean": False},
        {"normalize_images": True},
    ],
)
def test_each_rule_of_pooling_makes_a_difference(root, option):
    def scores(**options):
        found = compare_on_ijb(
            root / "ijbc", root / "new", root / "old", cache=root / "cache", device="cpu", **options
        )
        return found.verification["new→old"].impostor

    assert np.abs(scores() - scores(**option)).max() > 1e-4


def test_a_killed_embedding_goes_on_and_a_changed_image_is_embedded_again(
    root, monkeypatch, tmp_path
):
    monkeypatch.setattr("unibct.evaluation.protocols.ijb.images._PIECE", 50)
    meta, model = read_meta(root / "ijbc"), load_model(root / "old")
    whole = image_embeddings(model, root / "ijbc", meta, tmp_path)
    files = sorted(tmp_path.rglob("*.npy"))
    assert [len(np.load(f)) for f in files] == [50, 50, 44]
    header = files[0].read_bytes()
    for damaged in (b"", b"damaged", header[:60], header[:200], header.replace(b"}", b"'", 1)):
        files[0].write_bytes(damaged)
        files[1].unlink()
        np.save(files[2], np.zeros((44, 7), dtype=np.float32))  # of another dimension
        again = image_embeddings(model, root / "ijbc", meta, tmp_path)
        assert np.array_equal(again, whole)
    picture = root / "ijbc/loose_crop/1.jpg"
    before = picture.read_bytes()
    picture.write_bytes((root / "ijbc/loose_crop/2.jpg").read_bytes())
    changed = image_embeddings(model, root / "ijbc", meta, tmp_path)
    picture.write_bytes(before)
    assert not np.array_equal(changed[0], whole[0])
    assert np.array_equal(changed[1:], whole[1:])


def test_what_does_not_fit_is_named(root, tmp_path):
    meta = read_meta(root / "ijbc")
    models = (root / "new", root / "old")
    vectors = np.ones((5, 8), dtype=np.float32)
    np.save(tmp_path / "short.npy", vectors)
    with pytest.raises(UserError, match=r"has the shape \(5, 8\); it needs a row for each"):
        compare_on_ijb(root / "ijbc", tmp_path / "short.npy", root / "old")
    names = meta.images[:5]
    kept = Embeddings(vectors, names, np.zeros(5, dtype=np.int64), ("a",), "f")
    save_embeddings(kept, tmp_path / "few")
    with pytest.raises(UserError, match=r"no embedding of 139 images .*, first 6\.jpg"):
        compare_on_ijb(root / "ijbc", tmp_path / "few", root / "old")
    picture = root / "ijbc/loose_crop/7.jpg"
    picture.rename(tmp_path / "7.jpg")
    with pytest.raises(UserError, match=r"lacks 1 of the images .*, first 7\.jpg"):
        compare_on_ijb(root / "ijbc", *models, cache=tmp_path / "cache", device="cpu")
    (tmp_path / "7.jpg").rename(picture)
    with pytest.raises(UserError, match="unknown protocol 'lfw'"):
        recognised_protocol("x", "lfw")


def test_nothing_is_embedded_before_both_sides_are_seen(root, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unibct.evaluation.protocols.ijb.compare.image_embeddings", None
    )  # it would be called
    rows = len(read_meta(root / "ijbc").images)
    np.save(tmp_path / "narrow.npy", np.ones((rows, 8), dtype=np.float32))
    np.save(tmp_path / "whole_numbers.npy", np.ones((rows, 128), dtype=np.int64))
    np.savez(tmp_path / "zip.npz", np.ones((rows, 128)))
    (tmp_path / "zip.npz").rename(tmp_path / "zip.npy")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(np.ones((rows, 128))))
    for name, message in {
        "absent": r"absent is not a model folder",
        "absent.npy": r"absent\.npy cannot be read: No such file",
        "narrow.npy": r"narrow\.npy has dimension 8 but .*old has dimension 128",
        "whole_numbers.npy": r"whole_numbers\.npy has int64 values",
        "zip.npy": r"zip\.npy is not a whole \.npy file",
        "empty.npy": r"empty\.npy is not a whole \.npy file",
        "pickle.npy": r"pickle\.npy is not a whole \.npy file",
    }.items():
        with pytest.raises(UserError, match=message):
            compare_on_ijb(root / "ijbc", tmp_path / name, root / "old")
    with pytest.raises(UserError, match=r"--far must lie in \(0, 1\], not 0"):
        compare_on_ijb(root / "ijbc", root / "new", root / "old", far=0)


def test_a_damaged_npy_file_is_an_error_or_an_array(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 2), dtype=np.float32))
    good = path.read_bytes()
    header = len(good) - 24
    damaged = [good[:length] for length in range(len(good))]
    damaged += [
        good[:i] + mark + good[i + 1 :] for i in range(header) for mark in (b"(", b"'", b"9")
    ]
    messages = []
    for data in damaged:
        path.write_bytes(data)
        try:
            mapped_array(path)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > len(good)
    assert all(m.startswith(f"{path} is not a whole .npy file: ") for m in messages)


def test_what_cannot_be_pooled_or_aligned_is_named(root, tmp_path):
    meta = read_meta(root / "ijbc")
    vectors = np.ones((len(meta.images), 128), dtype=np.float32)
    vectors[5, 2] = np.nan
    np.save(tmp_path / "nan.npy", vectors)
    with pytest.raises(UserError, match=r"nan\.npy: embeddings has NaN or infinite .* row 5"):
        compare_on_ijb(root / "ijbc", tmp_path / "nan.npy", tmp_path / "nan.npy")
    landmarks = meta.landmarks.copy()
    landmarks[4] = 50
    with pytest.raises(UserError, match=r"4:5\.jpg cannot be read: the landmarks .* no position"):
        image_embeddings(
            load_model(root / "old"), root / "ijbc", replace(meta, landmarks=landmarks), tmp_path
        )


def test_pair_sets(root, tmp_path, capsys):
    images = open_images("glyphs:val")
    rng = np.random.default_rng(0)
    pairs, same = [], []
    for number in range(20):
        first = rng.integers(len(images))
        wanted = number % 2 == 0
        others = np.flatnonzero((images.labels == images.labels[first]) == wanted)
        second = rng.choice(others[others != first])
        pairs += [encode_png(images.read(images.ids[int(i)])) for i in (first, second)]
        same.append(wanted)
    path = tmp_path / "lfw.bin"
    path.write_bytes(pickle.dumps((pairs, same), 2))
    found = compare_on_pairs(read_pair_file(path), root / "new", root / "old", device="cpu")
    assert set(found.tests) == {"old→old", "new→old", "old→new", "new→new"}
    assert run("evaluate", path, "--query", root / "new", "--gallery", root / "old", "--json") == 0
    assert json.loads(capsys.readouterr().out) == found.as_json()


def test_pair_evaluation_by_hand():
    rng = np.random.default_rng(0)
    same = np.arange(40) % 2 == 0
    first = rng.normal(size=(40, 16))
    second = np.where(same[:, None], first, rng.normal(size=(40, 16)))
    new = np.stack([first, second], axis=1).reshape(80, 16)
    noise = np.repeat(rng.normal(size=(40, 2, 16)) * 2, 1, axis=0).reshape(80, 16)
    found = evaluate_pairs(new + noise, new, same)
    assert found.tests["new→new"].mean == 1
    cross = (found.tests["new→old"].mean + found.tests["old→new"].mean) / 2
    assert found.criteria[0].cross == pytest.approx(cross)
    assert found.criteria[0].old_self == pytest.approx(found.tests["old→old"].mean)
    assert found.criteria[0].low <= found.criteria[0].difference <= found.criteria[0].high
    with pytest.raises(UserError, match="new has 78 embeddings for 40 pairs"):
        evaluate_pairs(new, new[:78], same)

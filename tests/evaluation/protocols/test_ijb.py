import json
import pickle

import numpy as np
import pytest

from tests.conftest import run_command
from tests.evaluation.impostor_scores import all_scores
from unibct.embeddings.store import Embeddings, open_embeddings, save_embeddings
from unibct.errors import UserError
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.protocols.ijb_faces import image_embeddings
from unibct.evaluation.protocols.ijb_files import read_meta
from unibct.models.model_folder import load_model


def evaluated(root, query=None, gallery=None, **options):
    """The evaluation of two models, or of embeddings, on the miniature IJB-C."""
    sides = {"old": gallery or root / "old", "new": query or root / "new"}
    return evaluate(root / "ijbc", **sides, protocol="ijbc", device="cpu", **options)


@pytest.mark.slow
def test_evaluation_on_ijbc_is_cached_and_takes_precomputed_embeddings(
    faces_root, capsys, monkeypatch
):
    cache = faces_root / "cache"
    common = ("evaluate", faces_root / "ijbc",
              "--query", faces_root / "new", "--gallery", faces_root / "old",
              "--device", "cpu", "--cache", cache)  # fmt: skip
    assert run_command(*common, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["tests"]) == {"old→old", "new→old", "old→new", "new→new", "blend→old"}
    assert found["pairs"] == {"genuine": 24, "impostor": 12 * 24 - 24}
    assert {"top-1", "top-5", "top-10", "TPIR@0.01", "TPIR@0.1"} <= set(found["tests"]["new→old"])
    assert found["seen_classes"] is None
    assert found["note"].count("trained on test subjects is unknown") == 1
    with monkeypatch.context() as patch:
        # A second pass would need it.
        patch.setattr("unibct.evaluation.protocols.ijb_faces.raw_embeddings", None)
        assert run_command(*common, "--json", "--protocol", "ijbc") == 0
    assert json.loads(capsys.readouterr().out) == found
    assert run_command(*common) == 0
    table = capsys.readouterr().out
    assert "cross test, reversed" in table
    assert "verdict:" in table

    meta = read_meta(faces_root / "ijbc")
    for name in ("old", "new"):
        model, images = load_model(faces_root / name), faces_root / "ijbc"
        np.save(faces_root / f"{name}.npy", image_embeddings(model, images, meta, cache))
    given = evaluated(faces_root, faces_root / "new.npy", faces_root / "old.npy")
    assert given.values["new→old"] == pytest.approx(found["tests"]["new→old"])
    assert f"{faces_root / 'new.npy'}: taken as a row for each row of the meta files" in given.note
    assert "12 subjects are too few to measure TAR@1e-1" in given.note
    assert "classes" not in given.note
    assert given.fingerprints == {}
    rules = {"flip_test": False, "detector_scores": False, "media_mean": False}
    plain = evaluated(faces_root, cache=cache, **rules)
    assert plain.values["new→old"] != given.values["new→old"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["flip_test", "detector_scores", "media_mean", "normalize_images"]
)
def test_each_rule_of_pooling_makes_a_difference(faces_root, option):
    def scores(**options):
        found = evaluated(faces_root, cache=faces_root / "cache", **options)
        return all_scores(found.tests["new→old"].impostor)

    turned = {option: option == "normalize_images"}  # the others are on unless turned off
    assert np.abs(scores() - scores(**turned)).max() > 1e-4


def test_what_does_not_fit_is_named(faces_root, tmp_path):
    meta = read_meta(faces_root / "ijbc")
    np.save(tmp_path / "short.npy", np.ones((5, 8), dtype=np.float32))
    rows = np.full((len(meta.images), 128), 1 / np.sqrt(128), dtype=np.float32)
    np.save(tmp_path / "unit.npy", rows)
    labels = np.zeros(len(rows), dtype=np.int64)
    plain = Embeddings(rows, tuple(map(str, range(len(rows)))), labels, ("a",), "f")
    save_embeddings(plain, tmp_path / "plain")
    save_embeddings(plain, tmp_path / "ijbb", protocol="ijbb")
    save_embeddings(plain, tmp_path / "other", protocol="ijbc", source="another digest")
    for name, message in {
        "short.npy": r"has the shape \(5, 8\); it needs a row for each",
        "unit.npy": r"unit\.npy has normalised rows .* normalize_images",
        "plain": r"plain has one view .* normalised; ijbc needs both views",
        "ijbb": r"ijbb was made for the protocol ijbb, not ijbc: make it",
        "other": r"other was made with other meta files",
    }.items():
        with pytest.raises(UserError, match=message):
            evaluated(faces_root, tmp_path / name)
    picture = faces_root / "ijbc/loose_crop/7.jpg"
    picture.rename(tmp_path / "7.jpg")
    with pytest.raises(UserError, match=r"lacks 1 of the images .*, first 7\.jpg"):
        evaluated(faces_root, cache=tmp_path / "cache")
    (tmp_path / "7.jpg").rename(picture)


@pytest.mark.slow
def test_embeddings_made_for_the_protocol_stand_for_the_model(faces_root, tmp_path, capsys):
    cache = faces_root / "cache"
    want = evaluated(faces_root, cache=cache)
    ijbc = faces_root / "ijbc"
    for name in ("old", "new"):
        protocol = ("--protocol", "ijbc") if name == "old" else ()  # recognised by the meta files
        command = ("embed", faces_root / name, ijbc, *protocol, "--out", tmp_path / name)
        assert run_command(*command) == 0
        assert f"{name}: 144 embeddings of dimension 128" in capsys.readouterr().out
    stored = (tmp_path / "new", tmp_path / "old")
    assert not [path for path in tmp_path.iterdir() if path not in stored]
    found = evaluated(faces_root, *stored)
    assert found.values == want.values
    assert found.criteria == want.criteria
    assert found.note == want.note
    models = {"query": load_model(faces_root / "new"), "gallery": load_model(faces_root / "old")}
    assert want.fingerprints == {side: model.fingerprint for side, model in models.items()}
    assert found.as_json()["fingerprints"] == want.fingerprints
    evaluated(faces_root, stored[0], cache=cache)  # one model, one folder
    with pytest.raises(UserError, match=r"flip_test has no effect on .*old, which holds"):
        evaluated(faces_root, *stored, flip_test=False)
    np.save(tmp_path / "new.npy", np.asarray(open_embeddings(stored[0]).vectors))
    with pytest.raises(UserError, match=r"flip_test has no effect on .*new\.npy"):
        evaluated(faces_root, tmp_path / "new.npy", cache=cache, flip_test=False)
    description = json.loads((stored[0] / "embeddings.json").read_text())
    assert (description["protocol"], description["normalised"]) == ("ijbc", False)


def test_nothing_is_embedded_before_both_sides_are_seen(faces_root, tmp_path, monkeypatch):
    # It would be called.
    monkeypatch.setattr("unibct.evaluation.protocols.ijb.image_embeddings", None)
    rows = len(read_meta(faces_root / "ijbc").images)
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
            evaluated(faces_root, tmp_path / name)
    with pytest.raises(UserError, match=r"far must lie in \(0, 1\], not 0"):
        evaluated(faces_root, far=0)


def test_what_cannot_be_pooled_is_named(faces_root, tmp_path):
    meta = read_meta(faces_root / "ijbc")
    vectors = np.ones((len(meta.images), 128), dtype=np.float32)
    vectors[5, 2] = np.nan
    np.save(tmp_path / "nan.npy", vectors)
    with pytest.raises(UserError, match=r"nan\.npy: embeddings has NaN or infinite .* row 5"):
        evaluated(faces_root, tmp_path / "nan.npy", tmp_path / "nan.npy")

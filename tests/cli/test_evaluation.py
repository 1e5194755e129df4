import io
import json
import shutil
import sys

import pytest

from tests.cli.conftest import sides
from tests.conftest import run_command
from unibct.embeddings.store import open_embeddings
from unibct.evaluation.certificate import Certificate


def test_evaluate_prints_a_table_and_json(trained_folder, photo_folder, capsys):
    models = sides(trained_folder / "new", trained_folder / "old")
    arguments = ["evaluate", photo_folder, *models]
    assert run_command(*arguments) == 0
    text = capsys.readouterr().out
    assert "new→old" in text
    assert "verdict:" in text
    assert "\x1b" not in text, "no colour codes in a pipe"
    assert run_command(*arguments, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fingerprints"] == {
        side: json.loads((trained_folder / name / "model.json").read_text())["fingerprint"]
        for side, name in (("query", "new"), ("gallery", "old"))
    }
    # The old model of three epochs may be worse than raw pixels, on such easy images.
    too_weak = result["old_model"]["too_weak"]
    assert ("old model: recall@1" in text) == (not too_weak)
    assert ("The old model is too weak to judge an upgrade by: recall@1" in text) == too_weak
    judged = ("compatible", "not compatible", "within noise")
    assert result["verdict"] in (("old model too weak",) if too_weak else judged)
    assert [c["metric"] for c in result["criteria"]] == ["TAR@1e-1", "top-1", "top-5"]
    stored = sides(trained_folder / "emb/new", trained_folder / "emb/old")
    assert run_command("evaluate", photo_folder, *stored, "--json") == 0
    from_embeddings = json.loads(capsys.readouterr().out)
    assert result.pop("score_scale") > 0
    assert from_embeddings.pop("score_scale") is None, "only the model's folder knows it"
    for far, row in result["at_old_threshold"].items():
        assert 0 <= row.pop("scaled")["tar"] <= 1
        assert from_embeddings["at_old_threshold"][far].pop("scaled") is None
    assert from_embeddings == result
    assert run_command(*arguments, "--json", "--threshold-rule", "nearest") == 0
    by_corner = json.loads(capsys.readouterr().out)
    assert "the ROC corner nearest to the rate" in by_corner["note"]
    assert by_corner["criteria"] == result["criteria"]
    assert run_command(*arguments, "--threshold-rule", "loose") == 2
    assert "'loose' is not one of 'strict', 'nearest'" in capsys.readouterr().err
    assert run_command(*arguments, "--no-flip-test") == 2
    assert "flip_test has no effect on the protocol images" in capsys.readouterr().err


def test_stored_embeddings_must_cover_the_images(trained_folder, photo_folder, tmp_path, capsys):
    test = (trained_folder / "split/test.txt").read_text().splitlines(keepends=True)
    names = sorted({line.split("/")[0] for line in test})[:3]
    some_lines = [line for line in test if line.split("/")[0] in names]
    (tmp_path / "some.txt").write_text("".join(some_lines))
    some = ["--images", tmp_path / "some.txt", "--out", tmp_path / "e"]
    assert run_command("embed", trained_folder / "old", photo_folder, *some) == 0
    evaluate = ["evaluate", photo_folder, *sides(trained_folder / "new", tmp_path / "e")]
    assert run_command(*evaluate) == 2
    assert "has no embedding of" in capsys.readouterr().err
    assert run_command(*evaluate, "--skip-bad-images") == 0
    assert "images without embedding in" in capsys.readouterr().err
    evaluate[3] = trained_folder / "emb/new"
    assert run_command(*evaluate, "--skip-bad-images", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["templates"] == 3
    assert [c["metric"] for c in result["criteria"]] == ["TAR@1e-1", "top-1"], "top-5 of 3 is all"
    assert "too few to measure TAR@1e-1" in result["note"]
    assert result["seen_classes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("folders", [("new", "old"), ("emb/new", "emb/old"), ("new", "emb/old")])
def test_classes_that_were_trained_on_are_counted(folders, trained_folder, photo_folder, capsys):
    evaluate = ["evaluate", photo_folder, *sides(*(trained_folder / one for one in folders))]
    evaluate.append("--json")

    def evaluated(name):
        assert run_command(*evaluate, "--images", trained_folder / f"split/{name}.txt") == 0
        return json.loads(capsys.readouterr().out)

    assert evaluated("test")["seen_classes"] == 0
    assert "none of the 6 test classes was in a model's training set" in evaluated("test")["note"]
    assert run_command(*evaluate) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["seen_classes"] == 6
    assert "6 of the 12 test classes were in a model's training set" in result["note"]
    train = ["--images", trained_folder / "split/train.txt"]
    assert run_command(*evaluate, *train) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "6 of the 6 test classes were in a model's training set" in error
    assert "`unibct split --hold-out`" in error
    assert "--seen-classes" in error
    assert run_command(*evaluate, *train, "--seen-classes") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["seen_classes"] == 6
    assert "6 of the 6 test classes were" in result["note"]
    assert run_command(*evaluate[:-1], *train, "--seen-classes") == 0
    assert "6 of the 6 test classes were in a model's training set" in capsys.readouterr().out


def test_nothing_is_embedded_for_a_test_that_is_refused(trained_folder, photo_folder, capsys):
    models = sides(trained_folder / "new", trained_folder / "old")
    train = ["--images", trained_folder / "split/train.txt"]
    assert run_command("evaluate", photo_folder, *models, *train) == 2
    assert "images/s" not in capsys.readouterr().err


@pytest.mark.slow
def test_embeddings_made_before_are_evaluated_with_a_note(
    trained_folder, photo_folder, tmp_path, capsys
):
    for name in ("old", "new"):
        shutil.copytree(trained_folder / "emb" / name, tmp_path / name)
        path = tmp_path / name / "embeddings.json"
        described = json.loads(path.read_text())
        del described["training_classes"], described["class_source"]
        path.write_text(json.dumps(described))
        (tmp_path / name / "training_classes.txt").unlink()
    folders = [*sides(tmp_path / "new", tmp_path / "old"), "--json"]
    assert run_command("evaluate", photo_folder, *folders) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["seen_classes"] is None
    assert "unknown: the old model's training classes are not recorded" in result["note"]
    folders[3] = trained_folder / "old"  # the old model has two of the classes
    assert run_command("evaluate", photo_folder, *folders) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["seen_classes"] == 2
    assert "at least 2 of the 12 test classes were" in result["note"]


@pytest.mark.slow
def test_embeddings_without_bad_images_can_be_evaluated(trained_folder, photo_folder, tmp_path):
    data = tmp_path / "photos"
    shutil.copytree(photo_folder, data)
    next(data.glob("class 03/*")).write_text("no image")
    (data / "class 04" / "broken.png").symlink_to("nowhere.png")
    for name in ("old", "new"):
        embed = ["embed", trained_folder / name, data, "--out", tmp_path / name]
        assert run_command(*embed) == 2
        assert run_command(*embed, "--skip-bad-images") == 0
    evaluate = ["evaluate", data, *sides(tmp_path / "new", tmp_path / "old")]
    assert run_command(*evaluate) == 2
    assert run_command(*evaluate, "--skip-bad-images") == 0


@pytest.mark.slow
def test_a_terminal_without_unicode_still_works(trained_folder, photo_folder, monkeypatch):
    line = ["evaluate", photo_folder, *sides(trained_folder / "new", trained_folder / "old")]
    for more in ([], ["--json"]):
        terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", terminal)
        assert run_command(*line, *more) == 0
        terminal.flush()
        shown = terminal.buffer.getvalue()
        assert (b"new\\u2192old" if more else b"new?old") in shown


@pytest.mark.slow
def test_certify_writes_a_certificate_and_says_what_it_allows(
    trained_folder, photo_folder, tmp_path, capsys
):
    arguments = ["evaluate", photo_folder]
    arguments += sides(trained_folder / "emb/new", trained_folder / "emb/old")
    file = tmp_path / "upgrade.json"
    assert run_command(*arguments, "--certify", file) == 0
    certificate = Certificate.read(file)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{file}: {certificate.summary()}"
    assert certificate.old == open_embeddings(trained_folder / "emb/old").fingerprint
    assert certificate.new == open_embeddings(trained_folder / "emb/new").fingerprint
    assert certificate.content["data"]["images"] == 144
    assert run_command(*arguments, "--certify", file, "--json", "--gallery-mode", "images") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdict"] == Certificate.read(file).verdict
    assert f"{file}: {Certificate.read(file).summary()}" in shown.err
    again = Certificate.read(file).content
    assert again["thresholds"] == certificate.content["thresholds"], "single images in both modes"
    (tmp_path / "pairs.bin").write_bytes(b"")
    arguments[1] = tmp_path / "pairs.bin"
    assert run_command(*arguments, "--certify", file) == 2
    assert "certify on images with classes, the protocol images" in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_that_cannot_be_certified_is_shown(
    trained_folder, photo_folder, tmp_path, capsys
):
    few = tmp_path / "few.txt"
    ids = (path.relative_to(photo_folder) for path in sorted(photo_folder.glob("class 1?/*")))
    few.write_text("".join(f"{name}\n" for name in ids))
    arguments = ["evaluate", photo_folder, "--images", few, "--seen-classes"]
    arguments += sides(trained_folder / "emb/new", trained_folder / "emb/old")
    file = tmp_path / "upgrade.json"
    assert run_command(*arguments, "--json", "--certify", file) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["tests"]
    error = shown.err.splitlines()[-1]
    assert f"{file}: no certificate is written: 2 classes with queries are too few" in error
    assert not file.exists()

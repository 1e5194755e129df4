import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import TINY
from unibct import cli
from unibct.data.readers.table import open_images
from unibct.data.scenarios import SCENARIOS
from unibct.embeddings.folder import open_embeddings
from unibct.errors import UserError
from unibct.maps.table import ADAPTERS
from unibct.methods.table import METHODS
from unibct.models.folder import load_model

SET = [part for setting in TINY for part in ("--set", setting)]


def run(*arguments: object) -> int:
    """Run the command line in this process; its exit code."""
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def work(tmp_path_factory, photo_folder):
    """The issue's five commands on a folder of images."""
    root = tmp_path_factory.mktemp("work")
    data = photo_folder
    assert run("split", data, "--scenario", "open-class", "--out", root / "split") == 0
    train = ["train", data, "--device", "cpu", *SET]
    assert run(*train, "--images", root / "split/old.txt", "--out", root / "old") == 0
    new = ["--images", root / "split/new.txt", "--old", root / "old", "--method", "unibct"]
    assert run(*train, *new, "--out", root / "new") == 0
    assert run("embed", root / "new", data, "--out", root / "emb/new") == 0
    assert run("embed", root / "old", data, "--out", root / "emb/old") == 0
    return root


def test_split_writes_two_disjoint_lists(work, photo_folder):
    old = (work / "split/old.txt").read_text().splitlines()
    new = (work / "split/new.txt").read_text().splitlines()
    assert sorted(old + new) == list(open_images(str(photo_folder)).ids)
    assert len({name.split("/")[0] for name in old}) == 3
    described = json.loads((work / "split/split.json").read_text())
    assert described["scenario"] == "open-class"
    assert described["counts"]["old"] == {"images": len(old), "classes": 3}


def test_models_and_embeddings_belong_together(work, photo_folder):
    new, old = load_model(work / "new"), load_model(work / "old")
    assert new.old_fingerprint == old.fingerprint
    assert len(new.class_names) == 9
    stored = open_embeddings(work / "emb/new")
    assert stored.fingerprint == new.fingerprint
    paths = [photo_folder / name for name in stored.ids[:20]]
    assert np.allclose(new.embed(paths), stored.vectors[:20], atol=1e-5)


def test_evaluate_prints_a_table_and_json(work, photo_folder, capsys):
    arguments = ["evaluate", photo_folder, "--query", work / "new", "--gallery", work / "old"]
    assert run(*arguments) == 0
    text = capsys.readouterr().out
    assert "new→old" in text
    assert "verdict:" in text
    assert "\x1b" not in text, "no colour codes in a pipe"
    assert run(*arguments, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] in ("compatible", "not compatible", "within noise")
    assert [c["metric"] for c in result["criteria"]] == ["TAR@1e-1", "top-1", "top-5"]
    stored = ["--query", work / "emb/new", "--gallery", work / "emb/old", "--json"]
    assert run("evaluate", photo_folder, *stored) == 0
    assert json.loads(capsys.readouterr().out) == result


def test_bad_images_are_refused_or_left_out(work, photo_folder, tmp_path, capsys):
    data = tmp_path / "photos"
    shutil.copytree(photo_folder, data)
    victim = sorted(data.glob("class 05/*"))[2]
    victim.write_bytes(victim.read_bytes()[:30])
    name = victim.relative_to(data).as_posix()
    commands = {
        "emb": ["embed", work / "new", data, "--out", tmp_path / "emb"],
        "model": ["train", data, "--out", tmp_path / "model", "--device", "cpu", *SET],
        "": ["evaluate", data, "--query", work / "new", "--gallery", work / "old"],
    }
    for command in commands.values():
        assert run(*command) == 2
        error = capsys.readouterr().err
        assert name in error
        assert "--skip-bad-images" in error
        assert list(tmp_path.iterdir()) == [data]
    for command in commands.values():
        assert run(*command, "--skip-bad-images") == 0
        assert f"left out 1 unreadable images of {data}: {name}" in capsys.readouterr().err
    assert len(open_embeddings(tmp_path / "emb")) == len(open_images(str(photo_folder))) - 1
    assert load_model(tmp_path / "model").training["unreadable_images"] == [name]


def test_every_kind_of_bad_input_is_one_line_and_exit_code_2(work, photo_folder, tmp_path, capsys):
    empty = tmp_path / "empty"
    shutil.copytree(photo_folder, empty)
    (empty / "nothing here").mkdir()
    out = ["--out", tmp_path / "out"]
    train = ["train", photo_folder, *out, *SET]
    new = [*train, "--images", work / "split/new.txt", "--old", work / "old"]
    evaluate = ["evaluate", photo_folder, "--query", work / "new", "--gallery"]
    cases = [
        (["split", empty, "--scenario", "open-data", *out], "class folder"),
        (["split", photo_folder, "--scenario", "half", *out], "unknown scenario 'half'"),
        (["split", photo_folder, "--scenario", "open-data", "--fraction", 2, *out], "fraction"),
        (
            ["split", tmp_path / "no", "--scenario", "open-data", *out],
            "is not there; DATA is one of",
        ),
        (["split", "glyphs", "--scenario", "open-data", *out], "say which part"),
        ([*train, "--images", tmp_path / "no.txt"], "no.txt cannot be read"),
        ([*train, "--set", "lam=1"], "lam = 1"),
        ([*train, "--set", "hue=red"], "unknown setting 'hue'"),
        ([*train, "--recipe", "no.toml"], "neither a readable TOML file"),
        ([*train, "--method", "unibct"], "needs the old model"),
        ([*train, "--old", tmp_path], "is not a model folder"),
        ([*train, "--device", "abacus"], "device 'abacus' cannot be used"),
        ([*new, "--method", "bct"], "does not know 9 of the 9 new classes"),
        ([*new, "--set", "dim=32"], "dimension is 32 but the old"),
        (["embed", tmp_path / "no", photo_folder, *out], "is not a model folder"),
        ([*evaluate, tmp_path], "is not a model folder"),
        ([*evaluate, work / "old", "--far", 0], "--far"),
        (["train", photo_folder], "Missing option"),
        (["frob"], "No such command"),
        (["split", photo_folder, "--seed", "x"], "valid integer"),
        (["split", photo_folder, "--scenario", "open-data", "--seed", -1, *out], "--seed"),
        ([*train, "--seed", -1], "seed = -1"),
        ([*evaluate, work / "old", "--seed", -1], "--seed"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in cases:
        assert run(*arguments) == 2, arguments
        captured = capsys.readouterr()
        lines = captured.err.splitlines()
        assert lines[-1].startswith("error: "), captured.err
        assert message in lines[-1]
        assert sum(line.startswith("error: ") for line in lines) == 1
        assert "Traceback" not in captured.err
        assert sorted(tmp_path.rglob("*")) == before, arguments
    assert run("embed", work / "old", photo_folder, "--out", work / "emb/new") == 2
    assert "emb/new" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("unibct.data.readers.table.open_images", interrupted)
    assert run("split", "glyphs:val", "--scenario", "open-data", "--out", "never") == 130
    assert capsys.readouterr().err.strip().startswith("error: stopped; the same command goes on")


def test_debug_shows_the_traceback_anywhere_on_the_line():
    for arguments in (["--debug", "split"], ["split", "--debug"]):
        with pytest.raises(ValueError, match="unknown scenario"):
            cli.main([*arguments, "glyphs:val", "--scenario", "x", "--out", "never"])


def test_help_shows_every_name(capsys):
    tables = {
        "split": [SCENARIOS],
        "train": [METHODS],
        "adapt": [ADAPTERS],
        "demo": [SCENARIOS, METHODS],
        "rehearse": [SCENARIOS],
        "benchmark": [SCENARIOS, METHODS, ADAPTERS],
    }
    for command, shown in tables.items():
        assert run(command, "--help") == 0
        text = re.sub(r"-\n\s+", "-", capsys.readouterr().out)  # lines are broken after hyphens
        words = set(re.split(r"[\s,]+", text))
        for table in shown:
            assert set(table) <= words, command


def test_help_gives_examples_and_the_version(capsys):
    for command in ("split", "train", "embed", "evaluate", "demo"):
        assert run(command, "--help") == 0
        assert "Example" in capsys.readouterr().out
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("unibct ")


def test_the_module_runs_as_a_command():
    line = [sys.executable, "-m", "unibct", "split", "glyphs:nope", "--scenario", "open-data"]
    done = subprocess.run([*line, "--out", "never"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    want = "error: glyphs:nope: say which part, glyphs:train, glyphs:val, glyphs:test\n"
    assert done.stderr == want


def test_an_empty_out_folder_stays_usable_after_an_error(work, photo_folder, tmp_path, capsys):
    out = tmp_path / "empty"
    out.mkdir()
    train = ["train", photo_folder, "--old", work / "old", "--out", out, "--device", "cpu", *SET]
    assert run(*train, "--method", "bct") == 2
    assert run(*train, "--set", "lr=1e30") == 2
    assert [p.name for p in out.iterdir()] == [".old_embeddings"]  # kept for the next run
    assert run(*train) == 0


def test_stored_embeddings_must_cover_the_images(work, photo_folder, tmp_path, capsys):
    assert run("embed", work / "old", photo_folder, "--out", tmp_path / "e", "--images",
               work / "split/old.txt") == 0  # fmt: skip
    evaluate = ["evaluate", photo_folder, "--query", work / "new", "--gallery", tmp_path / "e"]
    assert run(*evaluate) == 2
    assert "have no embedding" in capsys.readouterr().err
    assert run(*evaluate, "--skip-bad-images") == 0
    assert "images without embedding in" in capsys.readouterr().err
    evaluate[3] = work / "emb/new"
    assert run(*evaluate, "--skip-bad-images", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["templates"] == 3
    assert [c["metric"] for c in result["criteria"]] == ["TAR@1e-1", "top-1"], "top-5 of 3 is all"
    assert "too few to measure TAR@1e-1" in result["note"]


def test_no_command_shows_the_help(capsys):
    assert run() == 0
    assert "Usage: unibct" in capsys.readouterr().out


@pytest.mark.slow
def test_a_terminal_without_unicode_still_works(work, photo_folder):
    line = [sys.executable, "-m", "unibct", "evaluate", str(photo_folder)]
    line += ["--query", str(work / "new"), "--gallery", str(work / "old")]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for more in ([], ["--json"]):
        done = subprocess.run([*line, *more], capture_output=True, env=env, check=False)
        assert done.returncode == 0, done.stderr


def test_embeddings_without_bad_images_can_be_evaluated(work, photo_folder, tmp_path):
    data = tmp_path / "photos"
    shutil.copytree(photo_folder, data)
    next(data.glob("class 03/*")).write_text("no image")
    (data / "class 04" / "broken.png").symlink_to("nowhere.png")
    for name in ("old", "new"):
        embed = ["embed", work / name, data, "--out", tmp_path / name]
        assert run(*embed) == 2
        assert run(*embed, "--skip-bad-images") == 0
    evaluate = ["evaluate", data, "--query", tmp_path / "new", "--gallery", tmp_path / "old"]
    assert run(*evaluate) == 2
    assert run(*evaluate, "--skip-bad-images") == 0


def test_old_and_new_model_start_from_different_seeds(work):
    seeds = [load_model(work / name).training["recipe"]["seed"] for name in ("old", "new")]
    assert seeds == [0, 1]


@pytest.mark.parametrize("kind", ["procrustes", "linear", "mlp"])
def test_adapt_writes_a_model_that_every_command_takes(work, photo_folder, tmp_path, kind):
    out = tmp_path / "adapted"
    models = ["--new", work / "new", "--old", work / "old"]
    assert run("adapt", photo_folder, *models, "--kind", kind, "--out", out) == 0
    adapted, new, old = (load_model(path) for path in (out, work / "new", work / "old"))
    assert adapted.old_fingerprint == old.fingerprint
    assert adapted.fingerprint != new.fingerprint
    images = open_images(str(photo_folder))
    pixels = [images.read(image_id) for image_id in images.ids[:5]]
    assert np.allclose(adapted.embed(pixels), adapted.adapter(new.embed(pixels)), atol=1e-6)
    assert not np.allclose(adapted.embed(pixels), new.embed(pixels), atol=0.01)
    assert run("evaluate", photo_folder, "--query", out, "--gallery", work / "old") == 0
    again = run("adapt", photo_folder, *models, "--out", out)
    assert again == 2  # it never writes over a model


def test_adapt_refuses_an_unknown_kind_and_a_model_that_is_adapted_already(
    work, photo_folder, tmp_path, capsys
):
    both = ["--new", work / "new", "--old", work / "old"]
    assert run("adapt", photo_folder, *both, "--kind", "magic", "--out", tmp_path / "a") == 2
    assert "choose one of procrustes, linear, mlp" in capsys.readouterr().err
    assert run("adapt", photo_folder, *both, "--out", tmp_path / "b") == 0
    twice = ["--new", tmp_path / "b", "--old", work / "old"]
    assert run("adapt", photo_folder, *twice, "--out", tmp_path / "c") == 2
    assert "adapted already" in capsys.readouterr().err


def test_a_damaged_adapter_is_found_out(work, photo_folder, tmp_path):
    both = ["--new", work / "new", "--old", work / "old"]
    assert run("adapt", photo_folder, *both, "--out", tmp_path / "a") == 0
    assert run("adapt", photo_folder, *both, "--kind", "procrustes", "--out", tmp_path / "b") == 0
    shutil.copy(tmp_path / "b/adapter.safetensors", tmp_path / "a/adapter.safetensors")
    with pytest.raises(UserError, match="fingerprint"):
        load_model(tmp_path / "a")


@pytest.mark.parametrize(
    ("options", "needed"),
    [(["--method", "contrast"], False), (["--method", "bct"], True), (["--warm-start"], True)],
)
def test_train_loads_the_old_classifier_only_if_it_is_needed(
    options, needed, work, photo_folder, tmp_path, monkeypatch
):
    given = []

    def load(path, **arguments):
        given.append(arguments)
        raise UserError("seen enough")

    monkeypatch.setattr("unibct.models.folder.load_model", load)
    line = ["train", str(photo_folder), "--out", str(tmp_path / "m"), "--old", str(work / "old")]
    assert run(*line, *options) == 2
    assert given == [{"with_classifier": needed}]

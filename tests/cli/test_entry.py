import shutil
import subprocess
import sys

import pytest

from tests.conftest import TINY_OPTIONS, run_command
from tests.data.example_images import png
from unibct import cli
from unibct.cli.entry import _with_flags


def test_every_kind_of_bad_input_is_one_line_and_exit_code_2(
    trained_folder, photo_folder, tmp_path, capsys
):
    empty = tmp_path / "empty"
    shutil.copytree(photo_folder, empty)
    (empty / "nothing here").mkdir()
    out, split = ["--out", tmp_path / "out"], ["split", "--scenario", "open-data"]
    train = ["train", photo_folder, *out, *TINY_OPTIONS]
    new = [*train, "--images", trained_folder / "split/new.txt", "--old", trained_folder / "old"]
    evaluate = ["evaluate", photo_folder, "--query", trained_folder / "new", "--gallery"]
    cases = [
        ([*split, empty, *out], "class folder"),
        (["split", photo_folder, "--scenario", "half", *out], "unknown scenario 'half'"),
        ([*split, photo_folder, "--fraction", 2, *out], "fraction"),
        ([*split, tmp_path / "no", *out], "is not there; DATA is one of"),
        ([*split, "glyphs", *out], "say which part"),
        ([*train, "--images", tmp_path / "no.txt"], "no.txt cannot be read"),
        ([*train, "--set", "lam=1"], "lam = 1"),
        ([*train, "--set", "hue=red"], "unknown setting 'hue'"),
        ([*train, "--recipe", "no.toml"], "neither a readable TOML file"),
        ([*train, "--method", "unibct"], "needs the old model"),
        ([*train, "--old", tmp_path], "is not a model folder"),
        ([*train, "--device", "abacus"], "device 'abacus' cannot be used"),
        ([*new, "--method", "bct"], "does not know 4 of the 4 new classes"),
        (["embed", tmp_path / "no", photo_folder, *out], "is not a model folder"),
        ([*evaluate, tmp_path], "is not a model folder"),
        ([*evaluate, trained_folder / "old", "--far", 0], "far must lie in (0, 1]"),
        (["train", photo_folder], "Missing option"),
        (["frob"], "No such command"),
        (["split", photo_folder, "--seed", "x"], "valid integer"),
        ([*split, photo_folder, "--seed", -1, *out], "--seed"),
        ([*train, "--seed", -1], "seed = -1"),
        ([*evaluate, trained_folder / "old", "--seed", -1], "--seed"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in cases:
        assert run_command(*arguments) == 2, arguments
        captured = capsys.readouterr()
        lines = captured.err.splitlines()
        assert lines[-1].startswith("error: "), captured.err
        assert message in lines[-1]
        assert sum(line.startswith("error: ") for line in lines) == 1
        assert "Traceback" not in captured.err
        assert sorted(tmp_path.rglob("*")) == before, arguments
    embed = ["embed", trained_folder / "old", photo_folder]
    assert run_command(*embed, "--out", trained_folder / "emb/new") == 2
    assert "emb/new" in capsys.readouterr().err


def test_ctrl_c_says_how_to_continue(monkeypatch, capsys, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("unibct.embeddings.stored.open_data", interrupted)
    out = tmp_path / "never"
    assert run_command("split", "glyphs:val", "--scenario", "open-data", "--out", out) == 130
    assert capsys.readouterr().err.strip().startswith("error: stopped; run the same command again")


def test_debug_shows_the_traceback_anywhere_on_the_line():
    for arguments in (["--debug", "split"], ["split", "--debug"]):
        with pytest.raises(ValueError, match="unknown scenario"):
            cli.main([*arguments, "glyphs:val", "--scenario", "x", "--out", "never"])


@pytest.mark.slow
def test_the_module_runs_as_a_command():
    line = [sys.executable, "-m", "unibct", "split", "glyphs:nope", "--scenario", "open-data"]
    done = subprocess.run([*line, "--out", "never"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    parts = "glyphs:train, glyphs:val, glyphs:test, glyphs:final"
    assert done.stderr == f"error: glyphs:nope: say which part, {parts}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["trian"], "'trian'. Did you mean 'train'? (see unibct --help)"),
        (["train", "--epochs", "3"], "(see unibct train --help; it is a setting: --set epochs="),
        (["advise", "--batch-size", "3"], "it is a setting: --set batch_size=VALUE)"),
        (["gallery", "search", "G", "D", "--epochs", "3"], "(see unibct gallery search --help)"),
        (["blend", "a", "b", "--alpha", "2"], "equal to 1 (see unibct blend --help)"),
        (["train", "x", "--out"], "requires an argument. (see unibct train --help)"),
        (["train", "x", "--warm-start=3"], "(see unibct train --help)"),
    ],
)
def test_a_wrong_option_names_the_help_of_its_command(line, message, capsys):
    assert run_command(*line) == 2
    assert message in capsys.readouterr().err


def test_no_command_shows_the_help(capsys):
    assert run_command() == 0
    assert "Usage: unibct" in capsys.readouterr().out
    assert run_command("gallery") == 0
    shown = capsys.readouterr()
    assert "\nCommands:\n  create " in shown.out
    assert shown.err == ""
    assert run_command("demo", "--version") == 0
    assert capsys.readouterr().out.startswith("unibct 0")


def test_a_warning_about_data_is_a_note(tmp_path, capsys):
    for name in ("a/1.png", "a/2.png", "a/3.gif", "b/4.png", "b/5.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(1))
    out = ["--out", tmp_path / "a" / "split"]
    assert run_command("split", tmp_path, "--scenario", "open-data", *out) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith(f"note: {tmp_path}: 1 entry is passed over, first a/3.gif")
    assert "is within the images" in shown[1]


def test_a_message_names_the_flags_of_its_command():
    said = "go on with seen_classes=True, or insist (force); my_force=True/seen_classes.txt stays"
    evaluate, upgrade = (
        _with_flags(said, ["evaluate", "x"]),
        _with_flags(said, ["gallery", "upgrade"]),
    )
    assert evaluate == said.replace("seen_classes=True", "--seen-classes", 1)
    assert upgrade == said.replace("(force)", "(--force)")
    assert (
        _with_flags("with skip_bad, not skip_bad/x", []) == "with --skip-bad-images, not skip_bad/x"
    )

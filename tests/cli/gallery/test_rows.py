from unittest.mock import Mock

import pytest
import typer

from tests.cli.gallery.conftest import parsed, save_images, upgrade
from tests.conftest import run_command
from tests.gallery.toys import NEW, OLD, toy_images


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search", "nowhere"), "nowhere is not there"),
        (("search", "QUERIES", "--where", "colour"), "write KEY=VALUE"),
        (("search", "QUERIES", "--far", "0.01"), "(--far) needs one"),
        (("remove", "nobody"), "'nobody'"),
        (("remove",), "name the rows to remove"),
        (("remove", "--ids", "nowhere.txt"), "nowhere.txt cannot be read"),
        (("delete",), "G (embedded) would be deleted with all of its rows; confirm with --yes"),
        (("backfill", "--abort"), "no backfill"),
        (("backfill", "--pause", "--finish"), "--pause and --finish do different things"),
        (("backfill", "QUERIES", "--finish"), "--finish embeds no rows: leave DATA"),
        (("backfill", "--pause"), "no backfill"),
        (("rollback",), "no upgrade and no backfill"),
        (("backfill",), "images of the rows, or a map"),
        (("create", "--model", OLD), "exists already"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(world, words, message):
    run, _, queries, _, _ = world
    given = [queries if word == "QUERIES" else word for word in words]
    text = run(*given, code=2)
    assert message in text
    assert text.splitlines()[-1].startswith("error: ")
    assert text.count("error") == 1


def test_rows_need_no_class(world, tmp_path, capsys):
    run, _, _, certificate, _ = world
    flat = tmp_path / "flat"
    flat.mkdir()
    for image in save_images(toy_images(per_class=2, first=70), tmp_path / "more").rglob("*.png"):
        image.rename(flat / f"{image.parent.name}-{image.name}")
    assert run_command("gallery", "add", tmp_path / "G", flat) == 0
    captured = capsys.readouterr()
    assert f"{flat} has no classes: its rows get no label" in captured.err
    assert "12 rows added" in captured.out
    assert "0 rows added, 12 were there already" in run("add", flat)
    run(*upgrade(certificate))
    one = flat / "c3-71.png"

    def itself():
        hits = parsed(run("search", one, "--k", "60", "--json"))["hits"]
        (hit,) = [hit for hit in hits if hit["id"] == one.name]
        return hit["label"], hit["row"]

    assert itself() == (None, "older")
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(image.name for image in flat.iterdir()))
    run("backfill", flat, "--ids", ids)
    assert itself() == (None, "own")
    run("rollback")
    assert "60 rows" in run("status")
    assert itself() == (None, "own"), "the old model searches again"
    known = ("gallery", "create", tmp_path / "H", "--model", OLD, "--known", flat)
    assert run_command(*known) == 2, "known queries of your own are found by their labels"
    assert "no class folders" in capsys.readouterr().err


def test_unreadable_images_are_left_out_of_rows_and_queries(world, tmp_path):
    run, _, queries, _, _ = world
    extra = save_images(toy_images(per_class=1, first=70), tmp_path / "extra")
    for folder in (extra, queries):
        image = sorted(folder.rglob("*.png"))[1]
        image.write_bytes(image.read_bytes()[:40])
    assert "--skip-bad-images" in run("add", extra, code=2)
    assert "not complete" not in run("status")
    add = ("add", extra, "--skip-bad-images")
    assert "5 rows added, 0 were there already, 1 unreadable" in run(*add)
    added = parsed(run(*add, "--json"))
    assert added == {"added": 0, "present": 5, "skipped": 1}
    assert "--skip-bad-images" in run("search", queries, code=2)
    found = run("search", queries, "--skip-bad-images", "--json").splitlines()
    assert len(found) == 5
    for image in queries.rglob("*.png"):
        image.write_bytes(b"")
    assert "not one of its 6 images" in run("search", queries, "--skip-bad-images", code=2)


def test_unreadable_images_are_left_out_of_every_step_that_embeds(world, tmp_path, capsys):
    run, rows, queries, certificate, _ = world
    known = save_images(toy_images(per_class=1, first=60), tmp_path / "known")
    for folder in (rows, known):
        (folder / "c0" / f"{0 if folder == rows else 60}.png").write_bytes(b"")
    create = ("gallery", "create", tmp_path / "H", "--model", OLD, "--known", known)
    assert run_command(*create) == 2
    assert "--skip-bad-images" in capsys.readouterr().err
    assert run_command(*create, "--skip-bad-images") == 0
    assert "left out 1 unreadable images" in capsys.readouterr().err
    run(*upgrade(certificate))
    lazily = ("search", queries, "--k", "48", "--lazy", rows)
    assert "--skip-bad-images" in run(*lazily, code=2)
    assert "--skip-bad-images" in run("backfill", rows, code=2)
    text = run("backfill", rows, "--skip-bad-images")
    assert "47 rows embedded again; 47 of 48 rows" in text
    assert "1 unreadable images left out; their rows stay as they are" in text
    run(*lazily, "--skip-bad-images")
    assert parsed(run("backfill", rows, "--skip-bad-images", "--json"))["skipped"] == 1
    assert "1 rows of older models have no new vector" in run("backfill", "--finish")
    assert parsed(run("backfill", "--finish", "--json")) == {"deleted": 0, "older_rows": 1}
    (rows / "c1" / "0.png").write_bytes(b"")
    assert "--skip-bad-images" in run("rollback", rows, code=2)
    text = run("rollback", rows, "--skip-bad-images")
    assert "46 rows were embedded by it" in text
    assert "1 unreadable images left out" in text
    assert f"unibct gallery add {tmp_path / 'G'} DATA" in text


def test_vectors_whose_model_is_not_recorded(world, tmp_path):
    run, _, _, _, (old, _) = world
    extra = save_images(toy_images(per_class=1, first=70), tmp_path / "extra")
    assert run_command("embed", OLD, extra, "--to", "npy", "--out", tmp_path / "e.npy") == 0
    (tmp_path / "e.model.txt").unlink(missing_ok=True)
    assert "(--made-by)" in run("add", tmp_path / "e.npy", code=2)
    assert "6 rows added" in run("add", tmp_path / "e.npy", "--made-by", OLD)
    assert parsed(run("status", "--json"))["models"] == {old: 54}


def test_vectors_that_another_model_is_said_to_have_made(world, tmp_path, capsys):
    _, _, _, _, (old, new) = world
    extra = save_images(toy_images(per_class=1, first=70), tmp_path / "extra")
    file = tmp_path / "e.npy"
    assert run_command("embed", NEW, extra, "--to", "npy", "--out", file) == 0
    add = ["gallery", "add", tmp_path / "G", f"embeddings:{file}", "--made-by"]
    assert run_command(*add, OLD) == 0
    said = f"embeddings:{file} says that model {new} made it; its rows are kept as made by {old}"
    assert said in capsys.readouterr().err
    (tmp_path / "e.model.txt").write_text(old)
    assert run_command(*add, OLD) == 0
    assert "says that" not in capsys.readouterr().err


def test_an_index_of_no_rows_says_so(tmp_path, capsys):
    assert run_command("gallery", "create", tmp_path / "E", "--model", OLD) == 0
    assert run_command("gallery", "index", tmp_path / "E") == 0
    assert "E: there are no rows to index" in capsys.readouterr().out


def test_a_gallery_is_deleted_after_a_yes(world, tmp_path, monkeypatch):
    run, *_ = world
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, code, said in ((False, 2, "nothing is deleted"), (True, 0, "G: deleted")):
        monkeypatch.setattr("typer.confirm", lambda question, *, err, answer=answer: answer)
        assert (tmp_path / "G").is_dir()
        assert said in run("delete", code=code)
    assert not (tmp_path / "G").exists()


def test_ctrl_c_at_the_question_deletes_nothing(world, tmp_path, monkeypatch):
    run, *_ = world
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", Mock(side_effect=typer.Abort))
    assert run("delete", code=2).endswith("error: nothing is deleted\n")
    assert (tmp_path / "G").is_dir()

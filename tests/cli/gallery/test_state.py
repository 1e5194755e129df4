from tests.cli.gallery.conftest import upgrade
from tests.conftest import run_command
from tests.gallery.toys import NEW


def test_texts_for_people(world):
    run, rows, queries, _, _ = world
    assert "48 were there already" in run("add", rows)
    lines = run("search", queries, "--k", "2").splitlines()
    assert lines[0] == "c0/50.png (c0)"
    assert lines[1].split()[3] == "c0"
    run("upgrade", "--model", NEW, "--force")
    assert "without a certificate" in run("search", queries)
    text = run("status")
    assert "! forced, without a certificate that allows it: " in text
    assert "saved: 48 rows" in text
    assert "recall@10 1.000" in run("index")
    run("backfill", rows)
    assert "48 old vectors deleted" in run("backfill", "--finish")
    assert "removed for good" in run("remove", "c0/0.png")


def test_the_status_names_every_step(world):
    run, rows, _, certificate, _ = world
    run(*upgrade(certificate))
    assert "48 rows (100%) by " in run("status")
    run("backfill", rows, "--share", "0.5")
    text = run("status")
    assert "24 rows ( 50%)" in text
    assert "searched as they are, 24 old vectors kept" in text
    assert "its own rows" in text
    run("rollback", "--to", "4")
    run("backfill", rows)
    run("backfill", "--finish")
    run("remove", "c0/0.png")
    steps = [line.split("Z  ")[1] for line in run("status").split("steps:\n")[1].splitlines()]
    assert steps == [
        "create",
        "add 48 rows",
        f"upgrade to {NEW}",
        f"backfill by {NEW} up to 50% (undone)",
        "rollback to before step 4",
        f"backfill by {NEW}",
        "finish 48 old vectors deleted",
        "remove 1 rows",
    ]


def test_the_status_calls_newer_vectors_that_were_replaced_no_old_ones(world):
    run, rows, _, certificate, _ = world
    run(*upgrade(certificate))
    run("backfill", rows)
    run("backfill", "--finish")
    assert "48 rows were embedded" in run("rollback", rows)
    text = run("status")
    assert f"0 rows (  0%) by {NEW}, 48 replaced vectors kept until backfill --finish\n" in text
    assert "old vectors kept" not in text
    assert "cannot be searched" not in text


def test_the_status_puts_steps_long_past_together(world, monkeypatch):
    run, rows, _, certificate, _ = world
    monkeypatch.setattr("unibct.gallery.state.STEPS_IN_FULL", 2)
    run("add", rows)
    run(*upgrade(certificate))
    run("backfill", rows)
    run("remove", "c0/0.png")
    text = run("status")
    assert "add 48 rows in 2 steps until 20" in text
    assert text.splitlines()[-1].startswith("     6  20")
    run("rollback")
    assert "47 rows (100%) by " in run("status")
    verified = "all 47 rows are as they were written; models, certificates and known queries"
    assert verified in run("verify")


def test_a_copy_and_a_damaged_gallery(world, tmp_path, capsys):
    run, _, queries, _, _ = world
    before = run("search", queries, "--json")
    assert "48 rows copied" in run("copy", tmp_path / "copy")
    assert run_command("gallery", "search", tmp_path / "copy", queries, "--json") == 0
    assert capsys.readouterr().out == before
    path = tmp_path / "G" / "rows.sqlite"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"c0/1.png", b"c0/I.png", 1))
    assert run("verify", code=1) != ""

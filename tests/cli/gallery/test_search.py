import json

from tests.cli.gallery.conftest import upgrade
from tests.conftest import run_command
from tests.gallery.toys import OLD


def hits(text):
    return [[hit["id"] for hit in json.loads(line)["hits"]] for line in text.splitlines()]


def test_options_change_what_is_found(world):
    run, rows, queries, certificate, _ = world
    run(*upgrade(certificate))
    search = ("search", queries, "--k", "48", "--json")
    plain = hits(run(*search))
    assert [len(row) for row in plain] == [48] * 6
    for options in (["--far", "0.01"], ["--threshold", "0.5"], ["--k", "3"]):
        fewer = hits(run(*search, *options))
        assert all(row == full[: len(row)] for row, full in zip(fewer, plain, strict=True))
        assert sum(map(len, fewer)) < 288
    for options in (["--encoders", "two"], ["--encoders", "blend", "--alpha", "0.2"]):
        assert hits(run(*search, *options)) != plain
    assert hits(run(*search, "--old-scores")) == plain
    assert hits(run("search", queries, "--json", "--where", "colour=red")) == [[]] * 6
    run("search", queries, "--k", "2", "--lazy", rows, "--remember")
    assert "searches embed rows again that they find (step" in run("status")
    models = json.loads(run("status", "--json"))["models"]
    assert list(models.values())[1] > 0


def test_queries_need_no_class(world):
    run, _, queries, _, _ = world
    whole = hits(run("search", queries, "--k", "5", "--json"))
    first = min(queries.rglob("*.png"))
    assert hits(run("search", first, "--k", "5", "--json")) == whole[:1]
    assert hits(run("search", first.parent, "--k", "5", "--json")) == whole[:1]
    assert run("search", first).splitlines()[0] == first.name


def test_a_gallery_without_rows_says_so(world, tmp_path, capsys):
    run, _, queries, _, _ = world
    run("search", queries, "--threshold", "2")
    assert capsys.readouterr().err == ""
    empty = tmp_path / "empty"
    assert run_command("gallery", "create", empty, "--model", OLD) == 0
    assert run_command("gallery", "search", empty, queries) == 0
    assert f"note: {empty} has no rows; fill it: unibct gallery add" in capsys.readouterr().err

"""An upgrade from the command line, as the guide shows it."""

import json

from tests.cli.gallery.conftest import parsed, upgrade
from tests.conftest import run_command
from tests.gallery.toys import NEW, OLD, toy_certificate, written


def test_a_certificate_that_comes_later_is_recorded(world):
    run, _, queries, certificate, _ = world
    run("upgrade", "--model", NEW, "--force")
    assert "! forced" in run("status")
    assert "the certificate is recorded" in run(*upgrade(certificate))
    status = run("status")
    assert "! forced" not in status
    assert f"certify for {NEW}" in status
    run("search", queries, "--far", "0.1")
    assert "searches this gallery already" in run("upgrade", "--model", NEW, code=2)


def test_where_nothing_was_deleted_a_rollback_needs_no_images(world):
    run, _, _, certificate, (old, _) = world
    run(*upgrade(certificate))
    text = run("backfill", "--finish")
    assert "0 old vectors deleted\n48 rows of older models have no new vector" in text
    assert f"({old}) searches" in run("rollback")


def test_the_whole_way_and_back(world):
    run, rows, queries, certificate, (old, new) = world
    before = run("search", queries, "--k", "5", "--json")
    first = json.loads(before.splitlines()[0])
    assert first["query"] == "c0/50.png"
    assert len(first["hits"]) == 5
    assert {"id", "label", "score", "model"} <= set(first["hits"][0])
    assert first["hits"][0]["model"] == old
    assert run("upgrade", "--model", NEW, code=2).startswith("error: 48 rows were made by")
    assert "would search 48 rows" in run(*upgrade(certificate), "--dry-run")
    run(*upgrade(certificate))
    status = parsed(run("status", "--json"))
    assert (status["rows"], status["models"], status["searching"]) == (48, {old: 48, new: 0}, new)
    half = parsed(run("backfill", rows, "--share", "0.5", "--json"))
    assert (half["rows"], half["share"]) == (24, 0.5)
    assert parsed(run("status", "--json"))["models"] == {old: 24, new: 24}
    assert "24 of 48" in run("backfill", rows, "--share", "0.5")
    assert parsed(run("verify", "--json")) == {"problems": [], "rows": 48}
    assert f"({old}) searches" in run("rollback")
    assert run("search", queries, "--k", "5", "--json") == before


def test_what_a_certificate_does_not_know_is_said(world, tmp_path):
    run, _, _, _, fingerprints = world
    classes = {"basis": "unknown", "seen": None, "tested": 3, "unknown": "arrays do not say"}
    certificate = written(toy_certificate(*fingerprints, classes=classes), tmp_path)
    doubt = "it is not known that the test classes of their certificate were new to the models"
    assert doubt in run(*upgrade(certificate))
    assert doubt in run("status")
    run("rollback")
    assert doubt not in run("status")


def test_an_upgrade_that_no_known_query_has_tested_says_so(world, tmp_path, capsys):
    run, rows, _, certificate, _ = world
    assert "no known query" not in run(*upgrade(certificate))
    other = tmp_path / "without images"
    for command in (
        ("create", other, "--model", OLD, "--no-keep-images"),
        ("add", other, rows),
        ("upgrade", other, "--model", NEW, "--certificate", certificate),
    ):
        assert run_command("gallery", *command) == 0
    assert "! no known query has tested the upgrade: none found a mate" in capsys.readouterr().out

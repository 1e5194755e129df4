from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embedders import (
    EMBEDDERS,
    describe_embedders,
    open_embedder,
    open_image_embedder,
    parse_numbers,
    parse_reference,
    parse_size,
)
from unibct.embeddings.forms import write_embeddings
from unibct.errors import UserError

KINDS = ("onnx", "python", "embeddings")


def test_a_reference_is_taken_apart():
    parsed = parse_reference("onnx:a/b.onnx?mean=0.5&std=1,2,3", KINDS)
    assert (parsed.kind, parsed.place) == ("onnx", "a/b.onnx")
    assert parsed.options == {"mean": "0.5", "std": "1,2,3"}
    parsed = parse_reference("python:package.module:make?size=8", KINDS)
    assert (parsed.kind, parsed.place) == ("python", "package.module:make")
    assert parse_reference("C:models/old", KINDS).place == "C:models/old"


def test_what_exists_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "onnx:odd?name").mkdir()
    assert parse_reference("onnx:odd?name", KINDS).place == "onnx:odd?name"
    assert parse_reference("onnx:odd?name", KINDS).kind == ""
    (tmp_path / "what?.npy").touch()
    assert parse_reference("embeddings:what?.npy", KINDS).place == "what?.npy"


def test_bad_references_are_named():
    with pytest.raises(UserError, match="write onnx:PLACE"):
        parse_reference("onnx:", KINDS)
    with pytest.raises(UserError, match="write options as"):
        parse_reference("onnx:a?mean", KINDS)
    with pytest.raises(UserError, match="unknown option 'x'; it takes mean, std"):
        parse_reference("onnx:a?x=1", KINDS).require_options(["mean", "std"])
    with pytest.raises(UserError, match="it takes none"):
        parse_reference("onnx:a?x=1", KINDS).require_options([])


def test_sizes_and_numbers():
    assert parse_size("112") == (112, 112)
    assert parse_size("128x64") == (128, 64)
    assert parse_numbers("0.5", "mean", 3) == (0.5, 0.5, 0.5)
    assert parse_numbers("1,2,3", "mean", 3) == (1, 2, 3)
    for text in ("0", "1x2x3", "a", "-1"):
        with pytest.raises(UserError, match="size="):
            parse_size(text)
    for text in ("a", "1,2"):
        with pytest.raises(UserError, match="mean="):
            parse_numbers(text, "mean", 3)


def test_every_kind_has_its_code_and_is_in_the_help():
    for kind, entry in EMBEDDERS.items():
        assert callable(resolve_name(entry.opens))
        assert not entry.recognises(Path("nowhere"))
        assert kind in describe_embedders()
        assert entry.written in describe_embedders()


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(UserError, match="unknown option 'x'"):
        open_embedder("python:tests.embedders.networks:flatten?x=1")


def test_stored_embeddings_do_not_embed_pixels(tmp_path):
    write_embeddings(random_embeddings(3), tmp_path / "a.npy", "npy")
    with pytest.raises(UserError, match=r"holds stored embeddings, but pairs have two views"):
        open_image_embedder(tmp_path / "a.npy", why="pairs have two views")

import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embedders.table import (
    EMBEDDERS,
    describe_embedders,
    open_embedder,
    open_image_embedder,
)
from unibct.embeddings.forms.table import write_embeddings
from unibct.errors import UserError


def test_every_kind_has_its_module_and_is_in_the_help():
    for kind, entry in EMBEDDERS.items():
        module = entry.load()
        assert callable(module.recognises)
        assert callable(module.open_reference)
        assert kind in describe_embedders()
        assert entry.written in describe_embedders()


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(UserError, match="unknown option 'x'"):
        open_embedder("python:tests.embedders.networks:flatten?x=1")


def test_stored_embeddings_do_not_embed_pixels(tmp_path):
    write_embeddings(random_embeddings(3), tmp_path / "a.npy", "npy")
    with pytest.raises(UserError, match=r"holds stored embeddings, but pairs have two views"):
        open_image_embedder(tmp_path / "a.npy", why="pairs have two views")

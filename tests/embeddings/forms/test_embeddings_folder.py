import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.forms import embeddings_folder
from unibct.embeddings.store import save_embeddings
from unibct.errors import UserError


def test_rows_of_a_protocol_are_no_embeddings_of_images(tmp_path):
    save_embeddings(random_embeddings(4), tmp_path / "faces", protocol="ijbc")
    assert embeddings_folder.recognises(tmp_path / "faces")
    with pytest.raises(UserError, match="was made for --protocol ijbc"):
        embeddings_folder.read(tmp_path / "faces")


def test_a_folder_with_something_else_is_not_recognised(tmp_path):
    assert not embeddings_folder.recognises(tmp_path)

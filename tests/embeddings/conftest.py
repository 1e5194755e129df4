import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.store import save_embeddings


@pytest.fixture
def folder(tmp_path):
    """An embeddings folder of 25 images in four shards."""
    save_embeddings(random_embeddings(25), tmp_path / "emb", shard_rows=7)
    return tmp_path / "emb"

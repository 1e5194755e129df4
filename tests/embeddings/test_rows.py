import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.folder import open_embeddings
from unibct.embeddings.writing import save_embeddings


@pytest.mark.slow
@given(st.lists(st.integers(-25, 24), max_size=60), st.integers(1, 30))
def test_rows_are_taken_as_numpy_takes_them(tmp_path_factory, rows, shard_rows):
    original = random_embeddings(25)
    path = tmp_path_factory.mktemp("s") / "e"
    save_embeddings(original, path, shard_rows=shard_rows)
    taken = open_embeddings(path).vectors
    wanted = np.array(rows, dtype=int)
    for index in (wanted, np.sort(wanted), rows or slice(0, 0), np.isin(np.arange(25), wanted)):
        assert np.array_equal(taken[index], original.vectors[index])
    for part in (
        slice(None),
        slice(3, 20),
        slice(20, 3),
        slice(-8, None, 3),
        slice(None, None, -1),
    ):
        assert np.array_equal(taken[part], original.vectors[part])
    assert np.array_equal(taken[-2], original.vectors[-2])
    for wrong in ([25], [-26], [0.5], [[1]], [True]):
        with pytest.raises(IndexError):
            taken[wrong]


def test_rows_are_read_as_stored_into_given_memory(tmp_path):
    original = random_embeddings(25)
    save_embeddings(original, tmp_path / "e", dtype="float16", shard_rows=7)
    rows = open_embeddings(tmp_path / "e").vectors
    out = np.empty((3, 6), np.float16)
    for key in ([20, 3, 20], [5, 6, 7], [1, 9, 24]):
        assert rows.read_stored(key, out) is out
        assert np.array_equal(out, original.vectors[key].astype(np.float16))
    with pytest.raises(AssertionError):
        rows.read_stored([1, 2], out)

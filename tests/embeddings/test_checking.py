import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.checking import content_fingerprint, named_fingerprint, usable_embeddings
from unibct.embeddings.folder import Embeddings
from unibct.errors import UserError


def with_rows(vectors, ids=None, fingerprint=""):
    vectors = np.asarray(vectors, dtype=np.float32)
    ids = tuple(f"i{row}" for row in range(len(vectors))) if ids is None else ids
    return Embeddings(vectors, ids, np.zeros(len(vectors), dtype=np.int64), ("a",), fingerprint)


def test_rows_of_length_1_stay_to_the_bit_and_others_are_scaled():
    unit = random_embeddings(20)
    assert usable_embeddings(unit, "x").vectors is unit.vectors
    scaled = usable_embeddings(with_rows([[3, 4], [0, 2]]), "x")
    assert np.allclose(scaled.vectors, [[0.6, 0.8], [0, 1]])


@pytest.mark.parametrize(
    ("vectors", "ids", "message"),
    [
        ([[1, 0], [np.nan, 1]], None, r"x, row 1 \('i1'\) has NaN or infinite values"),
        ([[1, 0], [np.inf, 1]], None, r"x, row 1 \('i1'\) has NaN or infinite values"),
        ([[1, 0], [0, 1], [0, 0]], None, r"x, row 2 \('i2'\) is all zeros, as 1 of rows 0 to 2"),
        ([[1, 0], [0, 1], [1, 1]], ("a", "b", "a"), "x, row 2 has the id 'a' of row 0; 1 rows"),
    ],
)
def test_bad_rows_are_named_by_row_and_id(vectors, ids, message):
    with pytest.raises(UserError, match=message):
        usable_embeddings(with_rows(vectors, ids), "x")


def test_the_fingerprint_of_unknown_models_follows_ids_and_vectors():
    embeddings = with_rows([[1, 0], [0, 1]])
    found = usable_embeddings(embeddings, "x").fingerprint
    assert found == content_fingerprint(embeddings)
    changed = [with_rows([[1, 0], [0, -1]]), with_rows([[1, 0], [0, 1]], ("i0", "other"))]
    assert len({found, *map(content_fingerprint, changed)}) == 3
    stated = with_rows([[1, 0]], fingerprint="stated")
    assert usable_embeddings(stated, "x").fingerprint == "stated"
    assert named_fingerprint("a", 4) != named_fingerprint("b", 4)
    assert named_fingerprint("a", 4) != named_fingerprint("a", 5)

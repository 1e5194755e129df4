import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unibct.errors import UserError
from unibct.gallery.blending import blended


def test_a_blend_by_hand():
    # Lengths do not count: (0, 2) becomes (0, 1), and the mean of (0, 1) and (1, 0) is diagonal.
    assert blended([[0.0, 2.0]], [[5.0, 0.0]], 0.5) == pytest.approx(np.full((1, 2), 0.5**0.5))
    # (0.25·(0, 1) + 0.75·(1, 0)) / |…| with |…| = √(1 + 9) / 4
    assert blended([[0.0, 1.0]], [[1.0, 0.0]]) == pytest.approx(np.array([[3, 1]]) / 10**0.5)


@given(st.integers(0, 1000), st.floats(0, 1))
def test_a_blend_is_the_naive_formula_and_of_the_kind_that_was_given(seed, alpha):
    old, new = np.random.default_rng(seed).normal(size=(2, 5, 7)).astype(np.float32)
    result = blended(old, new, alpha)
    for row, (first, second) in enumerate(zip(old.tolist(), new.tolist(), strict=True)):
        lengths = [sum(x * x for x in vector) ** 0.5 for vector in (first, second)]
        mixed = [
            (1 - alpha) * x / lengths[0] + alpha * y / lengths[1]
            for x, y in zip(first, second, strict=True)
        ]
        length = sum(x * x for x in mixed) ** 0.5
        assert result[row] == pytest.approx([x / length for x in mixed], abs=1e-5)
    assert result.dtype == np.float32
    tensor = blended(torch.tensor(old), torch.tensor(new), alpha)
    assert torch.is_tensor(tensor)
    assert np.array_equal(tensor.numpy(), result)


def test_the_ends_are_the_two_queries():
    old, new = np.random.default_rng(0).normal(size=(2, 4, 3))
    assert np.allclose(blended(old, new, 0), old / np.linalg.norm(old, axis=1, keepdims=True))
    assert np.allclose(blended(old, new, 1), new / np.linalg.norm(new, axis=1, keepdims=True))


def test_bad_inputs_are_refused():
    vectors = np.ones((2, 3))
    with pytest.raises(UserError, match=r"alpha lies in \[0, 1\], not 1.5"):
        blended(vectors, vectors, 1.5)
    with pytest.raises(UserError, match="old_queries has dimension 3 but new_queries has"):
        blended(vectors, np.ones((2, 4)))
    with pytest.raises(UserError, match="2 old queries and 1 new queries do not match"):
        blended(vectors, vectors[:1])

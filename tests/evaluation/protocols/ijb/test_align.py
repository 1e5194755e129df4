import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.protocols.ijb.align import TEMPLATE, align, similarity, warp


def umeyama(points, target):
    """The published form, by singular values."""
    p, t = points - points.mean(0), target - target.mean(0)
    u, d, v = np.linalg.svd(t.T @ p / len(p))
    sign = np.array([1, np.sign(np.linalg.det(u) * np.linalg.det(v))])
    rotation = (u * sign) @ v
    scale = (d * sign).sum() / (p**2).sum(axis=1).mean()
    shift = target.mean(0) - scale * rotation @ points.mean(0)
    return np.column_stack([scale * rotation, shift])


def test_similarity_of_a_known_move():
    angle, scale, shift = 0.7, 1.8, np.array([4.0, -9.0])
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    found = similarity(TEMPLATE, TEMPLATE @ turn.T + shift)
    assert np.allclose(found, np.column_stack([turn, shift]))


@pytest.mark.parametrize("mirrored", [False, True])
def test_similarity_is_least_squares_and_umeyamas(mirrored):
    rng = np.random.default_rng(int(mirrored))
    points = rng.normal(size=(5, 2)) * 20 + 100
    target = points * [-1 if mirrored else 1, 1] + rng.normal(size=(5, 2))
    found = similarity(points, target)
    assert np.allclose(found, umeyama(points, target))
    # x′ = a x − b y + c, y′ = b x + a y + d
    x, y = points.T
    one, zero = np.ones(5), np.zeros(5)
    system = np.vstack([np.c_[x, -y, one, zero], np.c_[y, x, zero, one]])
    a, b, c, d = np.linalg.lstsq(system, target.T.ravel())[0]
    assert np.allclose(found, [[a, -b, c], [b, a, d]])


def test_similarity_errors():
    for equal in (np.full((5, 2), 33.3), np.full((5, 2), 1e8 / 3), np.zeros((5, 2))):
        with pytest.raises(UserError, match=r"the landmarks \[\[.* fix no position; detect"):
            similarity(equal, TEMPLATE)
    with pytest.raises(UserError, match="NaN or infinite values, first in point 3"):
        similarity(np.where(np.arange(5)[:, None] == 3, np.nan, TEMPLATE), TEMPLATE)
    with pytest.raises(UserError, match="4 points but 5 targets"):
        similarity(TEMPLATE[:4], TEMPLATE)
    with pytest.raises(UserError, match=r"shape \(n, 2\), not \(5, 3\)"):
        similarity(np.ones((5, 3)), TEMPLATE)


def naive_warp(image, matrix, size):
    """Exact bilinear values, not rounded."""
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    height, width, channels = image.shape
    result = np.zeros((size, size, channels))
    for v in range(size):
        for u in range(size):
            x, y, _ = back @ [u, v, 1]
            left, top = int(np.floor(x)), int(np.floor(y))
            for row in (top, top + 1):
                for column in (left, left + 1):
                    if 0 <= row < height and 0 <= column < width:
                        weight = (1 - abs(x - column)) * (1 - abs(y - row))
                        result[v, u] += weight * image[row, column]
    return result


@pytest.mark.parametrize("scale", [0.4, 1.7, 6.0])
def test_warp_equals_a_naive_loop(scale):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (37, 29, 3), dtype=np.uint8)
    turn = scale * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    matrix = np.column_stack([turn, [6.3, -2.2]])  # a part of the result lies outside
    expected = naive_warp(image, matrix, 40)
    assert (expected == 0).any()
    # Single precision may round a value within 1e-3 of a half to the other side.
    assert np.abs(warp(image, matrix, 40) - expected).max() <= 0.5 + 1e-3


def test_align_of_a_face_in_place_and_of_a_shifted_grey_one():
    rng = np.random.default_rng(4)
    image = rng.integers(0, 256, (112, 112, 3), dtype=np.uint8)
    assert np.array_equal(align(image, TEMPLATE), image)
    grey = rng.integers(0, 256, (130, 140), dtype=np.uint8)
    found = align(grey, TEMPLATE + np.array([28, 20]))
    assert found.dtype == np.uint8
    assert np.array_equal(found[:110], np.repeat(grey[20:130, 28:, None], 3, axis=2))
    assert not found[110:].any()
    big = align(np.kron(image[..., 0], np.ones((2, 2), np.uint8)), TEMPLATE * 2, size=224)
    assert big.shape == (224, 224, 3)
    assert np.array_equal(big[::2, ::2, 0], image[..., 0])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 3)), "uint8 of the shape .* not float64"),
        (np.zeros((4, 4, 4), np.uint8), r"not uint8 of the shape \(4, 4, 4\)"),
        (np.zeros((0, 4, 3), np.uint8), "has no pixel"),
    ],
)
def test_align_errors(image, message):
    with pytest.raises(UserError, match=message):
        align(image, TEMPLATE)

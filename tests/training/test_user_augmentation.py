import numpy as np
import pytest

from tests.training.recipes import SMALL
from unibct.errors import UserError
from unibct.training.train import train
from unibct.training.user_augmentation import augmented, find_augment

HERE = "python:tests.training.test_user_augmentation"
seen = []


def brighter(pixels, rng):
    seen.append((pixels.shape, int(rng.integers(1000))))
    return pixels // 2 + 128


def too_small(pixels, rng):
    return pixels[:, 1:]


def failing(pixels, rng):
    return pixels // (1 // 0)


def of_one(pixels):
    return pixels


NOT_A_FUNCTION = 3


@pytest.mark.slow
def test_the_function_gets_every_image_and_its_own_numbers(four_classes, tmp_path):
    seen.clear()
    model = train(
        four_classes, SMALL.updated(augment=f"{HERE}:brighter"), tmp_path / "m", device="cpu"
    )
    plain = train(four_classes, SMALL, tmp_path / "n", device="cpu")
    assert model.fingerprint != plain.fingerprint
    assert len(seen) == 2 * 24  # epochs, images
    assert {shape for shape, _ in seen} == {(1, 16, 16, 1)}
    assert len({number for _, number in seen}) > 40


def test_what_is_no_augmentation_is_refused_in_one_line(four_classes, tmp_path):
    for name, message in (
        ("flips", "write python:MODULE:ATTRIBUTE"),
        (f"{HERE}:NOT_A_FUNCTION", "is not a function"),
        (f"{HERE}:absent", "no attribute 'absent'"),
        (f"{HERE}:of_one", r"is not a function of \(pixels, rng\)"),
    ):
        with pytest.raises(UserError, match=message):
            train(four_classes, SMALL.updated(augment=name), tmp_path / "m", device="cpu")
    assert list(tmp_path.iterdir()) == []
    pixels, rng = np.zeros((2, 4, 4, 1), np.uint8), np.random.default_rng(0)
    with pytest.raises(UserError, match=r"returned uint8 of shape \(2, 3, 4, 1\), not uint8 of"):
        augmented(f"{HERE}:too_small", pixels, rng)
    with pytest.raises(UserError, match=r"failing failed \(ZeroDivisionError: .* zero\)"):
        augmented(f"{HERE}:failing", pixels, rng)
    assert find_augment(f"{HERE}:brighter") is brighter

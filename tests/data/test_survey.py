import numpy as np
import pytest
from PIL import Image

from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.data.survey import has_colour, survey


@pytest.fixture
def mixed_folder(tmp_path):
    """Nine images of three classes: JPEG and PNG, two of them grey, one stored in colour."""
    rng = np.random.default_rng(0)
    sizes = [(90, 60), (100, 70), (110, 80)]
    for number in range(9):
        height, width = sizes[number % 3]
        coloured = np.kron(rng.integers(256, size=(10, 10, 3)), np.ones((height, width, 1)))
        image = Image.fromarray(coloured[:height, :width].astype(np.uint8))
        image = image.convert("L").convert("RGB") if number == 0 else image
        image = image.convert("L") if number == 1 else image
        folder = tmp_path / f"class {number % 3}"
        folder.mkdir(exist_ok=True)
        image.save(folder / f"{number}.{'jpg' if number % 2 else 'png'}")
    return tmp_path


def test_size_colour_and_counts_are_those_of_the_files(mixed_folder):
    seen = survey(open_images(mixed_folder))
    assert (seen.images, seen.classes, seen.per_class, seen.looked_at) == (9, 3, 3.0, 9)
    assert (seen.height, seen.width, seen.side) == (100, 70, 70)
    assert seen.colour


def test_grey_images_that_are_stored_in_colour_are_grey(photo_folder):
    seen = survey(open_images(photo_folder))
    assert not seen.colour
    assert seen.side == 36  # half have 32 rows, a quarter 40 and a quarter 48


def test_a_few_coloured_images_do_not_make_a_set_coloured():
    coloured: list[int] = []

    def read(image_id: str):
        value = np.full((5, 6, 3), 40, dtype=np.uint8)
        value[:, :, 0] += 100 if int(image_id) < len(coloured) else 0
        return value

    ids = tuple(str(number) for number in range(20))
    images = ImageSet("twenty", ids, np.zeros(20, dtype=np.int64), ("a",), read)
    for count, expected in ((0, False), (2, False), (3, True), (20, True)):
        coloured[:] = range(count)
        assert survey(images).colour is expected


def test_the_sample_is_small_and_the_same_each_time():
    read_ids: list[str] = []

    def read(image_id: str):
        read_ids.append(image_id)
        return np.zeros((4, 4), dtype=np.uint8)

    ids = tuple(str(number) for number in range(1000))
    images = ImageSet("many", ids, np.arange(1000) % 7, tuple("abcdefg"), read)
    assert survey(images, 50) == survey(images, 50)
    assert read_ids[:50] == read_ids[50:]
    assert len(set(read_ids)) == 50


def test_unreadable_images_are_left_out(mixed_folder):
    (mixed_folder / "class 0" / "0.png").write_bytes(b"no image")
    assert survey(open_images(mixed_folder)).looked_at == 8
    for path in mixed_folder.rglob("*.*"):
        path.write_bytes(b"no image")
    seen = survey(open_images(mixed_folder))
    assert (seen.looked_at, seen.side, seen.colour) == (0, 0, False)


def test_three_equal_channels_are_no_colour():
    grey = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)[:, :, :1]
    assert not has_colour(grey)
    assert not has_colour(grey[:, :, 0])
    assert not has_colour(np.repeat(grey, 3, axis=2))
    assert has_colour(np.concatenate([grey, grey + 20, grey], axis=2))

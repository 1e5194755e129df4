import json

import numpy as np
import pytest

import unibct
from unibct.data.image_set import ImageSet, select_listed
from unibct.data.split_lists import write_split
from unibct.errors import UserError

IMAGES = ImageSet(
    "some set",
    tuple(f"{c}/é {i}" for c in "abcd" for i in range(10)),
    np.repeat(np.arange(4), 10),
    tuple("abcd"),
    read=lambda image_id: np.zeros((2, 2), np.uint8),
)


@pytest.mark.parametrize(
    ("scenario", "counts"),
    [
        ("open-data", {"old": (12, 4), "new": (28, 4)}),
        ("open-class", {"old": (10, 1), "new": (30, 3)}),
    ],
)
def test_a_split_on_disk(scenario, counts, tmp_path):
    assert write_split(IMAGES, scenario, tmp_path / "split", seed=3) == counts
    index_sets = unibct.split(IMAGES.labels, scenario, seed=3)
    for name, indices in (("old", index_sets.old), ("new", index_sets.new)):
        subset = select_listed(IMAGES, tmp_path / "split" / f"{name}.txt")
        assert subset.ids == IMAGES.select(indices).ids
    assert json.loads((tmp_path / "split" / "split.json").read_text()) == {
        "scenario": scenario,
        "fraction": 0.3,
        "seed": 3,
        "data": "some set",
        "counts": {k: {"images": v[0], "classes": v[1]} for k, v in counts.items()},
    }


def test_a_folder_is_not_written_over(tmp_path):
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "old.txt").write_text("")
    with pytest.raises(UserError, match="exists already"):
        write_split(IMAGES, "open-data", tmp_path / "split")

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


TWENTY = ImageSet(
    "twenty",
    tuple(f"{c}/{i}" for c in range(20) for i in range(4)),
    np.repeat(np.arange(20), 4),
    tuple(str(c) for c in range(20)),
    read=lambda image_id: np.zeros((2, 2), np.uint8),
)


def classes_in(path):
    return {line.split("/")[0] for line in path.read_text().splitlines()}


def test_test_classes_are_set_aside(tmp_path):
    out = tmp_path / "split"
    counts = write_split(TWENTY, None, out, hold_out=0.3, seed=3)
    assert counts == {"train": (56, 14), "test": (24, 6)}
    assert sorted(path.name for path in out.iterdir()) == ["split.json", "test.txt", "train.txt"]
    assert not classes_in(out / "train.txt") & classes_in(out / "test.txt")
    parts = unibct.hold_out(TWENTY.labels, 0.3, seed=3)
    assert select_listed(TWENTY, out / "test.txt").ids == TWENTY.select(parts.test).ids
    described = json.loads((out / "split.json").read_text())
    assert (described["scenario"], described["hold_out"]) == (None, 0.3)


@pytest.mark.parametrize("scenario", ["open-class", "extended-data"])
def test_a_scenario_is_drawn_from_the_training_classes_only(scenario, tmp_path):
    out = tmp_path / "split"
    counts = write_split(TWENTY, scenario, out, hold_out=0.3, seed=3)
    assert list(counts) == ["old", "new", "train", "test"]
    train = select_listed(TWENTY, out / "train.txt")
    sets = unibct.split(train.labels, scenario, seed=3)
    for name, indices in (("old", sets.old), ("new", sets.new)):
        assert select_listed(TWENTY, out / f"{name}.txt").ids == train.select(indices).ids
        assert not classes_in(out / f"{name}.txt") & classes_in(out / "test.txt")


def test_a_split_needs_a_scenario_or_a_hold_out(tmp_path):
    with pytest.raises(UserError, match="give --scenario, --hold-out or both"):
        write_split(IMAGES, None, tmp_path / "split")
    assert not (tmp_path / "split").exists()

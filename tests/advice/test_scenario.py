import numpy as np
import pytest

from unibct.advice.scenario import find_scenario_of, unknown_scenario
from unibct.data.scenarios import SCENARIOS, split

LABELS = np.repeat(np.arange(20), 10)


def side(rows):
    """The classes and ids of one side of a split."""
    return {f"class {LABELS[row]}" for row in rows}, {f"image {row}" for row in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_split_is_recognised_as_its_scenario(scenario):
    parts = split(LABELS, scenario)
    (old_classes, old_ids), (new_classes, new_ids) = side(parts.old), side(parts.new)
    found = find_scenario_of(old_classes, new_classes, old_ids, new_ids)
    assert found.names == (scenario,)
    assert found.shared_classes == len(old_classes & new_classes)
    without_ids = find_scenario_of(old_classes, new_classes, None, new_ids)
    assert scenario in without_ids.names
    assert ("--old-data" in without_ids.why) == (len(without_ids.names) > 1)


def test_some_new_and_some_lost_classes_are_named():
    found = find_scenario_of(["a", "b", "c"], ["c", "d"], None, ["1"])
    assert found.names == ("open-class",)
    assert found.why == "1 classes are new and 2 old ones are gone"
    assert found.as_json()["shared_classes"] == 1


def test_fewer_classes_with_other_images_are_open_data():
    found = find_scenario_of(["a", "b"], ["a"], ["1", "2"], ["2", "3", "4"])
    assert found.names == ("open-data",)
    assert found.why == "2 other images of classes that are known, and 1 of the old images"
    found = find_scenario_of(["a"], ["a"], ["1", "2"], ["3", "4"])
    assert found.why == "2 other images of classes that are known"


def test_a_part_of_the_old_images_is_no_new_image():
    found = find_scenario_of(["a", "b"], ["a"], ["1", "2", "3"], ["1", "2"])
    assert found.names == ("open-data",)
    assert found.why == "no new image: 2 of the 3 old images"


def test_numbered_classes_may_be_unknown():
    found = unknown_scenario(3, 4, "only numbers")
    assert (found.names, found.shared_classes, found.why) == ((), None, "only numbers")

import numpy as np

from unibct.evaluation.class_maps import ClassMaps, same_map
from unibct.evaluation.scale_map import ScaleMap


def test_each_class_has_its_map():
    maps = ClassMaps([ScaleMap(2.0), ScaleMap(0.5)], np.array([1, 0, 1]))
    scores, classes = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1, 2, 1])
    assert maps.mapped(scores, classes).tolist() == [0.05, 0.4, 0.15, 0.8]
    assert maps.limits(0.5, np.float64).tolist() == [1, 0.25, 1]


def test_one_map_for_all_classes():
    maps = same_map(ScaleMap(2.0), 3)
    assert maps.limits(0.5, np.float64).tolist() == [0.25, 0.25, 0.25]

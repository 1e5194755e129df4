import re

import pytest

from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.directions import CROSS, FREE_CROSS, OLD_SELF
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.search_test import search_test
from unibct.report.curves import COLOURS, cmc_svg, matrix_svg, roc_svg


@pytest.fixture(scope="module")
def tests():
    old, labels = noisy_classes(noise=1.3)
    new, _ = noisy_classes(noise=0.3, seed=1)
    split = split_gallery(labels)
    return {
        OLD_SELF: search_test(old, old, split),
        CROSS: search_test(new, old, split),
        FREE_CROSS: search_test(new[:, ::-1], old, split),
    }


@pytest.mark.parametrize("draw", [roc_svg, cmc_svg])
def test_the_same_curve_gives_the_same_text(tests, draw):
    svg = draw(tests)
    assert svg == draw(tests)
    assert svg.startswith("<svg")
    assert "currentColor" in svg, "text takes the colour of the page"
    for name in (OLD_SELF, CROSS):
        assert COLOURS[name] in svg
        assert name in svg


def test_a_curve_far_below_the_others_is_named_and_left_out(tests):
    assert tests[FREE_CROSS].top(1) < tests[CROSS].top(1) - 0.5
    assert f"{FREE_CROSS} (below)" in cmc_svg(tests, largest_k=2)


def test_a_cmc_curve_has_a_point_for_each_k(tests):
    only_cross = {CROSS: tests[CROSS]}
    markers = {k: cmc_svg(only_cross, largest_k=k).count("<use ") for k in (3, 4)}
    assert markers[4] > markers[3]
    everything = cmc_svg(only_cross, largest_k=10_000)
    assert everything == cmc_svg(only_cross, largest_k=tests[CROSS].templates)


def test_a_matrix_shows_percent_for_each_pair_of_versions():
    svg = matrix_svg([[0.5, 0.25], [0.75, 1.0]], ["v1", "v2"], "a chain")
    assert re.findall(r">(\d+\.\d)<", svg) == ["50.0", "25.0", "75.0", "100.0"]
    for label in ("v1 queries", "v2 queries", "v1 gallery", "v2 gallery", "a chain"):
        assert label in svg

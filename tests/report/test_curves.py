import base64
import importlib
import io
import re
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.evaluation.noisy_classes import noisy_classes
from tests.report.told_story import told_story
from unibct.errors import UserError
from unibct.evaluation.search_test import CROSS, FREE_CROSS, OLD_SELF, search_test
from unibct.evaluation.templates import split_gallery
from unibct.report import curves
from unibct.report.curves import COLOURS, cmc_svg, data_uri, matrix_svg, roc_svg, searched_queries


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


@pytest.mark.slow
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


@pytest.fixture
def lines(monkeypatch):
    """The lines of a curve, by their labels, as (x, y)."""
    monkeypatch.setattr(curves, "_svg", lambda draw, title, **_: draw)

    def drawn(draw):
        axes = Figure().add_subplot()
        draw(axes)
        assert axes.get_xlabel()
        return {line.get_label(): line.get_data() for line in axes.lines}

    return drawn


def test_the_roc_has_the_true_accept_rate_over_the_false_accept_rate(lines, tests):
    drawn = lines(curves.roc_svg(tests))
    assert set(drawn) == set(tests)
    for name, (far, percent) in drawn.items():
        assert far[0] == pytest.approx(1 / len(tests[name].impostor))
        assert far[-1] == 1
        want = [100 * tests[name].tar(rate) for rate in far[1:]]
        assert np.allclose(percent[1:], want)


def test_the_cmc_has_the_share_that_is_found_over_k(lines, tests):
    shown = {name: tests[name] for name in (OLD_SELF, CROSS)}
    for name, (ks, percent) in lines(curves.cmc_svg(shown, largest_k=7)).items():
        assert ks.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert np.allclose(percent, [100 * tests[name].top(int(k)) for k in ks])


def test_the_story_has_both_shares_over_the_share_of_new_rows(lines):
    drawn = lines(curves.story_svg(told_story()))
    shares, found = drawn["top-1"]
    assert list(shares) == pytest.approx([0, 25, 50, 75, 100])
    assert list(found) == pytest.approx([61, 62, 63, 64, 65])
    assert list(drawn["right names"][1]) == pytest.approx([51, 52, 53, 54, 55])
    assert list(drawn["top-1, old model"][1]) == pytest.approx([60, 60])
    assert list(drawn["right names, old model"][1]) == pytest.approx([50, 50])


def test_a_picture_of_its_own_has_its_own_colours():
    svg = curves.story_svg(told_story())
    assert curves.standalone(svg).startswith('<svg style="background: #ffffff; color: #15181c" ')
    assert curves.standalone(svg).endswith(svg[5:])


def test_a_large_picture_becomes_a_small_png():
    pixels = np.random.default_rng(0).integers(256, size=(300, 150, 3), dtype=np.uint8)
    head, _, encoded = data_uri(pixels).partition(",")
    assert head == "data:image/png;base64"
    picture = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert (picture.format, picture.size) == ("PNG", (48, 96))


def test_a_small_picture_keeps_its_pixels():
    pixels = np.random.default_rng(0).integers(256, size=(20, 30), dtype=np.uint8)
    encoded = data_uri(pixels).partition(",")[2]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded)))), pixels)


def test_queries_come_with_the_best_templates_of_each_test(glyph_classes):
    split = split_gallery(glyph_classes.labels)
    perfect = np.eye(12)[glyph_classes.labels]  # every image is its class
    shifted = np.eye(12)[(glyph_classes.labels + 1) % 12]  # every image is the next class
    sides = {"right": perfect, "wrong": shifted}
    tests = {name: search_test(queries, perfect, split) for name, queries in sides.items()}
    queries = searched_queries(glyph_classes, split, tests, count=5, k=3)
    assert len(queries) == 5
    assert queries == searched_queries(glyph_classes, split, tests, count=5, k=3)
    names = list(glyph_classes.class_names)
    for query in queries:
        right, wrong = query.returned["right"], query.returned["wrong"]
        assert len(right) == len(wrong) == 3
        assert right[0].class_name == query.class_name
        assert [hit.correct for hit in right] == [True, False, False]
        assert names.index(wrong[0].class_name) == (names.index(query.class_name) + 1) % 12
        assert not wrong[0].correct
    many = searched_queries(glyph_classes, split, tests, count=10_000)
    assert len(many) == len(split.query)


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, curves.__name__)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"reports need matplotlib: pip install 'unibct\[report\]'"):
        importlib.import_module(curves.__name__)

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.evaluation.noisy_classes import noisy_classes
from unibct.evaluation.gallery_split import split_gallery
from unibct.evaluation.search_test import search_test
from unibct.report import curves


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


@pytest.fixture(scope="module")
def tests():
    old, labels = noisy_classes(noise=1.3)
    new, _ = noisy_classes(noise=0.6, seed=1)
    split = split_gallery(labels)
    return {"old→old": search_test(old, old, split), "new→old": search_test(new, old, split)}


def test_the_roc_has_the_true_accept_rate_over_the_false_accept_rate(lines, tests):
    drawn = lines(curves.roc_svg(tests))
    assert set(drawn) == set(tests)
    for name, (far, percent) in drawn.items():
        assert far[0] == pytest.approx(1 / len(tests[name].impostor))
        assert far[-1] == 1
        want = [100 * tests[name].tar(rate) for rate in far[1:]]
        assert np.allclose(percent[1:], want)


def test_the_cmc_has_the_share_that_is_found_over_k(lines, tests):
    for name, (ks, percent) in lines(curves.cmc_svg(tests, most=7)).items():
        assert ks.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert np.allclose(percent, [100 * tests[name].top(int(k)) for k in ks])


def test_curves_are_svg_with_their_title_and_legend(tests):
    svg = curves.roc_svg(tests)
    assert svg.startswith("<svg")
    for text in ("ROC: 1:1 verification", "true accept rate, %", *tests):
        assert text in svg

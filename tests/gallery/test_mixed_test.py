import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.noisy_classes import noisy_classes
from tests.gallery.two_models import two_kinds
from unibct.evaluation.metrics.table import measured_metrics
from unibct.evaluation.search_test import image_test
from unibct.gallery.calibration import RAW, STANDARDISED, Calibration
from unibct.gallery.mixed_test import mixed_quality, ranking_quality


def naive_quality(scores: np.ndarray, label: int, row_labels: np.ndarray) -> tuple[float, float]:
    """Whether the first row is a mate, and the average precision, of one query; ties hurt."""
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], row_labels[row] == label))
    hits = [row_labels[row] == label for row in order]
    precisions = [sum(hits[: n + 1]) / (n + 1) for n, hit in enumerate(hits) if hit]
    return float(hits[0]), sum(precisions) / len(precisions)


@given(st.integers(0, 10_000))
def test_quality_is_that_of_a_naive_ranking(seed):
    rng = np.random.default_rng(seed)
    row_labels = np.concatenate([np.arange(4), rng.integers(4, size=8)])
    labels = rng.integers(4, size=6)
    scores = rng.integers(5, size=(6, 12)).astype(float)  # many ties
    first, precisions = ranking_quality(scores.copy(), labels, row_labels)
    for query in range(6):
        expected = naive_quality(scores[query], labels[query], row_labels)
        assert (first[query], precisions[query]) == pytest.approx(expected)


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_a_mixed_gallery_is_searched_as_a_loop_would(seed):
    kinds = two_kinds(classes=6, images=8, seed=seed)
    rng = np.random.default_rng(seed)
    calibration = Calibration(STANDARDISED, slope=1.3, shift=-0.1)
    remade = [rng.random(kinds.rows) < 0.5 for _ in range(2)]
    measured = mixed_quality(kinds, {"any": calibration}, remade)["any"]
    expected = np.zeros(2)
    for mask in remade:
        for query, label in enumerate(kinds.cross.query_labels):
            old, new = (
                side.gallery @ side.query[query : query + 1][0]
                for side in (kinds.cross, kinds.new_self)
            )
            scores = [new[row] if mask[row] else 1.3 * old[row] - 0.1 for row in range(kinds.rows)]
            expected += naive_quality(np.array(scores), label, kinds.cross.gallery_labels)
    expected /= 2 * kinds.queries
    assert [measured.top_1, measured.mean_average_precision] == pytest.approx(expected)


def test_the_ends_of_a_backfill_are_the_tests_of_one_kind():
    kinds = two_kinds(classes=12, images=8)
    for side, remade in ((kinds.cross, False), (kinds.new_self, True)):
        measured = mixed_quality(kinds, {RAW: Calibration()}, [np.full(kinds.rows, remade)])[RAW]
        metrics = measured_metrics(image_test(side), [0.1])
        assert measured.top_1 == pytest.approx(metrics["top-1"])
        assert measured.mean_average_precision == pytest.approx(metrics["mAP"])


def test_parts_by_class():
    kinds = two_kinds(classes=6, images=8)
    part = kinds.of_classes(np.arange(6) < 2)
    assert set(part.cross.query_labels) == set(part.new_self.gallery_labels) == {0, 1}
    assert part.queries == kinds.queries // 3
    assert part.rows == kinds.rows // 3
    assert np.array_equal(part.cross.gallery, kinds.cross.gallery[: part.rows])
    assert noisy_classes(6, 8)[1][0] == 0, "classes come in order"

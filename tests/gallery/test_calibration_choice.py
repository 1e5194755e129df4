import json

import numpy as np
import pytest

from tests.gallery.two_models import two_kinds
from unibct.errors import UserError
from unibct.evaluation.score_table import NormalizedRows
from unibct.evaluation.search_test import ImageSearch, image_test
from unibct.gallery import calibration_choice
from unibct.gallery.calibration import CALIBRATIONS, ODDS, RAW, STANDARDISED, fit_calibration
from unibct.gallery.calibration_choice import choose_calibration
from unibct.gallery.mixed_test import TwoKinds


def shifted(kinds: TwoKinds, by: float) -> TwoKinds:
    """The same gallery, but every new→new score is higher by a constant on some scale.

    Another dimension, in which all new vectors agree, adds a constant to their cosines.
    """

    def raised(vectors: np.ndarray) -> np.ndarray:
        return np.column_stack([vectors, np.full(len(vectors), by, np.float32)])

    side = kinds.new_self
    query = NormalizedRows(raised(side.query[: len(side.query)]), np.arange(len(side.query)))
    gallery = raised(side.gallery) / np.sqrt(1 + by**2)
    higher = ImageSearch(query, side.query_labels, gallery.astype(np.float32), side.gallery_labels)
    return TwoKinds(kinds.cross, higher)


@pytest.mark.slow
def test_equal_scales_stay_raw_and_shifted_ones_do_not():
    kinds = two_kinds(classes=30, images=12)
    equal = choose_calibration(kinds)
    assert set(equal.chosen_on) == set(equal.reported_on) == set(CALIBRATIONS)
    moved = choose_calibration(shifted(kinds, 1.0))
    assert moved.calibration.kind != RAW
    best = moved.reported_on[moved.calibration.kind]
    assert best.top_1 > moved.reported_on[RAW].top_1
    assert best.mean_average_precision > moved.reported_on[RAW].mean_average_precision + 0.02
    assert moved.reported_on[RAW].mean_average_precision < (
        equal.reported_on[RAW].mean_average_precision
    )


@pytest.mark.slow
def test_the_chosen_kind_is_the_best_of_its_half_and_fitted_on_all_classes():
    kinds = shifted(two_kinds(classes=30, images=12), 0.5)
    choice = choose_calibration(kinds, seed=4)
    worth = {
        kind: quality.top_1 + quality.mean_average_precision
        for kind, quality in choice.chosen_on.items()
    }
    assert choice.calibration.kind == max(worth, key=lambda kind: worth[kind])
    pairs = [image_test(side).pairs for side in (kinds.cross, kinds.new_self)]
    expected = fit_calibration(choice.calibration.kind, *pairs)
    scores = np.linspace(-1, 1, 50)
    assert np.array_equal(choice.calibration(scores), expected(scores))
    assert choice.classes == (15, 15)
    assert json.loads(json.dumps(choice.as_json()))["choice"]["kind"] == choice.calibration.kind


def test_the_choice_is_the_same_every_time_and_does_not_see_the_classes_it_reports(monkeypatch):
    kinds = two_kinds(classes=20, images=8)
    first = choose_calibration(kinds, seed=2)
    assert first.as_json() == choose_calibration(kinds, seed=2).as_json()
    assert first.as_json() != choose_calibration(kinds, seed=3).as_json()
    halves: list[TwoKinds] = calibration_choice._halves(kinds, 2)
    seen = [set(half.cross.query_labels) | set(half.cross.gallery_labels) for half in halves]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(range(20))
    fitted: list[set[int]] = []

    def recorded(kind, cross, new_self):
        fitted.append(set(cross.genuine_classes.tolist()))
        return fit_calibration(kind, cross, new_self)

    monkeypatch.setattr(calibration_choice, "fit_calibration", recorded)
    choose_calibration(kinds, seed=2)
    assert fitted[: len(CALIBRATIONS)] == [seen[0]] * len(CALIBRATIONS)


def test_large_tests_are_drawn_from(monkeypatch):
    monkeypatch.setattr(calibration_choice, "_MOST_PAIRS", 1)
    kinds = two_kinds(classes=40, images=12)
    halves = calibration_choice._halves(kinds, 0)
    assert [half.queries for half in halves] == [100, 100]
    assert [half.rows for half in halves] == [60, 60]


def test_a_kind_that_cannot_be_fitted_is_left_out():
    kinds = two_kinds(classes=4, images=4)
    choice = choose_calibration(kinds)  # 6 × 1 impostor scores: too few for a fitted one
    assert set(choice.chosen_on) == {RAW, STANDARDISED, ODDS}
    with pytest.raises(UserError, match="3 classes with queries are too few to choose"):
        choose_calibration(two_kinds(classes=3, images=8))


def test_the_next_best_kind_is_taken_if_the_best_cannot_be_fitted_on_all_classes(monkeypatch):
    kinds = shifted(two_kinds(classes=20, images=12), 1.0)
    best = choose_calibration(kinds)
    calls: list[str] = []

    def fit(kind, *pairs):
        calls.append(kind)
        if len(calls) > len(CALIBRATIONS) and kind == best.calibration.kind:
            raise UserError("not on all classes")
        return fit_calibration(kind, *pairs)

    monkeypatch.setattr(calibration_choice, "fit_calibration", fit)
    other = choose_calibration(kinds)
    assert calls[len(CALIBRATIONS)] == best.calibration.kind
    assert other.calibration.kind == calls[-1] != best.calibration.kind
    assert other.chosen_on == best.chosen_on

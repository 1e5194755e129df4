import numpy as np
import pytest

from tests.evaluation.noisy_classes import near_duplicates, noisy_classes
from tests.gallery.two_models import DATE, SUBJECTS, evaluation_of
from unibct.data.training_classes import UNKNOWN_CLASSES, training_classes
from unibct.embeddings.folder import Embeddings
from unibct.errors import UserError
from unibct.evaluation import single_images
from unibct.evaluation.directions import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.evaluation.protocols.request import EvaluationRequest
from unibct.evaluation.score_map import fit_score_map
from unibct.evaluation.search_test import search_test
from unibct.evaluation.upgrade import evaluate_upgrade
from unibct.gallery.calibration_choice import choose_calibration
from unibct.gallery.certify import certify, evaluate_and_certify
from unibct.gallery.mixed_test import TwoKinds

ROWS = {OLD_SELF: ("old", "old"), CROSS: ("new", "old"), NEW_SELF: ("new", "new")}


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def naive_scores(query: np.ndarray, gallery: np.ndarray, split, same: bool) -> np.ndarray:
    """The scores of all pairs of a query image and a row image, of the same or other classes."""
    scores = unit(query[split.query]) @ unit(gallery[split.gallery]).T
    mates = split.query_labels[:, None] == split.gallery_labels[None, :]
    return scores[mates == same]


@pytest.mark.slow
def test_thresholds_accept_as_many_impostors_of_single_images_as_the_rate_allows():
    models = {
        "old": noisy_classes(40, 12, noise=1.5, seed=1)[0],
        "new": noisy_classes(40, 12, noise=0.6, seed=2)[0],
    }
    evaluation = evaluation_of()
    certificate = certify(evaluation, subjects=SUBJECTS, date=DATE)
    assert certificate.content["gallery"] == "images"
    for direction, (query, gallery) in ROWS.items():
        impostors = naive_scores(models[query], models[gallery], evaluation.split, same=False)
        assert len(impostors) == certificate.content["pairs"]["impostor"]
        for far in certificate.fars:
            threshold = certificate.threshold(direction, far)
            accepted = sum(score > threshold + 1e-7 for score in impostors.tolist())
            assert accepted <= int(far * len(impostors)) <= accepted + 1
    pairs = certificate.content["pairs"]
    assert pairs["queries"] == pairs["of_queries"] == 40 * 9
    assert pairs["rows"] == 40 * 3
    assert pairs["genuine"] + pairs["impostor"] == 360 * 120
    # 30 of 42,120 pairs measure 1e-3; 40 classes have too few pairs of classes for 1e-2.
    assert certificate.fars == (0.1, 0.01, 0.001)
    assert certificate.content["carried_fars"] == ["0.1"]


@pytest.mark.slow
def test_score_maps_are_fitted_on_single_images():
    evaluation = evaluation_of()
    certificate = certify(evaluation, subjects=SUBJECTS, date=DATE)
    old, new = (noisy_classes(40, 12, noise=n, seed=s)[0] for n, s in ((1.5, 1), (0.6, 2)))
    impostors = [
        naive_scores(q.astype(np.float64), g.astype(np.float64), evaluation.split, same=False)
        for q, g in ((new, old), (new, new), (old, old))
    ]
    scores = np.linspace(-0.5, 0.9, 50)
    for found, impostor in (
        (certificate.score_map, impostors[0]),
        (certificate.new_score_map, impostors[1]),
    ):
        assert found(scores) == pytest.approx(
            fit_score_map(impostor, impostors[2])(scores), abs=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.5, 0.75])
def test_other_queries_for_old_rows_have_their_own_scales(alpha):
    evaluation = evaluation_of(alpha=alpha)
    certificate = certify(evaluation, subjects=SUBJECTS, date=DATE)
    assert certificate.blend_alpha == alpha
    old, new = (noisy_classes(40, 12, noise=n, seed=s)[0] for n, s in ((1.5, 1), (0.6, 2)))
    blend = (1 - alpha) * unit(old) + alpha * unit(new)
    impostors = naive_scores(blend, old, evaluation.split, same=False)
    for far in certificate.fars:
        accepted = np.sum(impostors > certificate.threshold(BLEND, far))
        assert accepted == pytest.approx(far * len(impostors), abs=2)
    olds = naive_scores(old, old, evaluation.split, same=False)
    scores = np.linspace(-0.5, 0.9, 50)
    expected = fit_score_map(impostors.astype(np.float64), olds.astype(np.float64))(scores)
    assert certificate.score_map_of(BLEND)(scores) == pytest.approx(expected, abs=1e-4)
    searches = {
        name: search_test(queries, old, evaluation.split).images
        for name, queries in ((CROSS, new), (OLD_SELF, old), (BLEND, blend.astype(np.float32)))
    }
    for name, search in searches.items():
        kinds = TwoKinds(search, search_test(new, new, evaluation.split).images)
        expected = choose_calibration(kinds).calibration(scores)
        assert certificate.calibration_of(name)(scores) == pytest.approx(expected, abs=1e-3), name


@pytest.mark.slow
def test_metrics_and_verdict_are_those_of_the_evaluation():
    for noises in ((1.5, 0.6), (0.6, 1.5)):
        evaluation = evaluation_of(*noises)
        content = certify(evaluation, subjects=SUBJECTS, date=DATE).content
        full = evaluation.as_json()
        assert content["template_verdict"] == full["verdict"]
        assert content["classes"] == full["classes"]
        assert content["metrics"]["criteria"] == full["criteria"]
        assert content["metrics"]["tests"] == full["tests"]
        assert content["flips"] == full["flips"]
        single = evaluation_of(*noises, mode="images")
        assert content["image_metrics"]["tests"][CROSS] == single.values[CROSS]
        assert content["image_metrics"]["verdict"] == content["verdict"] == single.verdict
        found = content["image_metrics"]["criteria"]
        assert [c["difference"] for c in found] == [c.difference for c in single.criteria]
        assert content["date"] == "2026-01-02T03:04:05+00:00"
        assert content["data"]["digest"] == SUBJECTS.data.digest
    assert content["verdict"] == "not compatible"


def test_single_images_decide_and_templates_stand_beside_them():
    old, new, labels = near_duplicates()
    evaluation = evaluate_upgrade(old, new, labels, repeats=200)
    certificate = certify(evaluation, subjects=SUBJECTS, date=DATE)
    assert (certificate.verdict, certificate.template_verdict) == ("not compatible", "compatible")
    assert not certificate.is_compatible
    assert certificate.summary().startswith("not compatible (templates: compatible): model fed")


@pytest.mark.parametrize(
    ("learnt", "options", "basis", "opens"),
    [
        ((), {}, "unseen", True),
        (range(40), {"seen_classes": True}, "overridden", False),
        (range(25), {"seen_classes": True}, "overridden", False),
        (range(19), {}, "unseen", True),
        (None, {}, "unknown", True),
    ],
)
def test_what_is_known_of_the_test_classes_is_in_the_certificate(learnt, options, basis, opens):
    """Every class trained on, most of them, some, none, or nobody knows."""
    models = [noisy_classes(40, 12, noise=noise, seed=seed) for noise, seed in ((1.5, 1), (0.4, 2))]
    names = tuple(f"class {label}" for label in range(40))
    old, new = (
        Embeddings(
            vectors, tuple(map(str, range(480))), labels, names, "model", class_source=None,
            training_classes=UNKNOWN_CLASSES if learnt is None
            else training_classes(("x", *(names[c] for c in learnt)), None),
        )
        for vectors, labels in models
    )  # fmt: skip
    evaluation = evaluate_upgrade(old, new, repeats=100, **options)
    certificate = certify(evaluation, subjects=SUBJECTS, date=DATE)
    assert (certificate.verdict, certificate.basis) == ("compatible", basis)
    assert certificate.is_compatible == opens
    tested = 40 if learnt is None or len(learnt) in (0, 40) else 40 - len(learnt)
    assert certificate.content["classes"]["tested"] == tested
    assert certificate.content["pairs"]["rows"] == 3 * tested
    words = {
        "unseen": "that no model was",
        "unknown": "is unknown",
        "overridden": "some or all of them classes",
    }
    assert words[basis] in certificate.summary()


@pytest.mark.slow
def test_a_certificate_is_the_same_every_time_but_for_its_date():
    first = certify(evaluation_of(), subjects=SUBJECTS, date=DATE)
    assert first == certify(evaluation_of(), subjects=SUBJECTS, date=DATE)
    today = certify(evaluation_of(), subjects=SUBJECTS)
    assert today.content["date"] > first.content["date"]
    assert today.digest != first.digest
    both = (today.content | {"date": "", "digest": ""}, first.content | {"date": "", "digest": ""})
    assert both[0] == both[1]


@pytest.mark.slow
def test_large_tests_use_some_of_the_queries_and_say_so(monkeypatch):
    monkeypatch.setattr(single_images, "MOST_PAIRS", 120_000)
    old, labels = noisy_classes(60, 30, noise=1.5, seed=1)
    new, _ = noisy_classes(60, 30, noise=0.6, seed=2)
    evaluation = evaluate_upgrade(old, new, labels, repeats=50)
    drawn = certify(evaluation, subjects=SUBJECTS, date=DATE)
    pairs = drawn.content["pairs"]
    assert pairs["of_queries"] == 60 * 23
    assert pairs["rows"] == 60 * 7
    assert pairs["queries"] == 1000, "never fewer"
    assert pairs["genuine"] == 7 * 1000


@pytest.mark.slow
def test_a_new_model_of_another_dimension_searches_old_rows_by_its_projection():
    old, labels = noisy_classes(40, 12, noise=1.5, seed=1)
    projected, _ = noisy_classes(40, 12, noise=0.6, seed=2)
    new, _ = noisy_classes(40, 12, noise=0.6, dim=24, seed=3)
    evaluation = evaluate_upgrade(old, new, labels, projected=projected, repeats=50)
    certificate = certify(evaluation, subjects=SUBJECTS, date=DATE)
    by_projection = certify(evaluation_of(), subjects=SUBJECTS, date=DATE)
    thresholds = [c.content["thresholds"] for c in (certificate, by_projection)]
    assert thresholds[0][CROSS] == thresholds[1][CROSS]
    assert thresholds[0][NEW_SELF] != thresholds[1][NEW_SELF]
    impostors = naive_scores(new, new, evaluation.split, same=False)
    accepted = np.sum(impostors > certificate.threshold(NEW_SELF, 0.01))
    assert accepted == pytest.approx(0.01 * len(impostors), abs=2)


def test_what_cannot_be_certified_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"arrays do not say which models made them: .*subjects="):
        certify(evaluation_of())
    request = EvaluationRequest("pairs.bin", query="new", gallery="old")
    with pytest.raises(UserError, match=r"--certify has no effect on --protocol pairs: .*images"):
        evaluate_and_certify(request, tmp_path / "c.json")
    request = EvaluationRequest("glyphs:val", query="new", gallery="old")
    with pytest.raises(UserError, match="is a folder"):
        evaluate_and_certify(request, tmp_path)

import json
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.noisy_classes import near_duplicates, noisy_classes, noisy_pair
from tests.gallery.two_models import DATE, EVALUATED, evaluation_of
from unibct.data.training_classes import UNKNOWN_CLASSES, training_classes
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.evaluation import single_images
from unibct.evaluation.certificate import Certificate, content_digest
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.mixed_gallery import TwoKinds, choose_calibration
from unibct.evaluation.score_map import fit_score_map
from unibct.evaluation.search_test import BLEND, CROSS, NEW_SELF, OLD_SELF, search_test
from unibct.evaluation.upgrade import evaluate_embeddings


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return Certificate.of(evaluation_of(), date=DATE)


def test_a_file_gives_the_certificate_back(certificate, tmp_path):
    again = Certificate.read(certificate.write(tmp_path / "new folder" / "upgrade.json"))
    assert again.content == certificate.content
    assert again.digest == certificate.digest == content_digest(certificate.content)
    assert again.old == EVALUATED.old.fingerprint
    assert again.new == EVALUATED.new.fingerprint
    assert again.verdict == "compatible"
    assert again.is_compatible
    scores = np.linspace(-1, 1, 99)
    assert np.array_equal(again.calibration(scores), certificate.calibration(scores))
    for name in (CROSS, NEW_SELF):
        found, expected = (one.score_map_of(name)(scores) for one in (again, certificate))
        assert np.array_equal(found, expected)
    assert again.threshold("new→old", 0.01) == certificate.content["thresholds"]["new→old"]["0.01"]


def test_the_summary_is_one_line_that_says_what_is_allowed(certificate):
    assert certificate.summary().startswith(
        "compatible: model fedcba987654 may search rows of model 0123456789ab; tested on 480 "
        "images of 40 classes of noise, classes of which it is unknown whether a model was "
        "trained on them; thresholds for FAR 1e-1, 1e-2, 1e-3 (rough, for lack of test classes: "
        "1e-2, 1e-3); "
    )
    many = Certificate.sealed(certificate.content | {"carried_fars": ["0.1", "0.01", "0.001"]})
    assert "; thresholds for FAR 1e-1, 1e-2, 1e-3; " in many.summary()
    assert "\n" not in certificate.summary()
    unchecked = "; whether the old model is too weak was not checked"
    assert certificate.summary().endswith(unchecked)
    metrics = certificate.content["metrics"] | {"old_model": {"recall_at_1": 0.9}}
    assert unchecked not in Certificate.sealed(certificate.content | {"metrics": metrics}).summary()
    refused = Certificate.sealed(certificate.content | {"verdict": "not compatible"})
    assert not refused.is_compatible
    assert refused.summary().startswith(
        "not compatible (templates: compatible): model fedcba987654 may not (but by --force) "
        "search rows of model 0123456789ab; "
    )


MAY, MAY_NOT = "may search", "may not (but by --force) search"
SOME_OR_ALL = "classes of noise, some or all of"


@pytest.mark.parametrize(
    ("classes", "may", "words"),
    [
        (("unseen", 0, 40), MAY, "noise, classes that no model was trained on; "),
        (("unseen", 7, 33), MAY, "noise, 33 of them classes that no model was trained on"),
        (("overridden", 40, 40), MAY_NOT, SOME_OR_ALL),
        # The verdict is over the 10 unseen ones: these are not the ones that were trained on.
        (("overridden", 30, 10), MAY_NOT, SOME_OR_ALL),
        # Nothing was seen: α was chosen on the test images.
        (("overridden", 0, 40), MAY_NOT, "a model was trained or something chosen; "),
    ],
)
def test_the_summary_says_what_is_known_of_the_test_classes(certificate, classes, may, words):
    known = dict(zip(("basis", "seen", "tested"), classes, strict=True))
    summary = Certificate.sealed(certificate.content | {"classes": known}).summary()
    assert words in summary
    assert f" {may} rows" in summary


@pytest.mark.parametrize(
    ("verdicts", "seen", "verdict", "basis"),
    [
        (("compatible", "compatible"), 0, "compatible", "unknown"),
        (("compatible", "not compatible"), None, "not compatible", "unknown"),
        (("old model too weak", "compatible"), 0, "old model too weak", "unknown"),
        (("not compatible", "compatible"), 3, "compatible", "overridden"),
    ],
)
def test_certificates_of_the_first_format_are_read(certificate, verdicts, seen, verdict, basis):
    content = dict(certificate.content)
    del content["classes"], content["template_verdict"]
    content |= {"format": 1, "verdict": verdicts[0], "metrics": {"seen_classes": seen}}
    content["image_metrics"] = {"verdict": verdicts[1]}
    first = Certificate.sealed(content)
    assert (first.verdict, first.basis) == (verdict, basis)
    assert first.template_verdict == verdicts[0]
    assert first.is_compatible == ((verdict, basis) == ("compatible", "unknown"))


def test_rates_and_directions_that_are_not_there_are_named(certificate):
    assert certificate.fars == (0.1, 0.01, 0.001)
    assert certificate.threshold("old→old", 1e-3) == certificate.threshold("old→old", 0.001)
    found = "it has 1e-1, 1e-2, 1e-3"
    with pytest.raises(UserError, match=f"no threshold for the false accept rate 1e-06; {found}"):
        certificate.threshold("new→old", 1e-6)
    with pytest.raises(UserError, match="no thresholds for 'old→new'; it has old→old, new→old"):
        certificate.threshold("old→new", 0.1)


def test_any_change_is_refused(certificate, tmp_path):
    path: Path = certificate.write(tmp_path / "c.json")
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refusals: list[str] = []
    for place in rng.integers(len(content), size=200).tolist():
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(7))
        path.write_bytes(bytes(changed))
        try:
            again = Certificate.read(path)
        except UserError as error:
            refusals.append(str(error))
        else:  # white space between values
            assert again.content == certificate.content
    assert all(text.startswith(str(path)) and "\n" not in text for text in refusals)
    assert len(refusals) > 100


@pytest.mark.parametrize("name", ["verdict", "thresholds", "date", "pairs"])
def test_a_changed_or_missing_entry_is_refused(certificate, tmp_path, name):
    path = tmp_path / "c.json"
    for change in ({name: "compatible "}, None):
        content = json.loads(json.dumps(certificate.content))
        if change is None:
            del content[name]
        else:
            content |= change
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"c.json: the certificate was changed after it was"):
            Certificate.read(path)


def test_what_is_no_certificate_is_refused(certificate, tmp_path):
    path = tmp_path / "c.json"
    other_format = json.dumps(certificate.content | {"format": 3})
    none = "c.json: this is no certificate; `unibct evaluate"
    for text, message in (
        ("[1]", "c.json is no certificate; make it again with `unibct"),
        (other_format, "c.json: this is no certificate of a format that this"),
        ("{}", none),
        ('{"format": 1, "top_1": 0.5}', none),
        ('{"format": 1, "digest": "0", "state": {}}', none),
        ("{", "c.json cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            Certificate.read(path)
    with pytest.raises(UserError, match=r"none.json cannot be read"):
        Certificate.read(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"is a folder; a certificate is a file"):
        certificate.write(tmp_path)
    content = {name: value for name, value in certificate.content.items() if name != "calibration"}
    with pytest.raises(UserError, match=r"the certificate is incomplete \('calibration'\)"):
        Certificate.sealed(content)


ROWS = {OLD_SELF: ("old", "old"), CROSS: ("new", "old"), NEW_SELF: ("new", "new")}


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def naive_scores(query: np.ndarray, gallery: np.ndarray, split, same: bool) -> np.ndarray:
    """The scores of all pairs of a query image and a row image, of the same or other classes."""
    scores = unit(query[split.query]) @ unit(gallery[split.gallery]).T
    mates = split.query_labels[:, None] == split.gallery_labels[None, :]
    return scores[mates == same]


@pytest.fixture(scope="module")
def models():
    """The vectors of both models of `evaluation_of`."""
    sides = (("old", 1.5, 1), ("new", 0.6, 2))
    return {name: noisy_classes(40, 12, noise=noise, seed=seed)[0] for name, noise, seed in sides}


@pytest.mark.slow
def test_thresholds_accept_as_many_impostors_of_single_images_as_the_rate_allows(models):
    evaluation = evaluation_of()
    certificate = Certificate.of(evaluation, date=DATE)
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
def test_score_maps_are_fitted_on_single_images(models):
    evaluation = evaluation_of()
    certificate = Certificate.of(evaluation, date=DATE)
    old, new = (models[name].astype(np.float64) for name in ("old", "new"))
    cross, new_self, old_self = (
        naive_scores(query, gallery, evaluation.split, same=False)
        for query, gallery in ((new, old), (new, new), (old, old))
    )
    scores = np.linspace(-0.5, 0.9, 50)
    for name, side in ((CROSS, cross), (NEW_SELF, new_self)):
        expected = fit_score_map(side, old_self)(scores)
        assert certificate.score_map_of(name)(scores) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.5, 0.75])
def test_other_queries_for_old_rows_have_their_own_scales(models, alpha):
    evaluation = evaluation_of(alpha=alpha)
    certificate = Certificate.of(evaluation, date=DATE)
    assert certificate.blend_alpha == alpha
    old, new = models["old"], models["new"]
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
        content = Certificate.of(evaluation, date=DATE).content
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
        assert content["data"]["digest"] == EVALUATED.data.digest
    assert content["verdict"] == "not compatible"


def test_single_images_decide_and_templates_stand_beside_them():
    old, new, labels = near_duplicates()
    evaluation = evaluate_embeddings(labels, old=old, new=new, repeats=200, evaluated=EVALUATED)
    certificate = Certificate.of(evaluation, date=DATE)
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
    evaluation = evaluate_embeddings(old=old, new=new, repeats=100, **options, evaluated=EVALUATED)
    certificate = Certificate.of(evaluation, date=DATE)
    assert (certificate.verdict, certificate.basis) == ("compatible", basis)
    assert certificate.is_compatible == opens
    tested = 40 if learnt is None or len(learnt) in (0, 40) else 40 - len(learnt)
    assert certificate.content["classes"]["tested"] == tested
    assert certificate.content["pairs"]["rows"] == 3 * tested
    words = {"unseen": "that no model was", "unknown": "is unknown"}
    assert words.get(basis, "some or all of them classes") in certificate.summary()


@pytest.mark.slow
def test_a_certificate_is_the_same_every_time_but_for_its_date():
    first = Certificate.of(evaluation_of(), date=DATE)
    assert first == Certificate.of(evaluation_of(), date=DATE)
    today = Certificate.of(evaluation_of())
    assert today.content["date"] > first.content["date"]
    assert today.digest != first.digest
    both = (today.content | {"date": "", "digest": ""}, first.content | {"date": "", "digest": ""})
    assert both[0] == both[1]


@pytest.mark.slow
def test_large_tests_use_some_of_the_queries_and_say_so(monkeypatch):
    monkeypatch.setattr(single_images, "MOST_PAIRS", 120_000)
    pair = noisy_pair(1.5, 0.6, classes=60, images=30)
    evaluation = evaluate_embeddings(**pair, repeats=50, evaluated=EVALUATED)
    drawn = Certificate.of(evaluation, date=DATE)
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
    sides = {"old": old, "new": new, "projected": projected}
    evaluation = evaluate_embeddings(labels, **sides, repeats=50, evaluated=EVALUATED)
    certificate = Certificate.of(evaluation, date=DATE)
    by_projection = Certificate.of(evaluation_of(), date=DATE)
    thresholds = [c.content["thresholds"] for c in (certificate, by_projection)]
    assert thresholds[0][CROSS] == thresholds[1][CROSS]
    assert thresholds[0][NEW_SELF] != thresholds[1][NEW_SELF]
    impostors = naive_scores(new, new, evaluation.split, same=False)
    accepted = np.sum(impostors > certificate.threshold(NEW_SELF, 0.01))
    assert accepted == pytest.approx(0.01 * len(impostors), abs=2)


def test_what_cannot_be_certified_is_refused(tmp_path):
    unsaid = "arrays do not say which models made them: .*"
    with pytest.raises(UserError, match=f"{unsaid}evaluated="):
        Certificate.of(evaluation_of(evaluated=None))
    with pytest.raises(UserError, match=f"{unsaid} certify"):
        evaluate([0, 1], old=np.ones((2, 2)), new=np.ones((2, 2)), certify=tmp_path / "c.json")
    with pytest.raises(UserError, match=r"certify has no effect on the protocol pairs: .*images"):
        evaluate("pairs.bin", old="old", new="new", certify=tmp_path / "c.json")
    with pytest.raises(UserError, match="is a folder"):
        evaluate("glyphs:val", old="old", new="new", certify=tmp_path)

import json
from pathlib import Path

import numpy as np
import pytest

from tests.gallery.two_models import DATE, SUBJECTS, evaluation_of
from unibct.errors import UserError
from unibct.gallery.certificate import Certificate, content_digest, read_certificate, sealed
from unibct.gallery.certify import certify


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certify(evaluation_of(), subjects=SUBJECTS, date=DATE)


def test_a_file_gives_the_certificate_back(certificate, tmp_path):
    again = read_certificate(certificate.write(tmp_path / "new folder" / "upgrade.json"))
    assert again.content == certificate.content
    assert again.digest == certificate.digest == content_digest(certificate.content)
    assert again.old == SUBJECTS.old.fingerprint
    assert again.new == SUBJECTS.new.fingerprint
    assert again.verdict == "compatible"
    assert again.is_compatible
    scores = np.linspace(-1, 1, 99)
    for name in ("calibration", "score_map", "new_score_map"):
        assert np.array_equal(getattr(again, name)(scores), getattr(certificate, name)(scores))
    assert again.threshold("new→old", 0.01) == certificate.content["thresholds"]["new→old"]["0.01"]


def test_the_summary_is_one_line_that_says_what_is_allowed(certificate):
    assert certificate.summary().startswith(
        "compatible: model fedcba987654 may search rows of model 0123456789ab; tested on 480 "
        "images of 40 classes of noise, classes of which it is unknown whether a model was "
        "trained on them; thresholds for FAR 1e-1, 1e-2, 1e-3 (rough, for lack of test classes: "
        "1e-2, 1e-3); "
    )
    many = sealed(certificate.content | {"carried_fars": ["0.1", "0.01", "0.001"]})
    assert "; thresholds for FAR 1e-1, 1e-2, 1e-3; " in many.summary()
    assert "\n" not in certificate.summary()
    unchecked = "; whether the old model is too weak was not checked"
    assert certificate.summary().endswith(unchecked)
    metrics = certificate.content["metrics"] | {"old_model": {"recall_at_1": 0.9}}
    assert unchecked not in sealed(certificate.content | {"metrics": metrics}).summary()
    refused = sealed(certificate.content | {"verdict": "not compatible"})
    assert not refused.is_compatible
    assert refused.summary().startswith(
        "not compatible (templates: compatible): model fedcba987654 may not (but by --force) "
        "search rows of model 0123456789ab; "
    )


@pytest.mark.parametrize(
    ("classes", "may", "words"),
    [
        (("unseen", 0, 40), "may search", "noise, classes that no model was trained on; "),
        (("unseen", 7, 33), "may search", "noise, 33 of them classes that no model was trained on"),
        (
            ("overridden", 40, 40),
            "may not (but by --force) search",
            "classes of noise, some or all of",
        ),
        # The verdict is over the 10 unseen ones: these are not the ones that were trained on.
        (
            ("overridden", 30, 10),
            "may not (but by --force) search",
            "classes of noise, some or all of",
        ),
        # Nothing was seen: α was chosen on the test images.
        (
            ("overridden", 0, 40),
            "may not (but by --force) search",
            "a model was trained or something chosen; ",
        ),
    ],
)
def test_the_summary_says_what_is_known_of_the_test_classes(certificate, classes, may, words):
    known = dict(zip(("basis", "seen", "tested"), classes, strict=True))
    summary = sealed(certificate.content | {"classes": known}).summary()
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
    content = {
        k: v for k, v in certificate.content.items() if k not in ("classes", "template_verdict")
    }
    content |= {"format": 1, "verdict": verdicts[0], "metrics": {"seen_classes": seen}}
    content["image_metrics"] = {"verdict": verdicts[1]}
    first = sealed(content)
    assert (first.verdict, first.basis) == (verdict, basis)
    assert first.template_verdict == verdicts[0]
    assert first.is_compatible == ((verdict, basis) == ("compatible", "unknown"))


def test_rates_and_directions_that_are_not_there_are_named(certificate):
    assert certificate.fars == (0.1, 0.01, 0.001)
    assert certificate.threshold("old→old", 1e-3) == certificate.threshold("old→old", 0.001)
    with pytest.raises(
        UserError, match="no threshold for the false accept rate 1e-06; it has 1e-1, 1e-2, 1e-3"
    ):
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
            again = read_certificate(path)
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
            read_certificate(path)


def test_what_is_no_certificate_is_refused(certificate, tmp_path):
    path = tmp_path / "c.json"
    path.write_text("[1]")
    with pytest.raises(UserError, match=r"c.json is no certificate; make it again with `unibct"):
        read_certificate(path)
    path.write_text(json.dumps(certificate.content | {"format": 3}))
    with pytest.raises(UserError, match=r"c.json: this is no certificate of a format that this"):
        read_certificate(path)
    for other in ({}, {"format": 1, "top_1": 0.5}, {"format": 1, "digest": "0", "state": {}}):
        path.write_text(json.dumps(other))
        with pytest.raises(UserError, match=r"c.json: this is no certificate; `unibct evaluate"):
            read_certificate(path)
    path.write_text("{")
    with pytest.raises(UserError, match=r"c.json cannot be read"):
        read_certificate(path)
    with pytest.raises(UserError, match=r"none.json cannot be read"):
        read_certificate(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"is a folder; a certificate is a file"):
        certificate.write(tmp_path)
    content = {name: value for name, value in certificate.content.items() if name != "calibration"}
    with pytest.raises(UserError, match=r"the certificate is incomplete \('calibration'\)"):
        sealed(content)

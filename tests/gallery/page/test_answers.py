import pytest

from tests.gallery.conftest import broken
from tests.gallery.toys import NEW, OLD, toy_certificate, toy_images
from unibct.gallery.page.answers import (
    ModelAnswer,
    certified_curves,
    criteria,
    deleted_since,
    described_certificate,
    described_hits,
    described_models,
    described_status,
    last_upgrade,
    short_names,
    standing_before,
    step_text,
    top_1,
)
from unibct.gallery.search import Hit
from unibct.gallery.state import Access, Standing, Step

NAMES = {"n": "new"}


def step(number: int, action: str, *, done: bool = True, undone: bool = False, **details) -> Step:
    return Step(number, action, "2026", done, undone, Standing(f"before {number}"), details)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["models/old", "models/new/"], ["old", "new"]),
        (["/a/v1/model", "/a/v2/model"], ["v1/model", "v2/model"]),
        (["python:toys:old", "onnx:m/new.onnx"], ["old", "new.onnx"]),
        (["same", "same"], ["same", "same"]),
        ([], []),
    ],
)
def test_names_are_as_short_as_they_can_be(names, short):
    keyed = {str(place): name for place, name in enumerate(names)}
    assert list(short_names(keyed).values()) == short


@pytest.mark.parametrize(
    ("taken", "text"),
    [
        (step(1, "create"), "An empty gallery"),
        (step(2, "add", source="photos", added=1200), "1,200 rows added from photos"),
        (
            step(3, "upgrade", model="n", savings={"rows": 1200, "seconds": 600.0}),
            "new searches; 1,200 rows stay as they are, which saves 10 min of embedding",
        ),
        (
            step(3, "upgrade", model="n", forced=["o"]),
            "new searches; forced, without a certificate that allows it",
        ),
        (
            step(4, "backfill", model="n", share=0.5, order="random", curve=[[0, 1], [0.5, 1]]),
            "Rows embedded again by new, up to 50 % of all rows, order random; 50 % reached",
        ),
        (
            step(4, "backfill", done=False, model="n", order="asked"),
            "Rows embedded again by new, up to 100 % of all rows, order asked; not complete",
        ),
        (
            step(4, "backfill", done=False, model="n", share=1.0, order="asked", lazy=True),
            "Rows that searches found embedded again by new",
        ),
        (step(4, "certify", model="n", forced=[]), "A certificate for new recorded"),
        (step(5, "finish", deleted=3), "3 old vectors deleted for good"),
        (step(6, "rollback", to=3), "Back to before step 3"),
        (step(7, "remove", rows=1), "1 rows removed for good"),
        (
            step(7, "remove", rows=9, steps=5, until="2026-03-04T05:06:07Z"),
            "9 rows removed for good in 5 steps, the last on 2026-03-04",
        ),
        (step(8, "something new"), "something new"),
    ],
)
def test_a_step_in_words(taken, text):
    assert step_text(taken, NAMES) == text


def test_the_upgrade_in_force_is_the_last_one_that_was_not_undone():
    first, second = step(2, "upgrade"), step(5, "upgrade", undone=True)
    steps = (step(1, "create"), first, step(3, "finish", deleted=4), step(4, "finish"), second)
    assert last_upgrade(steps) is first
    assert standing_before(steps) == Standing("before 2")
    assert last_upgrade(steps[:1]) is None
    assert standing_before(steps[:1]) is None
    assert deleted_since(steps, 2) == 4
    assert deleted_since(steps, 3) == 0


def test_what_a_certificate_measured():
    compared = {"old_self": 0.5, "cross": 0.6, "difference": 0.1, "interval": [0.05, 0.15]}
    entry = {"metric": "top-1", **compared, "confidence": 0.95, "verdict": "compatible"}
    measured = {
        "metrics": {"tests": {"new→old": {"top-1": 0.8}}},
        "image_metrics": {
            "verdict": "compatible",
            "criteria": [entry],
            "further_metrics": [entry | {"metric": "mAP"}],
            "tests": {"new→old": {"top-1": 0.7, "mAP": 0.1}, "old→old": {"mAP": 0.2}},
        },
    }
    certificate = toy_certificate("old", "new", **measured)
    assert [(c.metric, c.low, c.high, c.decides) for c in criteria(certificate)] == [
        ("top-1", 0.05, 0.15, True),
        ("mAP", 0.05, 0.15, False),
    ]
    assert top_1(certificate) == {"new→old": 0.7}
    assert certified_curves(certificate) == {}
    curves = {"random": {"shares": [0, 1], "top-1": [0.7, 0.9]}, "x": {"shares": [0]}}
    whole = toy_certificate("old", "new", **measured, backfill_curve=curves)
    assert certified_curves(whole) == {"random": [(0, 0.7), (1, 0.9)]}
    assert top_1(whole) == {"new→old": 0.8}  # templates, as the curve
    plain = toy_certificate("old", "new")
    assert criteria(plain) == []
    assert certified_curves(plain) == {}


MODEL = ModelAnswer(fingerprint="f", name="models/old", short_name="old")


def test_the_status_before_and_after_an_upgrade(upgraded):
    state = upgraded.folder.state
    assert described_models(state)[state.standing.searching].short_name == "new_model"
    upgraded.backfill(toy_images(), share=0.5)
    status = described_status("G", upgraded.status(), [0.1], None, has_images=True)
    assert (status.rows, status.searching.name, status.fars) == (48, NEW, [0.1])
    assert status.previous is not None
    assert status.previous.name == OLD
    assert [(k.row, k.rows, k.share, k.replaced) for k in status.kinds] == [
        ("older", 24, 0.5, 24),
        ("own", 24, 0.5, 0),
    ]
    assert [s.action for s in status.steps] == ["create", "add", "upgrade", "backfill"]
    assert status.steps[-1].curve[-1][0] == 0.5
    assert [(r.step, r.action, r.searching.short_name) for r in status.rollbacks] == [
        (4, "backfill", "new_model"),
        (3, "upgrade", "old_model"),
    ]
    assert not any(r.stopped for r in status.rollbacks)
    assert status.savings.rows == 24
    assert status.unfinished is None
    upgraded.rollback()
    back = described_status("G", upgraded.status(), [], None, has_images=False)
    assert back.previous is None
    assert back.searching.name == OLD
    assert back.rollbacks == []


def test_a_rollback_that_was_stopped_is_offered_if_there_are_images(upgraded):
    later = toy_images(per_class=1, first=30)
    upgraded.add(later)
    with broken("rollback._make_rows"):
        upgraded.rollback(data=later)
    (back,) = described_status("G", upgraded.status(), [], None, has_images=False).rollbacks
    assert (back.step, back.stopped) == (3, False), "without images it begins anew"
    (back,) = described_status("G", upgraded.status(), [], None, has_images=True).rollbacks
    assert (back.step, back.searching.name, back.stopped) == (3, OLD, True)


def test_hits_say_whether_there_is_a_picture():
    hit = Hit("a", "cat", 0.5, "f", 0.25, "older", {"colour": "red"})
    found = described_hits([hit], {"f": MODEL}, {"a"})[0]
    assert (found.id, found.label, found.score, found.similarity) == ("a", "cat", 0.5, 0.25)
    assert (found.row, found.metadata, found.model) == ("older", {"colour": "red"}, MODEL)
    assert found.has_image
    assert not described_hits([hit], {"f": MODEL}, set())[0].has_image


def test_why_rows_may_be_searched():
    certificate = toy_certificate("old", "new")
    answer = described_certificate(MODEL, Access(certificate.digest), certificate)
    assert (answer.verdict, answer.calibration) == ("compatible", "standardised")
    assert not answer.forced
    assert answer.thresholds["new→new"] == {"0.1": 0.6, "0.01": 0.9}
    assert answer.document == certificate.content
    forced = described_certificate(MODEL, Access(forced=True), None)
    assert (forced.verdict, forced.forced) == (None, True)
    assert "(force)" in forced.summary

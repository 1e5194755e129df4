import pytest

from tests.gallery.toys import NEW, OLD, toy_certificate, toy_images
from unibct.gallery.page.answers import ModelAnswer
from unibct.gallery.page.descriptions import (
    described_certificate,
    described_hits,
    described_models,
    described_status,
)
from unibct.gallery.search import Hit
from unibct.gallery.state import Access

MODEL = ModelAnswer(fingerprint="f", name="models/old", short_name="old")


def test_the_status_before_and_after_an_upgrade(upgraded):
    assert (
        described_models(upgraded.folder.state)[upgraded.folder.state.standing.searching].short_name
        == "new_model"
    )
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


def test_a_rollback_that_was_stopped_is_offered_if_there_are_images(upgraded, monkeypatch):
    later = toy_images(per_class=1, first=30)
    upgraded.add(later)
    monkeypatch.setattr("unibct.gallery.rollback._make_rows", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
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
    paper = toy_certificate("old", "new")
    answer = described_certificate(MODEL, Access(paper.digest), paper)
    assert (answer.verdict, answer.calibration, answer.forced) == (
        "compatible",
        "standardised",
        False,
    )
    assert answer.thresholds["new→new"] == {"0.1": 0.6, "0.01": 0.9}
    assert answer.document == paper.content
    forced = described_certificate(MODEL, Access(forced=True), None)
    assert (forced.verdict, forced.forced) == (None, True)
    assert "--force" in forced.summary

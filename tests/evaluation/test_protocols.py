import dataclasses
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import pytest

from unibct.errors import UserError
from unibct.evaluation import protocols as table
from unibct.evaluation.protocols import (
    OPTIONS,
    PROTOCOLS,
    EvaluationRequest,
    PoolingRules,
    Protocol,
    SearchRules,
    changed_options,
    evaluate_data,
    recognised_protocol,
)


def test_templates_are_pooled_by_the_fields_rules_unless_asked_otherwise():
    request = EvaluationRequest("ijbc/", query=Path("new"), gallery=Path("old"))
    assert request.pooling == PoolingRules(
        flip_test=True, detector_scores=True, media_mean=True, normalize_images=False
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.far = 0.1


def test_data_is_recognised(tmp_path):
    assert recognised_protocol("lfw.bin") == "pairs"
    assert recognised_protocol(str(tmp_path)) == "images"
    assert recognised_protocol("glyphs:test") == "images"
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/ijbb_face_tid_mid.txt").touch()
    assert recognised_protocol(str(tmp_path)) == "ijbb"
    assert recognised_protocol("lfw.bin", "images") == "images"
    with pytest.raises(UserError, match="unknown protocol 'lfw'"):
        recognised_protocol("x", "lfw")


def test_a_new_protocol_is_one_file_and_one_line(monkeypatch):
    """The table recognises its data, imports its file and runs it; nothing else changes."""
    module = ModuleType("unibct.evaluation.protocols.odd")
    module.evaluate_odd = lambda request: f"evaluated {request.data}"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    line = {"odd": Protocol("odd:evaluate_odd", lambda data: data.endswith(".odd"), "odd files")}
    monkeypatch.setattr(table, "PROTOCOLS", line | PROTOCOLS)
    request = EvaluationRequest("x.odd", Path("new"), Path("old"))
    assert evaluate_data(request) == "evaluated x.odd"


@pytest.mark.parametrize(
    ("data", "option", "message"),
    [
        ("lfw.bin", {"skip_bad": True}, "--skip-bad-images .*pairs; .* images only"),
        ("lfw.bin", {"images": Path("list.txt")}, "--images .*pairs; .* images only"),
        ("lfw.bin", {"far": 1e-3}, "--far .*pairs; .* ijbc, ijbb, images only"),
        ("lfw.bin", {"threshold_rule": "nearest"}, "--threshold-rule .* pairs"),
        ("lfw.bin", {"pooling": PoolingRules(flip_test=False)}, "--no-flip-test .*pairs"),
        ("glyphs:test", {"pooling": PoolingRules(detector_scores=False)}, "--no-detector-scores"),
        ("glyphs:test", {"pooling": PoolingRules(media_mean=False)}, "--no-media-mean .* images"),
        ("glyphs:test", {"pooling": PoolingRules(normalize_images=True)}, "--normalize-images"),
        ("lfw.bin", {"seen_classes": True}, "--seen-classes .*pairs; .* images only"),
        ("lfw.bin", {"alpha": 0.5}, "--alpha .*pairs; .* ijbc, ijbb, images only"),
        ("lfw.bin", {"search": SearchRules(alpha_from="x")}, "--alpha-from .* images only"),
        ("glyphs:test", {"cache": Path("elsewhere")}, "--cache .* ijbc, ijbb only"),
    ],
)
def test_an_option_that_a_protocol_does_not_take_is_refused_by_name(data, option, message):
    request = EvaluationRequest(data, Path("new"), Path("old"), **option)
    with pytest.raises(UserError, match=message):
        evaluate_data(request)


def test_every_option_is_taken_by_a_protocol_and_every_protocol_knows_its_options():
    taken = {flag for protocol in PROTOCOLS.values() for flag in protocol.takes}
    assert taken == set(OPTIONS)
    default = EvaluationRequest("x", Path("new"), Path("old"))
    assert changed_options(default) == []
    assert changed_options(replace(default, seed=1, far=0.1)) == ["--far", "--seed"]


def test_every_field_of_a_request_is_an_option_or_said_to_be_none():
    """A new field needs a line in ``OPTIONS``, or protocols would ignore it silently."""
    always = {"data", "query", "gallery", "device"}
    changed = {
        "images": Path("x"), "far": 0.5, "seed": 5, "threshold_rule": "nearest",
        "cache": Path("x"), "seen_classes": True, "skip_bad": True, "alpha": 0.1,
    }  # fmt: skip
    rules = {"flip_test": False, "detector_scores": False, "media_mean": False}
    rules["normalize_images"] = True
    names = {field.name for field in fields(EvaluationRequest)}
    search = {
        "queries": Path("x"), "gallery_images": Path("x"), "mode": "images",
        "backfill_curve": True, "old_thresholds": True, "save_score_map": True,
        "alpha_from": "x",
    }  # fmt: skip
    assert names == always | set(changed) | {"pooling", "search"}
    assert {field.name for field in fields(PoolingRules)} == set(rules)
    assert {field.name for field in fields(SearchRules)} == set(search)
    grouped = {"pooling": PoolingRules(**rules), "search": SearchRules(**search)}
    request = EvaluationRequest("x", Path(), Path(), **grouped, **changed)
    assert changed_options(request) == list(OPTIONS)


def test_an_unknown_threshold_rule_is_refused_at_once():
    request = EvaluationRequest("glyphs:test", Path("new"), Path("old"), threshold_rule="loose")
    with pytest.raises(UserError, match="unknown threshold rule 'loose'; choose strict or nearest"):
        evaluate_data(request)


def test_an_unknown_mode_and_a_negative_seed_are_refused_at_once():
    request = EvaluationRequest("photos", "new", "old", search=SearchRules(mode="image"))
    with pytest.raises(UserError, match="unknown mode of the gallery 'image'"):
        evaluate_data(request)
    with pytest.raises(UserError, match="--seed must not be negative, not -1"):
        evaluate_data(EvaluationRequest("photos", "new", "old", seed=-1))


@pytest.mark.parametrize("far", [0, -1, 1.5])
def test_a_rate_outside_its_range_is_refused(far):
    request = EvaluationRequest("glyphs:test", Path("new"), Path("old"), far=far)
    with pytest.raises(UserError, match=r"--far must lie in \(0, 1\]"):
        evaluate_data(request)


def test_alpha_is_given_or_chosen_and_a_share():
    request = EvaluationRequest("glyphs:test", Path("new"), Path("old"), alpha=1.5)
    with pytest.raises(UserError, match=r"alpha lies in \[0, 1\], not 1.5"):
        evaluate_data(request)
    both = replace(request, alpha=0.5, search=SearchRules(alpha_from="glyphs:val"))
    with pytest.raises(UserError, match="--alpha and --alpha-from exclude each other"):
        evaluate_data(both)

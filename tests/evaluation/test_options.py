from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from unibct.errors import UserError
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.options import EvaluationOptions, chosen_options
from unibct.evaluation.protocols import PROTOCOLS

CHANGED = {
    "images": Path("x"), "far": 0.5, "seed": 5, "threshold_rule": "nearest", "flip_test": False,
    "detector_scores": False, "media_mean": False, "normalize_images": True, "cache": Path("x"),
    "queries": Path("x"), "gallery_images": Path("x"), "gallery_mode": "images",
    "backfill_curve": True, "old_thresholds": True, "save_score_map": True, "alpha": 0.1,
    "alpha_from": "x", "seen_classes": True, "skip_bad_images": True,
}  # fmt: skip


def test_templates_are_pooled_by_the_fields_rules_unless_asked_otherwise():
    options = EvaluationOptions()
    pooling = ("flip_test", "detector_scores", "media_mean", "normalize_images")
    assert [getattr(options, name) for name in pooling] == [True, True, True, False]
    with pytest.raises(FrozenInstanceError):
        options.far = 0.1


def test_every_option_is_taken_by_a_protocol_and_every_protocol_knows_its_options():
    names = {one.name for one in fields(EvaluationOptions)}
    assert {name for entry in PROTOCOLS.values() for name in entry.takes} == names == set(CHANGED)
    assert EvaluationOptions().changed() == []
    assert EvaluationOptions(far=0.1, seed=1).changed() == ["far", "seed"]
    for name, value in CHANGED.items():
        with_lists = {"queries": Path("x"), "gallery_images": Path("x")}
        changes = with_lists if name in with_lists else {name: value}
        assert chosen_options(None, changes).changed() == list(changes)
    with pytest.raises(UserError, match="unknown option 'fra'; choose one of images, far, seed,"):
        evaluate("glyphs:test", old="old", new="new", fra=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold_rule": "loose"}, "unknown threshold rule 'loose'; choose strict or nearest"),
        ({"gallery_mode": "image"}, "unknown mode of the gallery 'image'"),
        ({"seed": -1}, "^seed must not be negative, not -1"),
        ({"far": 0}, r"^far must lie in \(0, 1\], not 0"),
        ({"far": -1}, r"^far must lie in \(0, 1\]"),
        ({"far": 1.5}, r"^far must lie in \(0, 1\]"),
        ({"alpha": 1.5}, r"alpha lies in \[0, 1\], not 1.5"),
        ({"alpha": 0.5, "alpha_from": "glyphs:val"}, "alpha and alpha_from exclude each other"),
        ({"queries": Path("q")}, "queries and gallery_images go together: give both lists"),
        ({"gallery_images": Path("g")}, "go together: give both lists"),
        ({"old_thresholds": True, "save_score_map": True}, "each on other classes"),
    ],
)
def test_values_that_no_evaluation_could_use_are_refused_at_once(changes, message):
    with pytest.raises(UserError, match=message):
        evaluate("photos", old="old", new="new", **changes)

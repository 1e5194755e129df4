import sys
from types import ModuleType

import pytest

from tests.evaluation.test_options import CHANGED
from unibct.errors import UserError
from unibct.evaluation import protocols as table
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.options import EvaluationOptions
from unibct.evaluation.protocols import PROTOCOLS, Protocol
from unibct.registry import Registry


def test_a_new_protocol_is_one_file_and_one_line(monkeypatch):
    """The table recognises its data, imports its file and runs it; nothing else changes."""
    module = ModuleType("another_package.odd")
    module.evaluate_odd = lambda data, **_: f"evaluated {data}"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    home = "another_package.odd:evaluate_odd"
    odd = Protocol(home, lambda data: data.endswith(".odd"), "odd files")
    entries = Registry("protocol", {"odd": odd, **PROTOCOLS})
    monkeypatch.setattr(table, "PROTOCOLS", entries)
    monkeypatch.setattr("unibct.evaluation.evaluate.PROTOCOLS", entries)
    assert evaluate("x.odd", old="old", new="new") == "evaluated x.odd"


@pytest.mark.parametrize(
    ("data", "option", "others"),
    [
        ("lfw.bin", "skip_bad_images", "images"),
        ("lfw.bin", "images", "images"),
        ("lfw.bin", "far", "ijbc, ijbb, images"),
        ("lfw.bin", "threshold_rule", "ijbc, ijbb, images"),
        ("lfw.bin", "flip_test", "ijbc, ijbb"),
        ("lfw.bin", "seen_classes", "images"),
        ("lfw.bin", "alpha", "ijbc, ijbb, images"),
        ("lfw.bin", "alpha_from", "images"),
        ("glyphs:test", "detector_scores", "ijbc, ijbb"),
        ("glyphs:test", "media_mean", "ijbc, ijbb"),
        ("glyphs:test", "normalize_images", "ijbc, ijbb"),
        ("glyphs:test", "cache", "ijbc, ijbb"),
        ([0, 0, 1, 1], "alpha_from", "images"),
        ([0, 0, 1, 1], "cache", "ijbc, ijbb"),
    ],
)
def test_an_option_that_a_protocol_does_not_take_is_refused_by_name(data, option, others):
    what = {"lfw.bin": "the protocol pairs", "glyphs:test": "the protocol images"}
    on = what[data] if isinstance(data, str) else "two models' vectors"
    message = f"^{option} has no effect on {on}; it is for {others} only. Leave it out$"
    changes = {option: CHANGED[option]}
    for given in (changes, {"options": EvaluationOptions(**changes)}):
        with pytest.raises(UserError, match=message):
            evaluate(data, old="old", new="new", **given)

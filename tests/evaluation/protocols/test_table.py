import sys
from pathlib import Path
from types import ModuleType

import pytest

from unibct.errors import UserError
from unibct.evaluation.protocols import table
from unibct.evaluation.protocols.request import EvaluationRequest
from unibct.evaluation.protocols.table import (
    PROTOCOLS,
    Protocol,
    evaluate_data,
    recognised_protocol,
)


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


@pytest.mark.parametrize("option", [{"skip_bad": True}, {"images": Path("list.txt")}])
def test_options_of_image_sets_are_refused_elsewhere(option):
    request = EvaluationRequest("lfw.bin", Path("new"), Path("old"), **option)
    with pytest.raises(UserError, match="--images and --skip-bad-images are for --protocol images"):
        evaluate_data(request)


@pytest.mark.parametrize("far", [0, -1, 1.5])
def test_a_rate_outside_its_range_is_refused(far):
    request = EvaluationRequest("glyphs:test", Path("new"), Path("old"), far=far)
    with pytest.raises(UserError, match=r"--far must lie in \(0, 1\]"):
        evaluate_data(request)

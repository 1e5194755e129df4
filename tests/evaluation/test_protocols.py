import pytest

from unibct.errors import UserError
from unibct.evaluation.protocols import recognised_protocol


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

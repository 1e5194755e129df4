import sys

import pytest

from unibct.errors import UserError
from unibct.models.python_reference import imported_attribute


def test_a_module_in_the_working_folder_is_found_and_leaves_the_path_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = list(sys.path)
    (tmp_path / "my_own_embedder.py").write_text("class Inner:\n    value = 7\n")
    monkeypatch.chdir(tmp_path)
    assert imported_attribute("my_own_embedder:Inner.value") == 7
    assert sys.path == before


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("json", "write python:MODULE:ATTRIBUTE"),
        (":loads", "write python:MODULE:ATTRIBUTE"),
        ("no_such_module:x", "needs the Python module no_such_module"),
        ("json:nothing.at.all", "json has no attribute 'nothing.at.all'"),
    ],
)
def test_what_cannot_be_imported_is_named(reference, message):
    with pytest.raises(UserError, match=message):
        imported_attribute(reference)

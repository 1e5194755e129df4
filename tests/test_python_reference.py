import pytest

from unibct.errors import UserError
from unibct.python_reference import find_attribute


def test_an_attribute_is_found_in_the_working_folder_too(tmp_path, monkeypatch):
    (tmp_path / "own_module_of_a_user.py").write_text("class Box:\n    content = 7\n")
    monkeypatch.chdir(tmp_path)
    assert find_attribute("own_module_of_a_user:Box.content") == 7
    assert find_attribute("math:pi") == pytest.approx(3.14159, abs=1e-5)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("math", "write python:MODULE:ATTRIBUTE"),
        ("no_such_module_here:a", "needs the Python module no_such_module_here"),
        ("math:tau_of_nothing", "math has no attribute 'tau_of_nothing'"),
    ],
)
def test_what_is_missing_is_named(reference, message):
    with pytest.raises(UserError, match=message):
        find_attribute(reference)

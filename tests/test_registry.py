import pytest

from unibct.errors import UserError
from unibct.registry import Registry, find_attribute


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


def test_an_unknown_name_gets_a_suggestion_and_the_names():
    registry = Registry("colour", {"red": 1, "green": 2})
    assert (list(registry), registry.find("red"), len(registry)) == (["red", "green"], 1, 2)
    with pytest.raises(UserError, match=r"^unknown colour 'blue'; choose one of red, green$"):
        registry.find("blue")
    with pytest.raises(UserError, match="unknown colour 'gren', did you mean 'green'"):
        registry.find("gren")


def test_other_packages_add_entries_but_replace_none(tmp_path, monkeypatch):
    (tmp_path / "paint.py").write_text("PINK, RED = 3, 4\n")
    (tmp_path / "paint-1.0.dist-info").mkdir()
    (tmp_path / "paint-1.0.dist-info" / "METADATA").write_text("Name: paint\nVersion: 1.0\n")
    (tmp_path / "paint-1.0.dist-info" / "entry_points.txt").write_text(
        "[unibct.colours]\npink = paint:PINK\nred = paint:RED\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert dict(Registry("colour", {"red": 1})) == {"red": 1, "pink": 3}

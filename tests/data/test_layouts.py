from tests.conftest import run_command
from unibct.data.layouts import LAYOUTS


def test_every_layout_has_its_class_and_is_in_the_help(capsys):
    assert run_command("convert", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, entry in LAYOUTS.items():
        assert {"add", "finish"} <= set(vars(entry.load()))
        assert f"{name} ({entry.description})" in text

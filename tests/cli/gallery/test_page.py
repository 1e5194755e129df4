import pytest

from tests.conftest import run_command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--token", "short"), "a token has at least 16 characters"),
        (("--images", "nowhere"), "nowhere"),
        (("--port", "70000"), "less than or equal to 65535"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_served(world, words, message):
    run, _, _, _, _ = world
    text = run("serve", "--device", "cpu", *words, code=2)
    assert message in text
    assert text.splitlines()[-1].startswith("error: ")


def test_a_folder_that_is_no_gallery(tmp_path, capsys):
    assert run_command("gallery", "serve", tmp_path, "--device", "cpu") == 2
    assert "is not a gallery" in capsys.readouterr().err


def test_the_command_passes_everything_on(world, monkeypatch):
    run, rows, _, _, _ = world
    given = {}
    serve = "unibct.gallery.page.serve_gallery"
    monkeypatch.setattr(serve, lambda path, **options: given.update(options))
    run("serve", "--images", rows, "--port", "0", "--device", "cpu")
    assert str(given.pop("device")) == "cpu"
    assert given == {"host": "127.0.0.1", "port": 0, "images": str(rows), "token": None}
    monkeypatch.setenv("UNIBCT_TOKEN", "a token from outside")
    run("serve", "--host", "0.0.0.0", "--device", "cpu")
    assert (given["token"], given["host"]) == ("a token from outside", "0.0.0.0")

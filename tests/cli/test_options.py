import re
import shutil
from dataclasses import dataclass, field
from typing import Literal

import pytest
import typer

from tests.cli.conftest import sides
from tests.conftest import TINY_OPTIONS, run_command
from unibct.benchmark import DEFAULT_METHODS
from unibct.cli.entry import UsageError
from unibct.cli.options import parse_number, print_once, split_names, takes_options
from unibct.data.readers import READERS, open_images
from unibct.data.scenarios import SCENARIOS
from unibct.embeddings.forms import FORMS
from unibct.embeddings.store import open_embeddings
from unibct.errors import UserError
from unibct.evaluation.protocols import PROTOCOLS
from unibct.gallery.orders import ORDERS
from unibct.gallery.search_request import ENCODERS
from unibct.maps import MAPS
from unibct.methods import METHODS
from unibct.models.architectures import ARCHITECTURES
from unibct.models.model_folder import load_model


def test_help_shows_every_name(capsys):
    tables = {
        "split": [SCENARIOS],
        "train": [METHODS, ARCHITECTURES],
        "embed": [FORMS, [name for name, entry in PROTOCOLS.items() if entry.embeds]],
        "gallery backfill": [ORDERS],
        "gallery search": [ENCODERS],
        "adapt": [MAPS],
        "demo": [SCENARIOS, METHODS],
        "benchmark": [SCENARIOS, METHODS, MAPS, DEFAULT_METHODS],
    }
    for command, shown in tables.items():
        assert run_command(*command.split(), "--help") == 0
        text = re.sub(r"-\n\s+", "-", capsys.readouterr().out)  # lines are broken after hyphens
        words = set(re.split(r"[\s,]+", text))
        for table in shown:
            assert set(table) <= words, command


def test_help_gives_examples_and_the_version(capsys):
    commands = "split convert train embed adapt map evaluate demo benchmark"
    for command in commands.split():
        assert run_command(command, "--help") == 0
        assert "Example" in capsys.readouterr().out
    assert run_command("--version") == 0
    assert capsys.readouterr().out.startswith("unibct ")


@pytest.mark.slow
def test_bad_images_are_refused_or_left_out(trained_folder, photo_folder, tmp_path, capsys):
    data = tmp_path / "photos"
    shutil.copytree(photo_folder, data)
    victim = sorted(data.glob("class 05/*"))[2]
    victim.write_bytes(victim.read_bytes()[:30])
    name = victim.relative_to(data).as_posix()
    commands = {
        "emb": ["embed", trained_folder / "new", data, "--out", tmp_path / "emb"],
        "model": ["train", data, "--out", tmp_path / "model", "--device", "cpu", *TINY_OPTIONS],
        "": ["evaluate", data, *sides(trained_folder / "new", trained_folder / "old")],
    }
    for command in commands.values():
        assert run_command(*command) == 2
        error = capsys.readouterr().err
        assert name in error
        assert "--skip-bad-images" in error
        assert list(tmp_path.iterdir()) == [data]
    for command in commands.values():
        assert run_command(*command, "--skip-bad-images") == 0
        assert f"left out 1 unreadable images of {data}: {name}" in capsys.readouterr().err
    assert len(open_embeddings(tmp_path / "emb")) == len(open_images(str(photo_folder))) - 1
    assert load_model(tmp_path / "model").training["unreadable_images"] == [name]


def test_the_main_help_lists_every_kind_of_data_and_every_command(capsys):
    assert run_command("--help") == 0
    text = capsys.readouterr().out
    for kind, reader in READERS.items():
        assert re.search(rf"{kind}: +{re.escape(reader.description)}\n", text)
    commands = re.findall(r"^  (\w+) +[A-Z].*$", text.partition("Commands:")[2], re.MULTILINE)
    shown = "demo split convert advise train embed adapt map blend evaluate export card benchmark"
    assert commands == [*shown.split(), "gallery"]
    assert "..." not in text.partition("Commands:")[2], "every short help is a whole sentence"


def test_lists_of_names_and_numbers_are_separated_by_commas():
    assert split_names("a, b,,c") == ["a", "b", "c"]
    assert split_names(None) == []
    assert parse_number("12", "--seeds") == 12
    with pytest.raises(UserError, match="--seeds -1: write numbers with commas"):
        parse_number("-1", "--seeds")


def test_a_result_is_printed_by_the_first_process_only(monkeypatch, capsys):
    for rank, printed in ((None, "done\n"), ("0", "done\n"), ("1", "")):
        with monkeypatch.context() as patch:
            patch.delenv("RANK", raising=False)
            if rank is not None:
                patch.setenv("RANK", rank)
            print_once("done")
        assert capsys.readouterr().out == printed


@dataclass(frozen=True)
class Paint:
    colour: Literal["red", "green"] = field(default="red", metadata={"help": "of the wall"})
    coats: int | None = field(default=None, metadata={"help": "how many", "min": 1})
    dry: bool = field(default=True, metadata={"help": "let it dry"})
    wet_brush: bool = field(default=False, metadata={"help": "a wet brush"})


def test_the_flags_of_a_command_are_the_fields_of_its_options(capsys):
    """Name, type, default and help are written once, beside the field."""
    app, called = typer.Typer(), []

    @app.command()
    @takes_options
    def paint(wall: str, how: Paint, device: str = "auto") -> None:
        called.append((wall, how, device))

    def run(*words):
        app(words, standalone_mode=False)

    run("north")
    run("south", "--colour", "green", "--coats", "2", "--no-dry", "--wet-brush", "--device", "cpu")
    assert called == [("north", Paint(), "auto"), ("south", Paint("green", 2, False, True), "cpu")]
    for words in (["x", "--coats", "0"], ["x", "--colour", "blue"], ["x", "--no-wet-brush"]):
        with pytest.raises(UsageError):
            run(*words)
    run("--help")
    shown = capsys.readouterr().out
    assert "of the wall" in shown
    assert "--dry" in shown

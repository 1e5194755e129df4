"""The root of the command line, and what several commands share: options, lists, output."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from unibct.data.readers import READERS, describe_data_briefly
from unibct.data.scenarios import SCENARIOS, Scenario
from unibct.errors import UserError
from unibct.maps import MAPS
from unibct.methods import METHODS
from unibct.progress import is_first_process
from unibct.training import FITTED_RECIPES, describe_recipes

SCENARIO_NAMES = ", ".join(SCENARIOS)
METHOD_NAMES = ", ".join(METHODS)
MAP_NAMES = ", ".join(MAPS)


def listing(title: str, meanings: Mapping[str, str]) -> str:
    """Return names with their meanings, one per line, for a help text."""
    width = max(map(len, meanings))
    gap = "\n" + " " * (width + 4)
    lines = [
        f"  {name:{width}}  {gap.join(wrap(meaning, 76, break_on_hyphens=False))}"
        for name, meaning in meanings.items()
    ]
    return "\n".join(["\b", f"{title}:", *lines])  # \b makes click keep the line breaks


def examples(*commands: str) -> str:
    """Return example commands, one per line, for the end of a command's help."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def scenario_listing() -> str:
    """Return the scenarios with their meanings, for a help text."""
    return listing("Scenarios", {name: _meaning(rule) for name, rule in SCENARIOS.items()})


def method_listing() -> str:
    """Return the methods with their descriptions, for a help text."""
    return listing("Methods", {name: entry.description for name, entry in METHODS.items()})


def map_listing() -> str:
    """Return the kinds of maps with their descriptions, for a help text."""
    return listing("Kinds", {name: entry.description for name, entry in MAPS.items()})


def _meaning(scenario: Scenario) -> str:
    """Return what the old and the new set of a scenario are."""
    old_set = {"images": "some images of each class", "classes": "some classes"}[scenario.sample]
    rest = {"images": "the other images", "classes": "the other classes"}[scenario.sample]
    new_set = {"all": "everything", "rest": rest, "same": "the same, larger network"}
    return f"old: {old_set}; new: {new_set[scenario.new]}"


_DATA_LISTING = listing(
    "DATA, the images that a command reads, is one of",
    {f"{kind}:": reader.description for kind, reader in READERS.items()},
)

app = typer.Typer(
    name="unibct",
    help=(
        "Upgrade the model of a visual search without embedding the gallery again.\n\n"
        "Start with `unibct demo`: it trains an old and a new model on small images that come "
        "with unibct, and tests whether the new model can search the old gallery.\n\n"
        "With your own images: `unibct split --hold-out 0.3` sets test classes aside and makes an "
        "old and a new training set of the others, `unibct train` trains a model on each, and "
        "`unibct evaluate` tests the new one against the old one on the test classes.\n\n"
        f"{_DATA_LISTING}\n\n"
        "The kind is recognised from the path. If it is not, write it before the path: "
        "folder:PATH."
    ),
    epilog=(
        "`unibct COMMAND --help` explains a command and gives examples. A command that fails "
        "prints one line with the reason and exits with code 2."
    ),
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help=f"the images: {describe_data_briefly()}; see unibct --help"
    ),
]
ImagesOption = Annotated[
    Path | None,
    typer.Option(
        "--images", metavar="LIST", help="use only the images in this file, one id per line"
    ),
]
SkipOption = Annotated[
    bool,
    typer.Option(
        "--skip-bad-images", help="leave unreadable images out and list them, instead of stopping"
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="change a setting of the recipe; may be repeated"
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="the training settings: a TOML file, or one that comes with unibct: "
        f"{describe_recipes()}  [default: {', '.join(FITTED_RECIPES)}: the one that fits the "
        "size and colour of the images]",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
DeviceOption = Annotated[str, typer.Option(help="where to compute: auto, cpu, cuda, cuda:1, mps")]


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="show the full traceback of an error")
    ] = False,
) -> None:
    """Declare the options of every command for the help."""
    # main() handles both before the command is parsed, so that they work anywhere on the line.


def split_names(text: str | None) -> list[str]:
    """Return the names in a list that is separated by commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_number(text: str, option: str) -> int:
    """Return a number that is not negative."""
    if not text.isdecimal():
        raise UserError(f"{option} {text}: write numbers with commas between them, such as 0,1,2")
    return int(text)


def print_once(text: str) -> None:
    """Print a result; if torchrun started several processes, only the first one prints it."""
    if is_first_process():
        print(text)

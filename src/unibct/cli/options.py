"""The command line's root, and what several commands have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from unibct.data.readers.table import describe_data, describe_data_briefly
from unibct.data.scenarios import SCENARIOS
from unibct.errors import UserError
from unibct.maps.table import ADAPTERS, AdapterEntry
from unibct.methods.table import METHODS, MethodEntry
from unibct.progress import is_first_process

SCENARIO_NAMES = ", ".join(SCENARIOS)
METHOD_NAMES = ", ".join(METHODS)
ADAPTER_NAMES = ", ".join(ADAPTERS)

app = typer.Typer(
    name="unibct",
    help=(
        "Upgrade the model of a visual search without embedding the gallery again.\n\n"
        f"DATA is one of: {describe_data()}. If it is not recognised, write the prefix: "
        "folder:PATH. Start with `unibct demo`."
    ),
    epilog="Each command explains itself: unibct train --help. Errors: exit code 2.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=describe_data_briefly())]
ImagesOption = Annotated[
    Path | None,
    typer.Option("--images", metavar="LIST", help="only these images: one id per line"),
]
SkipOption = Annotated[
    bool, typer.Option("--skip-bad-images", help="leave unreadable images out, and name them")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="change one number of the recipe"),
]
RecipeOption = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="a TOML file, or a shipped one: glyphs, paper, ms1mv3-SCENARIO"
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps")]


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Options of every command."""
    # main() handles both before the commands are parsed, so that they work in any place.


def names(text: str | None) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def described(title: str, entries: Mapping[str, MethodEntry | AdapterEntry]) -> str:
    """Return a list of names with their descriptions, for the end of a command's help."""
    width = max(map(len, entries))
    lines = [f"  {name:{width}}  {entry.description}" for name, entry in entries.items()]
    return "\n".join(["\b", f"{title}:", *lines])  # \b: click keeps the line breaks


def number(text: str, option: str) -> int:
    """A number that is not negative."""
    if not text.isdecimal():
        raise UserError(f"{option} {text}: write numbers with commas between them, such as 0,1,2")
    return int(text)


def say(text: str) -> None:
    """Print a result, once."""
    if is_first_process():
        print(text)

"""The root of the command line, and what several commands share: options, lists, output.

Options that a function of the library has too are the fields of a frozen class, which stands in the
room that uses them: name, type, default and help are written there once, and ``takes_options``
makes the flags from them. Those of one command are declared where it takes them, as an ``option``,
``flag`` or ``argument``; those of several commands stand here.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, get_type_hints

import typer

from unibct.data.readers import READERS, describe_data_briefly
from unibct.data.scenarios import SCENARIOS, Scenario
from unibct.errors import UserError
from unibct.methods import METHODS
from unibct.progress import is_first_process
from unibct.training import FITTED_RECIPES, describe_recipes


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


def option(
    meaning: str, metavar: str | None = None, *names: str, default: Any = None, **limits: Any
) -> Any:
    """Return an option of one command; with ``...`` as default it must be given."""
    return typer.Option(default, *names, help=meaning, metavar=metavar, **limits)


def flag(name: str, meaning: str) -> Any:
    """Return an option of one command that is false, and is turned on by its name."""
    return typer.Option(False, name, help=meaning)


def argument(meaning: str, metavar: str, *, default: Any = ...) -> Any:
    """Return an argument of one command; it must be given, unless it has a default."""
    return typer.Argument(default, help=meaning, metavar=metavar)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take a flag for each field of the options class that a parameter names.

    The command is called with one object of the class. A field's ``metadata`` holds its ``help``,
    and perhaps a ``metavar``, ``min`` and ``max``. A field that is false by default has a flag that
    turns it on; one that is true has a second flag, ``--no-…``, that turns it off.
    """
    hints = get_type_hints(command, include_extras=True)
    classes: dict[str, Any] = {n: hint for n, hint in hints.items() if is_dataclass(hint)}
    flags: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        hint = hints[one.name]
        given_by_name = one.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
        flags += _flags(hint) if one.name in classes else [given_by_name]

    @wraps(command)
    def parsed(**given: Any) -> None:
        for name, hint in classes.items():
            given[name] = hint(**{one.name: given.pop(one.name) for one in fields(hint)})
        command(**given)

    parsed.__dict__["__signature__"] = inspect.Signature(flags)
    parsed.__annotations__ = {one.name: one.annotation for one in flags}
    return parsed


def _flags(options: Any) -> list[inspect.Parameter]:
    """Return a parameter for typer for each field of an options class."""
    hints = get_type_hints(options)
    flags: list[inspect.Parameter] = []
    for one in fields(options):
        names = [f"--{one.name.replace('_', '-')}"] if one.default is False else []
        option = typer.Option(*names, **one.metadata)
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        kind, hint = inspect.Parameter.KEYWORD_ONLY, Annotated[hints[one.name], option]
        flags.append(inspect.Parameter(one.name, kind, default=default, annotation=hint))
    return flags


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
